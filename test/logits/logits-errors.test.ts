/** Tests that the functions of lib/logits refuse bad arguments, and that docs/logits.md shows a working example. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { LossError, type LossErrorCode } from '../../lib/index.js';
import { CPU_WAYS } from '../support/logits-ways.js';
import { isLossError } from '../support/loss-error.js';

const detached = () => {
  const array = new Float32Array(6);
  structuredClone(array.buffer, { transfer: [array.buffer] });
  return array;
};
const memory = new ArrayBuffer(64);
const part = (offset: number) => new Float32Array(memory, offset, 6);
const resizable = () =>
  new Float32Array(
    new (ArrayBuffer as unknown as new (length: number, options: object) => ArrayBuffer)(24, {
      maxByteLength: 48,
    }),
  );
const half = (dtype: string, length = 6) => ({ data: new Uint16Array(length), dtype });

type Case = [changes: Record<string, unknown>, code: LossErrorCode, message: RegExp];

/** Bad arguments of every function. The key `logits` replaces the first argument. */
const SHARED: Record<string, Case> = {
  'no options': [{ options: undefined }, 'ERR_MISSING_INPUT', /^options: .*shape and targets, got undefined/],
  'no shape': [{ shape: undefined }, 'ERR_MISSING_INPUT', /^shape: expected \[N, V\]/],
  'a negative shape': [{ shape: [-2, 3] }, 'ERR_INVALID_INPUT', /^shape: .*got \[-2, 3\]/],
  'a vocabulary of 2³¹': [{ shape: [0, 2 ** 31] }, 'ERR_INVALID_INPUT', /^shape: /],
  'too few logits': [
    { logits: new Float32Array(5) },
    'ERR_SHAPE_MISMATCH',
    /^logits: .*\[2, 3\] = 6 .*got 5/,
  ],
  'too many logits': [{ logits: new Float32Array(7) }, 'ERR_SHAPE_MISMATCH', /^logits: .*got 7/],
  'too few logits for the stride': [
    { rowStride: 4 },
    'ERR_SHAPE_MISMATCH',
    /begin every 4: 7 to 8 values, got 6/,
  ],
  'a stride below the vocabulary': [{ rowStride: 2 }, 'ERR_INVALID_INPUT', /^rowStride: .*at least 3, got 2/],
  'numbers instead of an array': [
    { logits: [1, 2, 3, 4, 5, 6] },
    'ERR_INVALID_INPUT',
    /^logits: .*Float32Array/,
  ],
  'an unknown dtype': [{ logits: half('int8') }, 'ERR_INVALID_INPUT', /^logits: expected dtype/],
  'detached logits': [{ logits: detached() }, 'ERR_INVALID_INPUT', /^logits: .*detached/],
  'too few targets': [{ targets: [1] }, 'ERR_SHAPE_MISMATCH', /^targets: expected \[2\].*got 1/],
  'a target above the vocabulary': [
    { targets: [0, 3] },
    'ERR_INVALID_INPUT',
    /^targets\[1\]: .* 0 to 2, or -100.*got 3/,
  ],
  'a negative target': [{ targets: Int32Array.of(-1, 0) }, 'ERR_INVALID_INPUT', /^targets\[0\]: .*got -1/],
  'targets that are not whole': [{ targets: [0.5, 0] }, 'ERR_INVALID_INPUT', /^targets: .*whole numbers/],
  'temperature 0': [
    { temperature: 0 },
    'ERR_INVALID_OPTION',
    /^temperature: expected a positive number, got 0/,
  ],
  'temperature 0 of a row': [{ temperature: [1, 0] }, 'ERR_INVALID_OPTION', /^temperature\[1\]: .*got 0/],
  'temperature NaN': [{ temperature: Number.NaN }, 'ERR_INVALID_OPTION', /^temperature: /],
  'temperature Infinity': [{ temperature: Infinity }, 'ERR_INVALID_OPTION', /^temperature: /],
  'a temperature whose inverse overflows': [{ temperature: 1e-40 }, 'ERR_INVALID_OPTION', /^temperature: /],
  'too few temperatures': [{ temperature: [1] }, 'ERR_SHAPE_MISMATCH', /^temperature: /],
  'softcap 0': [{ softcap: 0 }, 'ERR_INVALID_OPTION', /^softcap: expected a positive number, got 0/],
  'an unknown device': [{ device: 'cuda:99' }, 'ERR_DEVICE_UNAVAILABLE', /^device: expected .*'cuda:99'/],
  'logits of a device': [
    { logits: { pointer: 16n, dtype: 'float32', device: 'cuda:0', shape: [2, 3] }, device: 'cpu' },
    'ERR_INVALID_INPUT',
    /^logits: expected memory of the host, because the CPU computes the call, got memory of a device/,
  ],
  'too few offsets': [
    { support: { tokenIds: [0], offsets: [0, 1] } },
    'ERR_SHAPE_MISMATCH',
    /^support.offsets: /,
  ],
  'offsets that decrease': [
    { support: { tokenIds: [0, 1], offsets: [0, 2, 1] } },
    'ERR_SHAPE_MISMATCH',
    /^support.offsets\[2\]: expected at least 2/,
  ],
  'offsets that begin late': [
    { support: { tokenIds: [0, 1], offsets: [1, 1, 2] } },
    'ERR_SHAPE_MISMATCH',
    /^support.offsets\[0\]: expected 0, got 1/,
  ],
  'offsets that end early': [
    { support: { tokenIds: [0, 1, 2], offsets: [0, 1, 2] } },
    'ERR_SHAPE_MISMATCH',
    /^support.offsets\[2\]: expected 3/,
  ],
  'a token id above the vocabulary': [
    { support: { tokenIds: [0, 1, 7], offsets: [0, 1, 3] } },
    'ERR_INVALID_INPUT',
    /^support.tokenIds\[2\]: .*0 to 2 in row 1, got 7/,
  ],
  'a token twice': [
    { support: { tokenIds: [0, 1, 1], offsets: [0, 1, 3] } },
    'ERR_INVALID_INPUT',
    /^support.tokenIds\[2\]: .*at most once in row 1, got 1 twice/,
  ],
  'a target outside its support': [
    { support: { tokenIds: [0, 2], offsets: [0, 1, 2] } },
    'ERR_INVALID_INPUT',
    /^targets\[1\]: expected one of the 1 tokens in the support of row 1, got 1/,
  ],
};

/** Bad arguments of the functions that compute the gradient. */
const BACKWARD: Record<string, Case> = {
  'no gradLogprob': [{ gradLogprob: undefined }, 'ERR_INVALID_INPUT', /^gradLogprob: /],
  'too few gradients': [{ gradLogprob: [1] }, 'ERR_SHAPE_MISMATCH', /^gradLogprob: expected \[2\]/],
  'too few entropies': [
    { gradEntropy: [1, 1], entropy: [1] },
    'ERR_SHAPE_MISMATCH',
    /^entropy: expected \[2\]/,
  ],
  'too many sums': [{ logsumexp: [1, 1, 1] }, 'ERR_SHAPE_MISMATCH', /^logsumexp: expected \[2\]/],
  'a short out': [
    { out: new Float32Array(5) },
    'ERR_SHAPE_MISMATCH',
    /^out: expected \[2, 3\] = 6 values, got 5/,
  ],
  'an out of another dtype': [{ out: half('float16') }, 'ERR_INVALID_INPUT', /^out: .*got dtype float16/],
  'an out of the other 16-bit dtype': [
    { logits: half('bfloat16'), out: half('float16') },
    'ERR_INVALID_INPUT',
    /^out: .*got dtype float16/,
  ],
  'a detached out': [{ out: detached() }, 'ERR_INVALID_INPUT', /^out: .*detached/],
  'a resizable out': [{ out: resizable() }, 'ERR_INVALID_INPUT', /^out: .*fixed length/],
  'an out that overlaps with the logits': [
    { logits: part(0), out: part(4) },
    'ERR_INVALID_INPUT',
    /^out: .*overlaps with the logits/,
  ],
  'an out that contains 16-bit logits': [
    { logits: { data: new Uint16Array(memory, 0, 6), dtype: 'bfloat16' }, out: part(0) },
    'ERR_INVALID_INPUT',
    /^out: .*overlaps with the logits/,
  ],
  'an out that overlaps with another input': [
    { out: part(0), gradLogprob: new Float64Array(memory, 16, 2) },
    'ERR_INVALID_INPUT',
    /^out: expected other memory than gradLogprob, got memory that overlaps with gradLogprob/,
  ],
  'an out that overlaps with the token ids': [
    {
      out: part(0),
      targets: [0, 0],
      support: { tokenIds: new Int32Array(memory, 16, 2), offsets: [0, 1, 2] },
    },
    'ERR_INVALID_INPUT',
    /^out: .*overlaps with support.tokenIds/,
  ],
};

const VALID = { shape: [2, 3], targets: [0, 1], gradLogprob: [1, 1] };

describe('bad arguments of logits', () => {
  for (const [way, { logprobs, backward }] of Object.entries(CPU_WAYS))
    for (const [name, call, cases] of [
      ['logprobs', logprobs, SHARED],
      ['logprobsBackward', backward, { ...SHARED, ...BACKWARD }],
    ] as const)
      for (const [what, [changes, code, message]] of Object.entries(cases))
        it(`${name}, ${way}: ${what}`, async () => {
          const { logits = new Float32Array(6), ...options } = { ...VALID, ...changes };
          const given = 'options' in changes ? changes.options : options;
          await assert.rejects(async () => call(logits as never, given as never), isLossError(code, message));
        });

  it('an aborted signal', async () => {
    const signal = AbortSignal.abort(new Error('no longer wanted'));
    const options = { shape: [2, 3], targets: [0, 1], signal } as const;
    const aborted = (error: unknown) => error instanceof LossError && error.code === 'ERR_ABORTED';
    await assert.rejects(CPU_WAYS.async.logprobs(new Float32Array(6), options), aborted);
  });

  it('accepts resizable logits', async () => {
    const { logprob } = await CPU_WAYS.async.logprobs(resizable(), { shape: [2, 3], targets: [0, 1] });
    assert.equal(logprob[1], Math.fround(-Math.log(3)));
  });
});

describe('docs/logits.md', () => {
  const read = (file: string) => readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8');

  it('shows examples/logits.ts, which runs', async () => {
    const [, shown] = /```ts\n([\s\S]*?)```/.exec(read('docs/logits.md'))!;
    assert.ok(read('examples/logits.ts').includes(shown!));
    const cwd = fileURLToPath(new URL('../..', import.meta.url));
    const words = ['--import', 'tsx', 'examples/logits.ts'];
    const { stdout, stderr } = await promisify(execFile)(process.execPath, words, { cwd });
    assert.equal(stderr, '');
    assert.match(stdout, /loss: -0\.\d+/);
    // Only the first 5 of the 6 rows have an entropy.
    assert.match(stdout, /entropy: Float32Array\(6\) \[\s*(\d\.\d+,\s*){5}0\s*\]/);
  });
});
