/** Tests `policy-loss logprobs`, and that `evaluate` reads the files that it writes. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { logprobsSync } from '../../../lib/index.js';
import { openSafetensors } from '../../../lib/tools/rollouts/tensor/safetensors.js';
import { Fields } from '../../fuzz-files/fields.js';
import { F32, I64, npy, safetensorsOf, type Tensor } from '../../fuzz-files/tensor-files.js';
import { generator } from '../../support/random.js';
import { assertSameArray } from '../../support/tolerance.js';
import { Files, fails, run, runJson } from './support.js';

const [ROWS, COLUMNS, VOCABULARY] = [4, 6, 13] as const;
const N = ROWS * COLUMNS;
const COLUMNS_OUT = ['logsumexp', 'logprobs', 'entropy', 'action_mask'];

describe('logprobs', () => {
  const files = new Files();
  after(() => files.remove());

  const { normal, integer } = generator(11);
  const logits = Float32Array.from({ length: N * VOCABULARY }, () => 2 * normal());
  const targets = Int32Array.from({ length: N }, (_, i) => (i % 5 === 4 ? -100 : integer(0, VOCABULARY - 1)));
  const expected = logprobsSync(logits, {
    shape: [N, VOCABULARY],
    targets,
    temperature: 0.8,
    softcap: 20,
    entropy: true,
  });
  const columns = { logsumexp: expected.logsumexp, logprobs: expected.logprob, entropy: expected.entropy! };
  const mask = Uint8Array.from(targets, (target) => Number(target !== -100));

  const write = (name: string, pieces: readonly Buffer[]) => {
    writeFileSync(files.path(name), Buffer.concat(pieces));
    return files.path(name);
  };
  const tensors = (shape: number[], ids: Int32Array = targets): [Tensor, Tensor] => [
    { name: 'logits', dtype: F32, shape: [...shape, VOCABULARY], data: Buffer.from(logits.buffer) },
    { name: 'targets', dtype: I64, shape, data: Buffer.from(BigInt64Array.from(ids, BigInt).buffer) },
  ];
  const input = (shape: number[], ids?: Int32Array) =>
    write('in.safetensors', safetensorsOf(tensors(shape, ids), new Fields()));
  const words = (file: string, out: string) => [
    'logprobs',
    ...['--logits', file, '--targets', `${file}:targets`, '--out', out],
    ...['--temperature', '0.8', '--softcap', '20', '--entropy'],
  ];

  async function tensorsIn(file: string) {
    const opened = await openSafetensors(file);
    const found: Record<string, { shape: readonly number[]; values: ArrayLike<number | string> }> = {};
    for (const name of opened.names) {
      const { shape, dtype, open } = await opened.tensor(name);
      const reader = await open();
      const size = shape.reduce((product, n) => product * n, 1);
      found[name] = { shape, values: dtype.decode(await reader.read(size * dtype.bytes)) };
    }
    await opened.close();
    return found;
  }

  for (const shape of [[ROWS, COLUMNS], [N]]) {
    it(`writes tensors of the shape [${shape}]`, async () => {
      const out = files.path('out.safetensors');
      const printed = await runJson(...words(input(shape), out));
      const found = await tensorsIn(out);
      assert.deepEqual(Object.keys(found), COLUMNS_OUT);
      for (const [name, values] of Object.entries({ ...columns, action_mask: mask })) {
        assert.deepEqual(found[name]!.shape, shape);
        assertSameArray(found[name]!.values as ArrayLike<number>, values, name);
      }
      const counted = Array.from(expected.logprob).filter((_, i) => mask[i] === 1);
      const { meanLogprob, meanEntropy, bytes, ...rest } = printed;
      assert.deepEqual(rest, { file: out, shape, vocabulary: VOCABULARY, tokens: counted.length });
      assert.ok(Math.abs(meanLogprob - counted.reduce((sum, x) => sum + x, 0) / counted.length) < 1e-12);
      assert.ok(meanEntropy > 0);
      assert.equal(bytes, readFileSync(out).length);
    });

    it(`writes JSON lines of the shape [${shape}]`, async () => {
      const out = files.path('out.jsonl');
      const { code, stdout } = await run(...words(input(shape), out));
      assert.equal(code, 0);
      assert.match(stdout, /mean log-probability +-\d/);
      const lines = readFileSync(out, 'utf8')
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line));
      assert.equal(lines.length, shape[0]);
      for (const [name, values] of Object.entries({ ...columns, action_mask: mask })) {
        const read = lines.flatMap((line) => line[name]);
        assertSameArray(values instanceof Float64Array ? read : Float32Array.from(read), values, name);
        assert.equal(Array.isArray(lines[0][name]), shape.length === 2);
      }
    });
  }

  it('writes files that evaluate reads', async () => {
    const results = [];
    for (const name of ['out.safetensors', 'out.jsonl']) {
      const out = files.path(name);
      const { meanLogprob, meanEntropy } = await runJson(...words(input([ROWS, COLUMNS]), out));
      const { loss, rows, tokens } = await runJson('evaluate', out, '--loss', 'sft');
      assert.deepEqual([rows, tokens], [ROWS, mask.reduce((sum, x) => sum + x, 0)]);
      assert.ok(Math.abs(loss + meanLogprob) < 1e-6);
      results.push([loss, meanLogprob, meanEntropy]);
    }
    assert.deepEqual(results[0], results[1]);
  });

  it('reads temperatures from a tensor, and leaves out the entropies if they are not wanted', async () => {
    const temperature = write(
      'temperature.npy',
      npy(
        {
          name: '',
          dtype: ['F64', '<f8'],
          shape: [N],
          data: Buffer.from(new Float64Array(N).fill(0.8).buffer),
        },
        new Fields(),
      ),
    );
    const out = files.path('plain.safetensors');
    const file = input([N]);
    const given = ['--logits', file, '--targets', file, '--temperature', temperature, '--softcap', '20'];
    const printed = await runJson('logprobs', ...given, '--out', out);
    assert.ok(!('meanEntropy' in printed));
    const found = await tensorsIn(out);
    assert.deepEqual(Object.keys(found), ['logsumexp', 'logprobs', 'action_mask']);
    assertSameArray(found.logprobs!.values as ArrayLike<number>, expected.logprob, 'logprobs');
    const { stdout } = await run('logprobs', ...given, '--out', out, '--csv');
    assert.match(stdout, /^file,shape,vocabulary,tokens,meanLogprob,bytes\n.*,24,13,/);
  });

  it('fails without a trace of a file, and names the row', async () => {
    const ids = targets.slice();
    ids[9] = VOCABULARY;
    const file = input([ROWS, COLUMNS], ids);
    const before = readdirSync(files.directory);
    await fails(
      1,
      words(file, files.path('never.jsonl')),
      /in\.safetensors: targets\[1, 3\]: expected a token id/,
    );
    // The error of a temperature is found when a block is computed.
    const good = input([ROWS, COLUMNS]);
    await fails(2, [...words(good, files.path('never.jsonl')), '--temperature', '-1'], /temperature/);
    assert.deepEqual(readdirSync(files.directory), before);
  });

  it('refuses to write to a file that it reads, or to a file of an unknown format', async () => {
    const file = input([N]);
    await fails(2, words(file, file), /--out .*: expected a file other than the files that are read/);
    await fails(2, words(file, files.path('out.npz')), /out\.npz: expected a name that ends in one of/);
    await fails(2, [...words(file, files.path('out.jsonl')), '--softcap', 'x'], /Expected a number/);
  });
});
