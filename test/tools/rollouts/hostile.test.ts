/** Tests that truncated, corrupt and malicious files cause an error that describes the problem, and never a crash. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { deflateRawSync, gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { parquetWriteFile } from 'hyparquet-writer';
import { LossError } from '../../../lib/index.js';
import { readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { isLossError } from '../../support/loss-error.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const fixture = (name: string) => fileURLToPath(new URL(`fixtures/${name}`, import.meta.url));

describe('hostile files', () => {
  const folder = temporaryFolder();

  async function rejects(file: string, ...patterns: RegExp[]) {
    await assert.rejects(readRollouts([file]), (error: unknown) => {
      assert.ok(error instanceof LossError, `${(error as Error).stack} is not a LossError`);
      assert.ok(error.message.startsWith(file), error.message);
      for (const pattern of patterns) assert.match(error.message, pattern);
      return true;
    });
  }

  // Wherever a file is truncated or changed, reading it must give a batch or a LossError.
  for (const name of [
    'rollouts.jsonl.gz',
    'rollouts.csv',
    'padded.safetensors',
    'packed.safetensors',
    'stored.npz',
    'deflated.npz',
  ])
    it(`${name}, truncated or changed anywhere`, () => {
      const bytes = readFileSync(fixture(name));
      return fc.assert(
        fc.asyncProperty(
          fc.nat(bytes.length),
          fc.array(fc.record({ at: fc.nat(bytes.length - 1), byte: fc.nat(255) }), { maxLength: 4 }),
          async (length, changes) => {
            const changed = Buffer.from(bytes);
            for (const { at, byte } of changes) changed[at] = byte;
            const truncated = changes.length === 0 ? changed.subarray(0, length) : changed;
            const file = folder.write(name, truncated);
            try {
              await readRollouts([file]);
            } catch (error) {
              assert.ok(error instanceof LossError, `${(error as Error).stack} is not a LossError`);
            }
          },
        ),
        { numRuns: 150 },
      );
    });

  it('Parquet, truncated or changed anywhere', async () => {
    const whole = fixture('parquet/duckdb-groups.parquet');
    const bytes = readFileSync(whole);
    assert.equal((await readRollouts([whole])).rows, 12000);
    let refused = 0;
    for (let i = 0; i < 40; i++) {
      const changed = Buffer.from(bytes);
      const at = Math.floor((i / 40) * bytes.length);
      if (i % 4 === 0) changed.fill(0xff, at, at + 64);
      else if (i % 4 === 1) changed[at]! ^= 0x55;
      const truncated = i % 4 >= 2 ? changed.subarray(0, at) : changed;
      try {
        // If the file can be read, no row may be missing.
        assert.equal((await readRollouts([folder.write('bad.parquet', truncated)])).rows, 12000);
      } catch (error) {
        assert.ok(error instanceof LossError, `${(error as Error).stack} is not a LossError`);
        refused++;
      }
    }
    assert.ok(refused >= 20);
  });

  it('gzip, invalid or truncated', async () => {
    await rejects(
      folder.write('invalid.jsonl.gz', '{"logprobs":[-1]}'),
      /expected a readable file of rollouts, got an error \(incorrect header check\)/,
    );
    const compressed = gzipSync('{"logprobs":[-1]}\n'.repeat(1000));
    await rejects(
      folder.write('truncated.jsonl.gz', compressed.subarray(0, -20)),
      /got an error \(unexpected end of file\)/,
    );
  });

  it('with long names, of which the error shows the beginning', async () => {
    const long = 'name'.repeat(50_000);
    const header = JSON.stringify({ [long]: { dtype: 'F32', shape: [], data_offsets: [0, 0] } });
    const size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(header.length));
    for (const [file, shown] of [
      [folder.write('long.jsonl', `{"${long}":1}`), /got a row with only namename/],
      [folder.write('twice.jsonl', `{"${long}":1,"${long}":1}`), /namename.*: expected one value, got two/],
      [folder.write('long.csv', `${long},x\n1,2\n`), /got a row with only namename/],
      [folder.write('twice.csv', `${long},${long}\n1,2\n`), /names each column once, got namename/],
      [
        folder.write('long.safetensors', Buffer.concat([size, Buffer.from(header)])),
        /got a file with only namename/,
      ],
    ] as const)
      await assert.rejects(readRollouts([file], { strict: true }), ({ message }: Error) => {
        assert.match(message, shown);
        assert.ok(message.length < 3000, `${message.length} characters`);
        return true;
      });
  });

  describe('tensors', () => {
    type Tensors = Record<string, { dtype: string; shape: unknown; data_offsets: unknown }>;
    const safetensors = (header: Tensors | string, data = Buffer.alloc(64), length?: bigint) => {
      const json = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header));
      const size = Buffer.alloc(8);
      size.writeBigUInt64LE(length ?? BigInt(json.length));
      return folder.write('bad.safetensors', Buffer.concat([size, json, data]));
    };
    const f32 = (shape: number[], begin: number) => ({
      dtype: 'F32',
      shape,
      data_offsets: [begin, begin + 4 * shape.reduce((a, b) => a * b, 1)],
    });
    const logprob = f32([2, 2], 0);

    it('with wrong headers', async () => {
      await rejects(folder.write('bad.safetensors', 'abc'), /expected a header, got a file of 3 bytes/);
      await rejects(
        safetensors({}, undefined, 2n ** 63n),
        /expected a header of at most \d+ bytes, got one of 9223372036854775808/,
      );
      await rejects(safetensors('{"logprob": '), /expected a header in JSON/);
      await rejects(safetensors('[1]'), /expected a JSON object as the header, got an array/);
      for (const entry of [
        null,
        3,
        { dtype: 'F32' },
        { ...logprob, shape: [-1] },
        { ...logprob, shape: [2 ** 40, 2 ** 40] },
      ])
        await rejects(
          safetensors({ logprob: entry } as Tensors),
          /logprob: expected dtype, shape and data_offsets in the header/,
        );
      for (const data_offsets of [
        [0, 65],
        [2 ** 50, 2 ** 51],
        [8, 0],
      ])
        await rejects(
          safetensors({ logprob: { ...logprob, data_offsets } }),
          /expected data_offsets within the 64 bytes/,
        );
      await rejects(
        safetensors({ logprob: { ...logprob, shape: [2 ** 40, 1] } }),
        /expected 4398046511104 bytes for shape \[1099511627776, 1\] of F32/,
      );
      await rejects(safetensors({ logprob: { ...logprob, shape: [0, 2 ** 40] } }), /expected 0 bytes/);
      await rejects(safetensors({ logprob: { ...logprob, dtype: 'F8_E4M3' } }), /dtype F16, .*, got F8_E4M3/);
    });

    it('with headers that are deep or have many values', async () => {
      const deep = (depth: number) => `{"logprob":${'['.repeat(depth)}${']'.repeat(depth)}}`;
      await rejects(
        safetensors(deep(5)),
        /logprob: expected dtype, shape and data_offsets.* got \[\[\[\[\[\]/,
      );
      const limits = /expected a header of at most 1000000 values in 8 levels, got more/;
      await rejects(safetensors(deep(100_000)), limits);
      await rejects(safetensors(`{"logprob":${'{"a":'.repeat(1e6)}`), limits);
      await rejects(safetensors(`{"logprob":[${'[],'.repeat(1e6)}[]]}`), limits);
      const metadata = `"__metadata__":{"format":"${'[{,\\"'.repeat(1e6)}"}`;
      const file = safetensors(`{${metadata},"logprob":${JSON.stringify(logprob)}}`);
      assert.equal((await readRollouts([file])).rows, 2);
    });

    it('that overlap', async () => {
      await rejects(
        safetensors({ logprob, reward: f32([2], 12) }),
        /reward: expected data_offsets from 16, where logprob ends, got \[12, 20\]/,
      );
      await rejects(safetensors({ logprob, old_logprob: logprob }), /expected data_offsets from 16/);
      const { rows } = await readRollouts([safetensors({ reward: f32([2], 16), x: f32([0], 0), logprob })]);
      assert.equal(rows, 2);
    });

    it('with shapes that do not match', async () => {
      await rejects(
        safetensors({ x: logprob }),
        /logprobs or logprob: expected a tensor.* got a file with only x/,
      );
      await rejects(
        safetensors({ logprob: f32([4], 0) }),
        /logprob: expected \[B, T\], or \[N\] with cu_seqlens, got \[4\] without cu_seqlens/,
      );
      await rejects(
        safetensors({ logprob, reward: f32([3], 16) }),
        /reward: expected \[2\], one per row, got \[3\]/,
      );
      await rejects(
        safetensors({ logprob, old_logprob: f32([2, 3], 16) }),
        /old_logprob: expected \[2, 2\], as logprob, got \[2, 3\]/,
      );
      await rejects(
        safetensors({ logprob, advantages: f32([3], 16) }),
        /\[2, 2\], as logprob, or \[2\], one per row/,
      );
      await rejects(safetensors({ logprob: f32([0, 4], 0) }), /got an empty file/);
      await rejects(
        safetensors({ logprob: f32([2 ** 40, 0], 0) }),
        /expected \[B, T\] with T of at least 1, got \[1099511627776, 0\]/,
      );
      await rejects(
        safetensors({ logprob: f32([0, 2 ** 27], 0) }),
        /logprob: expected at most 1048576 tokens in a row, got 134217728\. .*maxRowTokens/,
      );
    });

    it('with wrong offsets', async () => {
      const packed = (offsets: number[]) => {
        const data = Buffer.alloc(16 + 4 * offsets.length);
        offsets.forEach((offset, i) => {
          data.writeInt32LE(offset, 16 + 4 * i);
        });
        const cu_seqlens = { dtype: 'I32', shape: [offsets.length], data_offsets: [16, data.length] };
        return safetensors({ logprob: f32([4], 0), cu_seqlens }, data);
      };
      assert.equal((await readRollouts([packed([0, 1, 1, 4])])).rows, 3);
      await rejects(packed([1, 4]), /cu_seqlens\[0\]: expected 0, got 1/);
      await rejects(packed([0, 3, 2, 4]), /cu_seqlens\[2\]: expected an offset from 3 to 4, got 2/);
      await rejects(packed([0, 5]), /cu_seqlens\[1\]: expected an offset from 0 to 4, got 5/);
      await rejects(packed([0, 3]), /cu_seqlens: expected 4 as the last offset, got 3/);
      await rejects(packed([]), /cu_seqlens: expected \[B \+ 1\] offsets, got \[0\]/);
      await rejects(packed([0]), /got an empty file|expected 4 as the last offset/);
    });

    it('with a wrong value, whose row and column the error names', async () => {
      const file = safetensors(
        { logprob, action_mask: { dtype: 'U8', shape: [2, 2], data_offsets: [16, 20] } },
        Buffer.from([...new Array(16).fill(0), 1, 0, 1, 7]),
      );
      await rejects(file, /row 2: action_mask\[1\]: expected true, false, 0 or 1, got number 7/);
    });
  });

  describe('arrays', () => {
    /**
     * Writes a zip archive of compressed members. `size` is the uncompressed size that the archive states. It may be
     * wrong.
     */
    function npz(...members: [name: string, content: Buffer, size?: number][]): string {
      const locals: Buffer[] = [];
      const centrals: Buffer[] = [];
      let offset = 0;
      for (const [name, content, size = content.length] of members) {
        const data = deflateRawSync(content);
        const local = Buffer.alloc(30);
        local.writeUInt32LE(0x04034b50, 0);
        local.writeUInt16LE(8, 8);
        local.writeUInt32LE(data.length, 18);
        local.writeUInt32LE(size, 22);
        local.writeUInt16LE(name.length, 26);
        const central = Buffer.alloc(46);
        central.writeUInt32LE(0x02014b50, 0);
        central.writeUInt16LE(8, 10);
        central.writeUInt32LE(data.length, 20);
        central.writeUInt32LE(size, 24);
        central.writeUInt16LE(name.length, 28);
        central.writeUInt32LE(offset, 42);
        locals.push(local, Buffer.from(name), data);
        centrals.push(central, Buffer.from(name));
        offset += local.length + name.length + data.length;
      }
      const directory = Buffer.concat(centrals);
      const end = Buffer.alloc(22);
      end.writeUInt32LE(0x06054b50, 0);
      end.writeUInt16LE(members.length, 8);
      end.writeUInt16LE(members.length, 10);
      end.writeUInt32LE(directory.length, 12);
      end.writeUInt32LE(offset, 16);
      return folder.write('bad.npz', Buffer.concat([...locals, directory, end]));
    }

    function npy(header: string, data = Buffer.alloc(16)): Buffer {
      const start = Buffer.from('\x93NUMPY\x01\0\0\0', 'latin1');
      start.writeUInt16LE(header.length, 8);
      return Buffer.concat([start, Buffer.from(header), data]);
    }
    const header = (descr: string, shape: string, fortran = 'False') =>
      `{'descr': ${descr}, 'fortran_order': ${fortran}, 'shape': ${shape}, }\n`;

    it('that are correct can be read', async () => {
      const { batch } = await readRollouts([npz(['logprob.npy', npy(header("'<f4'", '(2, 2)'))])]);
      assert.deepEqual(batch.cuSeqlens, Int32Array.of(0, 2, 4));
    });

    it('with wrong headers', async () => {
      await rejects(
        folder.write('bad.npz', 'no archive'),
        /expected a readable file of rollouts, got an error \(.*end of central directory/i,
      );
      await rejects(
        npz(['logprob.npy', Buffer.from('no array at all')]),
        /logprob: expected an array in version 1, 2 or 3 of the \.npy format/,
      );
      await rejects(npz(['logprob.txt', npy(header("'<f4'", '(2, 2)'))]), /got a file without columns/);
      await rejects(
        npz(['logprob.npy', npy(header("'|O'", '(2, 2)'))]),
        /logprob: expected an array of floats, .* got dtype \|O/,
      );
      await rejects(
        npz(['logprob.npy', npy(header("[('a', '<f4')]", '(2, 2)'))]),
        /expected descr, fortran_order and shape/,
      );
      await rejects(
        npz(['logprob.npy', npy(header("'<f4'", '(9999999999, 9999999999)'))]),
        /expected descr, fortran_order/,
      );
      await rejects(
        npz(['logprob.npy', npy(header("'<f4'", '(2, 99999999)'))]),
        /expected \d+ bytes for the header and shape \[2, 99999999\]/,
      );
      await rejects(npz(['logprob.npy', npy(header("'<f4'", '(2,)'), Buffer.alloc(8))]), /expected \[B, T\]/);
      await rejects(npz(['logprob.npy', npy('x'.repeat(20))]), /expected descr/);
      await rejects(
        npz(['logprob.npy', npy(header("'<U2'", '(2, 1)'))]),
        /row 1: logprobs\[0\]: expected a number, got ''/,
      );
      const long = Buffer.from('\x93NUMPY\x02\0\xff\xff\xff\x7f', 'latin1');
      await rejects(npz(['logprob.npy', long]), /expected a header of at most 1048576 bytes/);
    });

    it('with a wrong size do not exhaust the memory', async () => {
      const claim = npy(header("'<f4'", '(1, 60000000)'), Buffer.alloc(0));
      const before = process.memoryUsage().rss;
      const file = npz(['logprob.npy', claim, claim.length + 240_000_000]);
      await rejects(file, /logprob: expected at most 1048576 tokens in a row, got 60000000\. .*maxRowTokens/);
      await assert.rejects(
        readRollouts([file], { maxRowTokens: 60_000_000 }),
        isLossError('ERR_INVALID_INPUT', /not enough bytes in the stream|more bytes/),
      );
      assert.ok(process.memoryUsage().rss - before < 100e6);
    });

    it('with elements of much text are read a few at a time', async () => {
      const letters = 20_000;
      const ids = npy(header(`'<U${letters}'`, '(1000, 1)'), Buffer.alloc(1000 * letters * 4));
      const numbers = npy(header("'<f4'", '(1000, 1)'), Buffer.alloc(4000));
      const file = npz(['task_id.npy', ids], ['logprob.npy', numbers]);
      const before = process.memoryUsage().rss;
      assert.equal((await readRollouts([file])).rows, 1000);
      const grown = process.memoryUsage().rss - before;
      assert.ok(grown < 80e6, `${grown} bytes`);
    });

    it('with more text per row than a limit', async () => {
      const texts = npy(header("'<U1000000'", '(1, 40)'), Buffer.alloc(160_000_000));
      const row = npy(header("'<f4'", '(1, 40)'), Buffer.alloc(160));
      const parts = streamRollouts([npz(['tokens.npy', texts], ['logprob.npy', row])], { keep: ['tokens'] });
      await assert.rejects(
        parts.next(),
        isLossError('ERR_INVALID_INPUT', /tokens: expected at most 134217728 bytes per row, got 160000000/),
      );
    });

    it('with ids above 2^53, exactly', async () => {
      const ids = BigInt64Array.of(9007199254740993n, 9007199254740992n, 9007199254740993n, -(2n ** 63n));
      const unsigned = BigUint64Array.of(2n ** 64n - 1n, 2n ** 64n - 2n, 2n ** 64n - 1n, 1n);
      const file = npz(
        ['logprob.npy', npy(header("'<f4'", '(4, 1)'))],
        ['task_id.npy', npy(header("'<i8'", '(4,)'), Buffer.from(ids.buffer))],
        ['run_id.npy', npy(header("'<u8'", '(4,)'), Buffer.from(unsigned.buffer))],
      );
      const { batch } = await readRollouts([file]);
      assert.deepEqual(batch.groupIds, Int32Array.of(0, 1, 0, 2));
      assert.deepEqual(batch.runIds, Int32Array.of(0, 1, 0, 2));
    });

    it('in Fortran order must be small', async () => {
      const claim = npy(header("'<f4'", '(5000, 5000)', 'True'), Buffer.alloc(100_000_000));
      await rejects(npz(['logprob.npy', claim]), /np\.ascontiguousarray/);
    });
  });

  describe('tables', () => {
    it('that are not Parquet', async () => {
      await rejects(
        folder.write('bad.parquet', '{"logprobs":[-1]}'),
        /expected a Parquet file, got a file without its signature/,
      );
      await rejects(folder.write('bad.parquet', ''), /expected a Parquet file/);
      await rejects(folder.path('nowhere.parquet'), /got nothing: no such file/);
    });

    it('that are not SQLite', async () => {
      await rejects(folder.write('bad.db', '{"logprobs":[-1]}'), /expected an SQLite 3 database/);
      await rejects(folder.path('nowhere.sqlite#x'), /got nothing: no such file/);
    });

    it('with missing columns or wrong values', async () => {
      const file = folder.path("it's.parquet");
      const write = (columns: Record<string, unknown[]>) =>
        parquetWriteFile({
          filename: file,
          columnData: Object.entries(columns).map(([name, data]) => ({ name, data })),
        });
      write({ logprob: [1.5], text: ['a'] });
      await rejects(
        file,
        /logprobs: expected a column .* got a table with only logprob, text\. Did you mean logprob\? /,
      );
      write({ logprobs: ['[-1, true]'] });
      await rejects(file, /row 1: logprobs\[1\]: expected a number, got boolean true/);
      write({ logprobs: ['[-1]', null] });
      await rejects(file, /row 2: logprobs: expected a list of numbers/);
      write({ logprobs: ['[-1.5]'], reward: [new Date(0)] });
      await rejects(file, /row 1: reward: expected a number.* got text that does not parse/);
      write({ logprobs: [] });
      await rejects(file, /got an empty file/);
    });
  });
});
