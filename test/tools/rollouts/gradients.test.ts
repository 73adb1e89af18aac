/** Tests files of gradients: other programs or this package must be able to read them. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { parquetMetadata, parquetReadObjects } from 'hyparquet';
import {
  type GradientOptions,
  readRollouts,
  streamRollouts,
  writeGradients,
} from '../../../lib/tools/rollouts/index.js';
import { fromHalf, type Half, toHalf } from '../../support/half.js';

const LINES = fileURLToPath(new URL('fixtures/rollouts.jsonl', import.meta.url));
const IDS = ['task_id', 'run_id', 'prompt', 'nothing'];

describe('writing gradients', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));
  });
  afterEach(() => rmSync(directory, { recursive: true }));

  /** Writes a file of gradients. Its values are columns of the rollouts, so that tests know what to expect. */
  async function write(
    name: string,
    options: GradientOptions & { entropy?: boolean; files?: string[] } = {},
  ) {
    const { entropy = true, files = [LINES], ...rest } = options;
    const file = join(directory, name);
    const writer = writeGradients(file, { ids: IDS, ...rest });
    for await (const part of streamRollouts(files, { keep: IDS, maxTokens: 9 }))
      await writer.add(part, part.batch.logprob, entropy ? (part.batch.entropy as Float32Array) : undefined);
    const written = await writer.close();
    assert.equal(written.bytes, readFileSync(file).length);
    return { file, ...written };
  }

  const expectedRows = () =>
    readFileSync(LINES, 'utf8')
      .trim()
      .split('\n')
      .map((line, i) => {
        const { task_id, run_id, prompt, logprobs, entropy } = JSON.parse(line);
        return { file: LINES, row: i + 1, task_id, run_id, prompt, grad: logprobs, grad_entropy: entropy };
      });

  for (const name of ['gradients.jsonl', 'gradients.jsonl.gz'])
    it(`as JSON lines: ${name}`, async () => {
      const { file, rows, tokens } = await write(name);
      assert.deepEqual({ rows, tokens }, { rows: 6, tokens: 22 });
      const bytes = readFileSync(file);
      const text = (name.endsWith('.gz') ? gunzipSync(bytes) : bytes).toString();
      // Each number must be written with the fewest digits that identify the float32. It then equals the number in the
      // rollouts.
      assert.deepEqual(
        text
          .trim()
          .split('\n')
          .map((line) => JSON.parse(line)),
        expectedRows(),
      );
    });

  it('as JSON lines, with any float32', async () => {
    const floats = Float32Array.of(
      0,
      -0,
      1e-45,
      3.4028234663852886e38,
      1 / 3,
      16777217,
      0.1,
      -1e-7,
      123456.789,
    );
    const rows = join(directory, 'rows.jsonl');
    writeFileSync(rows, JSON.stringify({ logprobs: Array.from(floats) }));
    const { file } = await write('out.jsonl', { files: [rows], entropy: false });
    const { grad } = JSON.parse(readFileSync(file, 'utf8'));
    // JSON.stringify() wrote −0 as 0. Adding 0 turns −0 into 0, so that the comparison accepts this.
    assert.deepEqual(
      Float32Array.from(grad, (x: number) => x + 0),
      floats.map((x) => x + 0),
    );
  });

  it('as Parquet', async () => {
    const { file } = await write('gradients.parquet');
    const { schema } = parquetMetadata(readFileSync(file));
    const list = (name: string) => [`${name} LIST`, 'list ', 'element FLOAT'];
    assert.deepEqual(
      schema.slice(1).map(({ name, converted_type, type }) => `${name} ${converted_type ?? type ?? ''}`),
      [
        ...['file UTF8', 'row INT64', 'task_id INT64', 'run_id UTF8', 'prompt UTF8'],
        ...list('grad'),
        ...list('grad_entropy'),
      ],
    );
    const { batch } = await readRollouts([file], { rename: { logprobs: 'grad', entropy: 'grad_entropy' } });
    const { batch: read } = await readRollouts([LINES], { columns: ['entropy', 'task_id', 'run_id'] });
    // A file of gradients has no mask, because masked tokens have gradient 0. So all its tokens are read as unmasked.
    read.actionMask.fill(1);
    assert.deepEqual(batch, read);
  });

  it('as packed tensors', async () => {
    const { file } = await write('gradients.safetensors', { files: [LINES, LINES] });
    const { batch } = await readRollouts([file], { rename: { logprobs: 'grad', entropy: 'grad_entropy' } });
    const { batch: read } = await readRollouts([LINES, LINES], { columns: ['entropy', 'task_id', 'run_id'] });
    // A file of gradients has no mask, because masked tokens have gradient 0. So all its tokens are read as unmasked.
    read.actionMask.fill(1);
    assert.deepEqual(batch, read);
  });

  describe('in 16 bits', () => {
    // Each finite number of 16 bits, the numbers in the middle between two, and what is next to these.
    const floats = (dtype: Half) => {
      const numbers = Float32Array.from({ length: 2 ** 15 }, (_, bits) => fromHalf(bits, dtype)).filter(
        Number.isFinite,
      );
      const middles = numbers.map((x, i) => (x + (numbers[i + 1] ?? 2 * x)) / 2);
      const all = [...numbers, ...middles, 65519.99, 65520, 3.4e38, 1e-45, Infinity];
      for (const middle of middles) all.push(next(middle, 1), next(middle, -1));
      return Float32Array.from([...all, ...all.map((x) => -x), NaN]);
    };
    const next = (x: number, ulps: number) => {
      const value = Float32Array.of(x);
      new Int32Array(value.buffer)[0]! += ulps;
      return value[0]!;
    };
    /** Writes two gradients of one row each, and returns the file. */
    const writeRows = async (name: string, options: GradientOptions, grad: Float32Array) => {
      const rows = join(directory, 'rows.jsonl');
      const row = (tokens: number) => JSON.stringify({ logprobs: new Array(tokens).fill(-1) });
      writeFileSync(rows, [row(grad.length - 3), row(3)].join('\n'));
      const file = join(directory, name);
      const writer = writeGradients(file, options);
      for await (const part of streamRollouts([rows]))
        await writer.add(
          part,
          grad,
          grad.map((x) => x / 2),
        );
      await writer.close();
      return readFileSync(file);
    };

    for (const dtype of ['float16', 'bfloat16'] as const)
      for (const layout of ['packed', 'padded'] as const)
        it(`as ${layout} tensors of ${dtype}, which are rounded to nearest`, async () => {
          const grad = floats(dtype);
          const data = await writeRows('g.safetensors', { dtype, layout }, grad);
          const start = 8 + Number(data.readBigUInt64LE(0));
          const { __metadata__, ...entries } = JSON.parse(data.toString('utf8', 8, start)) as Record<
            string,
            { dtype: string; shape: number[]; data_offsets: [number, number] }
          >;
          const columns = { grad, grad_entropy: grad.map((x) => x / 2) };
          for (const [name, floats] of Object.entries(columns)) {
            const { dtype: stored, shape, data_offsets } = entries[name]!;
            assert.equal(stored, dtype === 'float16' ? 'F16' : 'BF16');
            const longest = grad.length - 3;
            assert.deepEqual(shape, layout === 'packed' ? [grad.length] : [2, longest]);
            const [begin, end] = data_offsets;
            const bits = new Uint16Array(
              data.buffer.slice(data.byteOffset + start + begin, data.byteOffset + start + end),
            );
            const first = Array.from(bits.subarray(0, longest));
            const second = bits.subarray(longest, longest + 3);
            [...first, ...second].forEach((found, i) => {
              const expected = Number.isNaN(floats[i]) ? undefined : toHalf(floats[i]!, dtype);
              if (expected === undefined) assert.ok(Number.isNaN(fromHalf(found, dtype)));
              else if (found !== expected) assert.fail(`${name}: ${floats[i]} is ${found}, not ${expected}`);
            });
            assert.ok(bits.subarray(longest + 3).every((x) => x === 0));
          }
          for (const [name, { dtype, data_offsets }] of Object.entries(entries))
            assert.equal(data_offsets[0] % (dtype === 'I64' ? 8 : 2), 0, `${name} is not aligned`);
        });

    it('as Parquet with float16, which is rounded to nearest', async () => {
      const grad = floats('float16');
      const data = await writeRows('g.parquet', { dtype: 'float16' }, grad);
      const { schema } = parquetMetadata(data);
      const elements = schema.filter(({ name }) => name === 'element');
      assert.deepEqual(
        elements.map(({ logical_type }) => logical_type),
        [{ type: 'FLOAT16' }, { type: 'FLOAT16' }],
      );
      const rows = await parquetReadObjects({
        file: data.buffer.slice(data.byteOffset, data.byteOffset + data.length),
      });
      const found = rows.flatMap(({ grad }) => grad as number[]);
      const expected = Array.from(grad, (x) =>
        Number.isNaN(x) ? x : fromHalf(toHalf(x, 'float16'), 'float16'),
      );
      assert.deepEqual(found, expected);
    });

    it('are refused by the formats that lack them', () => {
      for (const [name, dtype, expected] of [
        [
          'g.parquet',
          'bfloat16',
          /dtype: expected float32 or float16 for a file that ends in \.parquet, got bfloat16.*Files of \.safetensors/,
        ],
        ['g.safetensors', 'float64' as 'float32', /dtype: expected .*, got float64$/],
        ['g.jsonl.gz', 'float16', /dtype: expected float32 for a file that ends in \.jsonl, got float16/],
      ] as const)
        assert.throws(() => writeGradients(join(directory, name), { dtype }), {
          code: 'ERR_INVALID_OPTION',
          message: expected,
        });
    });
  });

  it('as padded tensors, read by Python', async function () {
    const { file } = await write('gradients.safetensors', { layout: 'padded', entropy: false });
    const script = `
import json, struct, sys
data = open(sys.argv[1], 'rb').read()
(length,) = struct.unpack('<Q', data[:8])
header = json.loads(data[8 : 8 + length])
formats = {'F32': 'f', 'I64': 'q', 'F64': 'd'}
tensors = {}
end = 0
for name, entry in header.items():
    if name == '__metadata__':
        continue
    begin, end = entry['data_offsets']
    values = struct.unpack('<%d%s' % ((end - begin) // struct.calcsize(formats[entry['dtype']]), formats[entry['dtype']]), data[8 + length + begin : 8 + length + end])
    tensors[name] = {'shape': entry['shape'], 'values': values}
print(json.dumps({'aligned': length % 8 == 0, 'whole': 8 + length + end == len(data), 'metadata': header['__metadata__'], 'tensors': tensors}))`;
    const { stdout, error } = spawnSync('python3', ['-c', script, file], { encoding: 'utf8' });
    if (error) return this.skip();
    const { aligned, whole, metadata, tensors } = JSON.parse(stdout);
    assert.ok(aligned && whole);
    const rows = expectedRows();
    assert.deepEqual(tensors.grad.shape, [6, 7]);
    assert.deepEqual(
      Float32Array.from(tensors.grad.values),
      Float32Array.from(rows.flatMap(({ grad }) => [...grad, ...new Array(7 - grad.length).fill(0)])),
    );
    assert.deepEqual(
      tensors.lengths.values,
      rows.map(({ grad }) => grad.length),
    );
    assert.deepEqual(
      tensors.task_id.values,
      rows.map(({ task_id }) => task_id),
    );
    assert.deepEqual(tensors.row.values, [1, 2, 3, 4, 5, 6]);
    for (const name of ['run_id', 'prompt', 'file'] as const)
      assert.deepEqual(
        tensors[name].values.map((index: number) => JSON.parse(metadata[name])[index]),
        rows.map((row) => row[name]),
      );
    assert.equal(tensors.grad_entropy ?? tensors.nothing, undefined);
  });

  it('with ids that only some rows have, or that have several types', async () => {
    const rows = join(directory, 'rows.jsonl');
    const ids = [{ id: 1, mark: 2.5 }, { id: 'a', mark: 3 }, { mark: -1 }, { id: [1], mark: 0 }];
    writeFileSync(rows, ids.map((id) => JSON.stringify({ logprobs: [-1], ...id })).join('\n'));
    const files = { files: [rows], ids: ['id', 'mark'], entropy: false };
    const written = async (name: string) => {
      const { file } = await write(name, files);
      for await (const { kept } of streamRollouts([file], {
        rename: { logprobs: 'grad' },
        keep: ['id', 'mark'],
      }))
        return kept;
    };
    // write() above keeps only the columns IDS, and these rows have none of them.
    assert.deepEqual(await written('out.jsonl'), [{}, {}, {}, {}]);
    const keep = ['id', 'mark'];
    for (const [name, expected] of Object.entries({
      'out.jsonl': ids,
      'out.parquet': [{ id: '1', mark: 2.5 }, { id: 'a', mark: 3 }, { mark: -1 }, { id: '[1]', mark: 0 }],
      'out.safetensors': [
        { id: 0, mark: 2.5 },
        { id: 1, mark: 3 },
        { id: -1, mark: -1 },
        { id: 2, mark: 0 },
      ],
    })) {
      const file = join(directory, name);
      const writer = writeGradients(file, { ids: keep });
      for await (const part of streamRollouts([rows], { keep })) await writer.add(part, part.batch.logprob);
      await writer.close();
      for await (const { kept } of streamRollouts([file], { rename: { logprobs: 'grad' }, keep }))
        assert.deepEqual(kept, expected);
    }
  });

  it('leaves nothing behind when aborted', async () => {
    for (const name of ['a.jsonl', 'a.safetensors']) {
      const writer = writeGradients(join(directory, name));
      for await (const part of streamRollouts([LINES])) await writer.add(part, part.batch.logprob);
      await writer.abort();
      assert.deepEqual(readdirSync(directory), []);
    }
    await write('b.parquet');
    assert.deepEqual(readdirSync(directory), ['b.parquet']);
  });

  it('without rows, writes a file without rows', async () => {
    const file = join(directory, 'none.safetensors');
    assert.deepEqual({ ...(await writeGradients(file).close()), bytes: 0 }, { rows: 0, tokens: 0, bytes: 0 });
    assert.ok(readFileSync(file).length > 8);
  });

  it('rejects unwritable files, wrong lengths and reserved ids', async () => {
    assert.throws(() => writeGradients(join(directory, 'a.txt')), {
      code: 'ERR_INVALID_OPTION',
      message: /a\.txt: expected a name that ends in one of \.safetensors, \.parquet, \.jsonl/,
    });
    assert.throws(() => writeGradients(join(directory, 'a.jsonl'), { ids: ['grad'] }), {
      code: 'ERR_INVALID_OPTION',
    });
    await assert.rejects(writeGradients(join(directory, 'nowhere', 'a.jsonl')).close(), {
      code: 'ERR_INVALID_INPUT',
      message: /nowhere.a\.jsonl: expected a writable file, got nothing: no such file/,
    });
    const writer = writeGradients(join(directory, 'a.jsonl'));
    for await (const part of streamRollouts([LINES]))
      await assert.rejects(writer.add(part, new Float32Array(3)), {
        code: 'ERR_SHAPE_MISMATCH',
        message: 'grad: expected 22 values, one per token, got 3',
      });
    for await (const part of streamRollouts([LINES])) {
      await writer.add(part, part.batch.logprob);
      await assert.rejects(writer.add(part, part.batch.logprob, part.batch.logprob), {
        message: 'gradEntropy: expected an array with every part or with none, got a part with it',
      });
    }
    await writer.abort();
  });
});
