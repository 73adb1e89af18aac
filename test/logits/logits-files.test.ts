/** Tests the computation of log-probabilities from files of logits, which are read block by block. */
import assert from 'node:assert/strict';
import { closeSync, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import fc from 'fast-check';
import { LossError, type LossErrorCode, logprobsSync } from '../../lib/index.js';
import { type LogitsFileOptions, logprobsOfFile } from '../../lib/tools/parts/index.js';
import { Fields } from '../fuzz-files/fields.js';
import { F32, I64, npy, npzOf, safetensorsOf, type Tensor } from '../fuzz-files/tensor-files.js';
import { runAlone } from '../support/alone.js';
import { logitsCases } from '../support/golden.js';
import { dataOf, stored } from '../support/logits.js';
import { isLossError } from '../support/loss-error.js';
import { generator } from '../support/random.js';
import { temporaryFolder } from '../support/temporary-folder.js';
import { assertSameArray } from '../support/tolerance.js';

const PARTS = new URL('../../lib/tools/parts/index.js', import.meta.url).href;
const F16 = ['F16', '<f2'] as const;
const BF16 = ['BF16', '<V2'] as const;
const I32 = ['I32', '<i4'] as const;
const DTYPES = { float32: F32, float16: F16, bfloat16: BF16 };

const bytes = ({ buffer, byteOffset, byteLength }: ArrayBufferView) =>
  Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);
const tensor = (name: string, dtype: Tensor['dtype'], shape: number[], data: ArrayBufferView): Tensor => ({
  name,
  dtype,
  shape,
  data: bytes(data),
});

/** Runs the computation and joins all blocks. */
async function compute(options: LogitsFileOptions) {
  const columns: Record<string, number[]> = {};
  let blocks = 0;
  let shape: readonly number[] = [];
  const sums = await logprobsOfFile(options, (layout) => {
    shape = layout.shape;
    return async (block) => {
      blocks++;
      for (const [name, values] of Object.entries(block)) {
        columns[name] ??= [];
        columns[name].push(...(values as Float32Array));
      }
    };
  });
  return { ...columns, sums, blocks, shape } as typeof columns & {
    sums: typeof sums;
    blocks: number;
    shape: typeof shape;
  };
}

describe('files of logits', () => {
  const folder = temporaryFolder();
  const fields = () => new Fields();
  const writers: Record<string, (tensors: readonly Tensor[]) => Buffer[]> = {
    'file.safetensors': (tensors) => safetensorsOf(tensors, fields()),
    'stored.npz': (tensors) => npzOf(tensors, false, fields()),
    'deflated.npz': (tensors) => npzOf(tensors, true, fields()),
  };
  const write = (name: string, tensors: readonly Tensor[]) =>
    folder.write(name, Buffer.concat(writers[name]!(tensors)));

  for (const { id, args, inputs } of logitsCases.filter(({ args }) => args.support === undefined))
    it(`give the results of logprobs(): ${id}`, async () => {
      const { dtype, temperature, softcap } = args;
      const numbers = inputs.logits.data.map(Number);
      const logits =
        dtype === 'float32' ? Float32Array.from(numbers) : { data: Uint16Array.from(numbers), dtype };
      const { shape } = inputs.logits;
      const targets = Int32Array.from(inputs.targets.data);
      const perRow = Array.isArray(temperature) ? Float64Array.from(temperature) : undefined;
      const expected = logprobsSync(logits, {
        shape: shape as [number, number],
        targets,
        ...(temperature !== null && { temperature }),
        ...(softcap !== null && { softcap }),
        entropy: true,
      });
      for (const name of Object.keys(writers)) {
        // NumPy has no bfloat16.
        if (dtype === 'bfloat16' && name.endsWith('.npz')) continue;
        const file = write(name, [
          tensor('logits', DTYPES[dtype], shape, dataOf(logits)),
          tensor('targets', I64, shape.slice(0, 1), BigInt64Array.from(targets, BigInt)),
          ...(perRow ? [tensor('temperature', ['F64', '<f8'], shape.slice(0, 1), perRow)] : []),
        ]);
        const found = await compute({
          logits: file,
          targets: file,
          temperature: perRow ? file : ((temperature as number | null) ?? undefined),
          softcap: softcap ?? undefined,
          entropy: true,
          blockBytes: 3000,
        });
        for (const column of ['logprob', 'logsumexp', 'entropy'] as const)
          assertSameArray(found[column]!, expected[column]!, `${name}, ${column}`);
        assert.deepEqual(
          found.mask,
          Array.from(targets, (target) => Number(target !== -100)),
        );
      }
    });

  /** Five rows of seven tokens each, over a vocabulary of 11. */
  function small(dtype: keyof typeof DTYPES = 'float32') {
    const { normal, integer } = generator(4);
    const [rows, columns, vocabulary] = [5, 7, 11];
    const { logits } = stored(
      Array.from({ length: rows * columns * vocabulary }, () => 3 * normal()),
      dtype,
    );
    const targets = Int32Array.from({ length: rows * columns }, (_, i) =>
      i % 6 === 5 ? -100 : integer(0, vocabulary - 1),
    );
    const tensors = [
      tensor('logits', DTYPES[dtype], [rows, columns, vocabulary], dataOf(logits)),
      tensor('targets', I32, [rows, columns], targets),
    ];
    return { logits, targets, tensors, rows, columns, vocabulary };
  }

  for (const dtype of ['float32', 'float16', 'bfloat16'] as const)
    it(`gives the same bits for any size of the blocks: ${dtype}`, async () => {
      const { logits, targets, tensors, rows, columns, vocabulary } = small(dtype);
      const expected = logprobsSync(logits, {
        shape: [rows * columns, vocabulary],
        targets,
        temperature: 0.7,
        entropy: true,
      });
      const file = write('file.safetensors', tensors);
      const options = { logits: file, targets: file, temperature: 0.7, entropy: true };
      const counts = new Set<number>();
      const sums = new Set<string>();
      for (const blockBytes of [1, 100, 333, 1 << 20]) {
        const found = await compute({ ...options, blockBytes });
        for (const column of ['logprob', 'logsumexp', 'entropy'] as const)
          assertSameArray(found[column]!, expected[column]!, column);
        assert.deepEqual(found.shape, [rows, columns]);
        counts.add(found.blocks);
        sums.add(JSON.stringify(found.sums));
      }
      assert.deepEqual([Math.min(...counts), Math.max(...counts)], [1, rows * columns]);
      assert.equal(sums.size, 1);
      const counted = Array.from(expected.logprob).filter((_, i) => targets[i] !== -100);
      const { tokens, logprob } = JSON.parse([...sums][0]!);
      assert.equal(tokens, counted.length);
      assert.ok(Math.abs(logprob - counted.reduce((sum, x) => sum + x, 0) / tokens) < 1e-12);
    });

  it('takes the tensors from any file, by their names', async () => {
    const { tensors, columns, rows } = small();
    const [logits, targets] = tensors as [Tensor, Tensor];
    const expected = await compute({
      logits: write('file.safetensors', tensors),
      targets: folder.path('file.safetensors'),
    });
    const other = write('deflated.npz', [{ ...targets, name: 'ids' }, logits]);
    const alone = folder.write('targets.npy', Buffer.concat(npy(targets, fields())));
    const temperature = folder.write(
      'temperature.npy',
      Buffer.concat(
        npy(tensor('t', F32, [rows, columns], new Float32Array(rows * columns).fill(1)), fields()),
      ),
    );
    for (const options of [
      { logits: `${other}:logits`, targets: `${other}:ids` },
      { logits: other, targets: alone, temperature },
      { logits: folder.write('logits.npy', Buffer.concat(npy(logits, fields()))), targets: `${other}:ids` },
    ])
      assert.deepEqual((await compute(options)).logprob, expected.logprob);
  });

  it('computes a file without rows', async () => {
    for (const shape of [
      [0, 5],
      [0, 3, 5],
      [2, 0, 5],
      [0, 0],
    ]) {
      const file = write('stored.npz', [
        tensor('logits', F32, shape, new Float32Array(0)),
        tensor('targets', I32, shape.slice(0, -1), new Int32Array(0)),
      ]);
      const { sums, shape: found } = await compute({ logits: file, targets: file });
      assert.deepEqual([found, sums.tokens, sums.logprob], [shape.slice(0, -1), 0, Number.NaN]);
    }
  });

  describe('bad input', () => {
    async function rejects(
      code: LossErrorCode,
      options: Omit<LogitsFileOptions, 'logits' | 'targets'> & { tensors?: Tensor[]; targets?: string },
      ...patterns: RegExp[]
    ) {
      const { tensors = small().tensors, ...given } = options;
      const file = write('file.safetensors', tensors);
      let isWritten = false;
      const call = logprobsOfFile(
        { logits: file, targets: file, blockBytes: 100, ...given },
        () => async () => {
          isWritten = true;
        },
      );
      await assert.rejects(call, isLossError(code, ...patterns));
      return isWritten;
    }
    const [logits, targets] = small().tensors as [Tensor, Tensor];
    const withTarget = (at: number, value: bigint) =>
      tensor(
        'targets',
        I64,
        [5, 7],
        BigInt64Array.from(small().targets, (id, i) => (i === at ? value : BigInt(id))),
      );

    it('is an error that names a missing tensor, and those of the file', async () => {
      await rejects(
        'ERR_MISSING_INPUT',
        { tensors: [logits, { ...targets, name: 'ids' }] },
        /file\.safetensors: expected a tensor targets, got a file with only logits, ids$/,
      );
      await rejects('ERR_MISSING_INPUT', { targets: `${folder.path('file.safetensors')}:no` }, /a tensor no/);
    });

    it('is an error about a wrong dtype', async () => {
      const doubles = tensor('logits', ['F64', '<f8'], [5, 7, 11], new Float64Array(385));
      await rejects(
        'ERR_INVALID_INPUT',
        { tensors: [doubles, targets] },
        /file\.safetensors: logits: expected dtype F32, F16 or BF16, got F64$/,
      );
      const floats = tensor('targets', F32, [5, 7], new Float32Array(35));
      await rejects(
        'ERR_INVALID_INPUT',
        { tensors: [logits, floats] },
        /: targets: expected integers .*, got F32$/,
      );
    });

    it('is an error about shapes that do not match', async () => {
      const flat = { ...targets, shape: [35] };
      await rejects(
        'ERR_SHAPE_MISMATCH',
        { tensors: [logits, flat] },
        /: targets: expected \[5, 7\], because logits has shape \[5, 7, 11\], got \[35\]$/,
      );
      const vector = { ...logits, shape: [385] };
      await rejects('ERR_SHAPE_MISMATCH', { tensors: [vector, targets] }, /logits: expected shape \[N, V\]/);
      const empty = tensor('logits', F32, [5, 7, 0], new Float32Array(0));
      await rejects('ERR_SHAPE_MISMATCH', { tensors: [empty, targets] }, /at least one logit per row/);
    });

    it('is an error that names the row of a bad target, before any logits are computed', async () => {
      for (const [value, shown] of [
        [11n, '11'],
        [-1n, '-1'],
        [2n ** 40n, '1099511627776'],
        [2n ** 60n, '1152921504606846976'],
      ] as const) {
        const pattern = new RegExp(
          `file\\.safetensors: targets\\[4, 4\\]: expected a token id from 0 to 10, .*, got ${shown}$`,
        );
        const isWritten = await rejects(
          'ERR_INVALID_INPUT',
          { tensors: [logits, withTarget(32, value)] },
          pattern,
        );
        assert.equal(isWritten, false);
      }
    });

    it('is an error about a temperature or softcap that is not positive', async () => {
      await rejects(
        'ERR_INVALID_OPTION',
        { temperature: 0 },
        /temperature: expected a positive number, got 0$/,
      );
      await rejects('ERR_INVALID_OPTION', { softcap: -1 }, /softcap: expected a positive number, got -1$/);
      const values = new Float32Array(35).fill(1);
      values[33] = -2;
      const temperature = write('stored.npz', [tensor('temperature', F32, [5, 7], values)]);
      await rejects(
        'ERR_INVALID_OPTION',
        { temperature },
        /stored\.npz: temperature\[4, 5\]: expected a positive number, got -2$/,
      );
    });

    it('is an error about the ending of a name, or a missing file', async () => {
      const call = (file: string) => logprobsOfFile({ logits: file, targets: file }, () => async () => {});
      await assert.rejects(call('logits.pt'), isLossError('ERR_INVALID_OPTION', /logits\.pt: .*safetensors/));
      await assert.rejects(
        call(folder.path('none.npz')),
        isLossError('ERR_INVALID_INPUT', /none\.npz: expected a readable file of tensors/),
      );
    });
  });

  for (const name of [...Object.keys(writers), 'logits.npy'])
    it(`${name}, truncated or changed anywhere, gives results or a LossError`, () => {
      const { tensors } = small();
      const targets = folder.write('good.npy', Buffer.concat(npy(tensors[1]!, fields())));
      const whole =
        name === 'logits.npy'
          ? Buffer.concat(npy(tensors[0]!, fields()))
          : readFileSync(write(name, tensors));
      return fc.assert(
        fc.asyncProperty(
          fc.nat(whole.length - 1),
          fc.array(fc.record({ at: fc.nat(Math.min(whole.length - 1, 400)), byte: fc.nat(255) }), {
            maxLength: 4,
          }),
          async (length, changes) => {
            const changed = Buffer.from(whole);
            for (const { at, byte } of changes) changed[at] = byte;
            const isCut = changes.length === 0;
            const logits = folder.write(name, isCut ? changed.subarray(0, length) : changed);
            try {
              await compute({ logits, targets, blockBytes: 100 });
              assert.ok(!isCut);
            } catch (error) {
              assert.ok(error instanceof LossError, `${(error as Error).stack} is not a LossError`);
              if (isCut) assert.match(error.message, new RegExp(name));
            }
          },
        ),
        { numRuns: 150 },
      );
    });

  for (const ending of ['.safetensors', '.npy'])
    it(`takes little memory for a file of 1 GB: ${ending}`, () => {
      const shape = [2 ** 11, 2 ** 17];
      const size = 2 ** 30;
      const file = folder.path(`sparse${ending}`);
      const json = JSON.stringify({ logits: { dtype: 'F32', shape, data_offsets: [0, size] } });
      const head =
        ending === '.npy'
          ? npy({ name: '', dtype: F32, shape, data: Buffer.alloc(0) }, fields())
          : [Buffer.from(BigUint64Array.of(BigInt(json.length)).buffer), Buffer.from(json)];
      const descriptor = openSync(file, 'w');
      const begin = Buffer.concat(head);
      writeSync(descriptor, begin);
      ftruncateSync(descriptor, begin.length + size);
      closeSync(descriptor);
      const ids = new Int32Array(shape[0]!).fill(7);
      const targets = folder.write(
        'targets.npy',
        Buffer.concat(npy(tensor('', I32, [ids.length], ids), fields())),
      );
      const { result, memory } = runAlone<{ tokens: number; logprob: number }>(
        `const { logprobsOfFile } = await import(given[0]);
         return logprobsOfFile({ logits: given[1], targets: given[2] }, () => async () => {});`,
        [PARTS, file, targets],
      );
      assert.equal(result.tokens, ids.length);
      assert.ok(Math.abs(result.logprob + Math.log(2 ** 17)) < 1e-5);

      assert.ok(memory < 400e6, `${memory} bytes`);
    });
});
