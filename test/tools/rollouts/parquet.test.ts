/** Tests the reading of Parquet files: of every type of column, and of files that claim far more than they hold. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { parquetWriteFile } from 'hyparquet-writer';
import { readRollouts, type StreamOptions, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { isLossError } from '../../support/loss-error.js';
import { temporaryFolder } from '../../support/temporary-folder.js';
import {
  group,
  list,
  parquetOf,
  parquetWithFooter,
  parquetWithSchema,
  type RepeatedColumn,
  struct,
  writeLongParquet,
} from './parquet-file.js';
import { readApart } from './read-apart.js';

const fixture = (name: string) => fileURLToPath(new URL(`fixtures/parquet/${name}.parquet`, import.meta.url));

describe('Parquet', () => {
  const folder = temporaryFolder();

  function fileOf(content: Buffer): string {
    const file = folder.path('made.parquet');
    writeFileSync(file, content);
    return file;
  }

  async function partOf(file: string, options: StreamOptions) {
    for await (const part of streamRollouts([file], options)) return part;
    return assert.fail('no part');
  }

  const rejects = (file: string, message: RegExp) =>
    assert.rejects(readRollouts([file]), isLossError('ERR_INVALID_INPUT', message));

  it('rows of any lengths, as JSON lines have them', async () => {
    const lengths = [0, 1, 2047, 2048, 2049, 0, 0, 5000, 3, 1, 4096, 7];
    const rows = lengths.flatMap((length, i) => {
      const values = (start: number) => Array.from({ length }, (_, t) => start + i + t / 8192);
      const row = { logprobs: values(-9), old_logprobs: values(-8), advantages: values(0), reward: i / 4 };
      return [row, { ...row, advantages: values(1) }];
    });
    const texts = rows.map((_, i) => 'x'.repeat(999 * i));
    const jsonl = folder.path('rows.jsonl');
    writeFileSync(
      jsonl,
      rows.map((row, i) => JSON.stringify({ ...row, task_id: `id ${i % 5}`, text: texts[i] })).join('\n'),
    );
    const list = (name: keyof (typeof rows)[0], type: 'FLOAT' | 'DOUBLE') => ({
      data: { name, data: rows.map((row) => row[name]) },
      schema: [
        { name, repetition_type: 'OPTIONAL' as const, converted_type: 'LIST' as const, num_children: 1 },
        { name: 'list', repetition_type: 'REPEATED' as const, num_children: 1 },
        { name: 'element', repetition_type: 'OPTIONAL' as const, type },
      ],
    });
    const lists = [list('logprobs', 'FLOAT'), list('old_logprobs', 'DOUBLE'), list('advantages', 'FLOAT')];
    const file = folder.path('rows.parquet');
    parquetWriteFile({
      filename: file,
      columnData: [
        ...lists.map(({ data }) => data),
        { name: 'reward', data: rows.map(({ reward }) => reward) },
        { name: 'task_id', data: rows.map((_, i) => `id ${i % 5}`) },
        { name: 'text', data: texts },
      ],
      schema: [
        { name: 'root', num_children: 6 },
        ...lists.flatMap(({ schema }) => schema),
        { name: 'reward', type: 'DOUBLE' },
        { name: 'task_id', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
        { name: 'text', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
      ],
      rowGroupSize: 7,
      pageSize: 1000,
    });
    for (const maxTokens of [1, 4000, 1e6]) {
      const parts: unknown[][] = [];
      for (const name of [file, jsonl]) {
        const read = [];
        for await (const { batch, kept } of streamRollouts([name], { maxTokens, keep: ['text'] }))
          read.push({ batch, kept: kept.map((row) => ({ ...row })) });
        parts.push(read);
      }
      assert.deepEqual(parts[0], parts[1]);
    }
  });

  it('columns of every type', async () => {
    const { batch } = await readRollouts([fixture('duckdb-types')]);
    assert.deepEqual(batch, {
      cuSeqlens: Int32Array.of(0, 2),
      logprob: Float32Array.of(-1.5, -2),
      actionMask: Uint8Array.of(1, 0),
      oldLogprob: Float32Array.of(1, 2),
      rewards: Float64Array.of(Number.NaN),
      expertMask: Uint8Array.of(1),
      step: Float64Array.of(3),
      values: Float32Array.of(1, 2),
      groupIds: Int32Array.of(0),
      runIds: Int32Array.of(0),
    });
  });

  const MOMENT = '2026-01-02 03:04:05';
  it('kept columns of every type of DuckDB', async () => {
    const kept = {
      prompt: [{ role: 'user', content: 'said "x"' }],
      tokens: ['one', null, 'två'],
      map: { a: [1.5], b: null, c: [] },
      date: '2026-01-01',
      old_date: '0044-03-15 (BC)',
      ids: [1, null],
      empty: [],
      bytes: 'x\\x22\\xE9',
      micros: `${MOMENT}.6789`,
      millis: '1969-12-31 23:59:59.5',
      nanos: `${MOMENT}.123456789`,
      time: '01:02:03.5',
      decimal: 1.5,
      lists: [[1, 2], [], null, [null]],
      struct: { a: { b: null, c: [{ d: 1 }] }, e: null },
      unsigned: '18446744073709551615',
      word: 4_000_000_000,
      tiny: -5,
      flags: [true, null],
      enum: 'small',
      uuid: '12345678-1234-1234-1234-123456789abc',
      json: '{"a": 1}',
    };
    const part = await partOf(fixture('duckdb-kept'), { keep: [...Object.keys(kept), 'nothing'] });
    assert.deepEqual({ ...part.kept[0] }, kept);
  });

  it('kept columns of every type of Arrow', async () => {
    const kept = [
      {
        prompt: [{ role: 'user', content: 'said "x"' }, null],
        tokens: ['one', null, 'två'],
        map: JSON.parse('{ "a": [1.5], "__proto__": null }'),
        date: '2026-01-01',
        moment: `${MOMENT}.6789`,
        moment_utc: `${MOMENT}.6789+00`,
        time: '01:02:03',
        decimal: -1.5,
        bytes: 'x\\x00\\xFF',
        fixed: 'abcd',
        half: 1.5,
        unsigned: '18446744073709551615',
        big: '9223372036854775807',
        struct: { a: { b: [1, null], c: 'x' } },
        lists: [[1.5], [], null, [null]],
      },
      { prompt: [], unsigned: 1, big: '-9007199254740993', struct: { a: null }, lists: [[2.5, 3.5]] },
    ];
    const part = await partOf(fixture('arrow-kept'), { keep: Object.keys(kept[0]!) });
    assert.deepEqual(
      part.kept.map((row) => ({ ...row })),
      kept,
    );
    const old = await partOf(fixture('arrow-int96'), { keep: ['moment'] });
    assert.deepEqual({ ...old.kept[0] }, { moment: `${MOMENT}.6789` });
  });

  it('lists of a fixed length, and of 16-bit floats with a null', async () => {
    const { batch } = await readRollouts([fixture('arrow-fixed-lists')]);
    assert.deepEqual(batch.logprob, Float32Array.of(-1, -2, -3, -4));
    const large = await readRollouts([fixture('arrow-large')]);
    assert.ok(Number.isNaN(large.batch.logprob.at(-1)));
  });

  it('ids above 2^53, exactly', async () => {
    const ids = [9007199254740993n, 9007199254740992n, 9007199254740993n, 2n ** 63n - 1n, -(2n ** 63n)];
    for (const name of ['duckdb-ids', 'duckdb-decimal-ids']) {
      const { batch, kept } = await partOf(fixture(name), { keep: ['task_id'] });
      assert.deepEqual(batch.groupIds, Int32Array.of(0, 1, 0, 2, 3), name);
      assert.deepEqual(
        kept.map(({ task_id }) => BigInt(task_id as string)),
        ids,
        name,
      );
    }
  });

  it('says that a required value is null', async () => {
    await assert.rejects(
      readRollouts([fixture('duckdb-null')]),
      isLossError(
        'ERR_MISSING_INPUT',
        /row 1: logprobs: expected a list of numbers, one per token, got null$/,
      ),
    );
  });

  it('refuses a row of too many tokens', async () => {
    const file = fileOf(parquetOf([{ name: 'logprobs', value: -1, rows: 2, tokens: 2_000_000 }]));
    await rejects(
      file,
      /row 1: logprobs: expected at most 1048576 tokens in a row, got 2000000\. .*maxRowTokens/,
    );
    assert.equal((await readRollouts([file], { maxRowTokens: 2_000_000 })).tokens, 4_000_000);
  });

  it('refuses a text that is too long', async () => {
    const long = 'x'.repeat(40_000_000);
    const file = fileOf(
      parquetOf([
        { name: 'logprobs', value: -1, rows: 2 },
        { name: 'task_id', value: long, rows: 2 },
      ]),
    );
    await rejects(file, /row 1: task_id: expected a text of at most 33554432 bytes, got 40000000/);
  });

  it('refuses a malformed footer before the library parses it', async () => {
    const leaf = struct([1, { type: 5, bytes: Buffer.of(8) }]);
    const nested = (depth: number) => Array.from({ length: depth }, () => group('g', 1));
    await rejects(
      fileOf(parquetWithSchema([...nested(50), leaf])),
      /expected columns of at most 32 levels, got a deeper schema/,
    );
    await rejects(
      fileOf(parquetWithSchema([...nested(100_000), leaf])),
      /expected at most 10000 columns, got 100001/,
    );
    const claims = (id: number) => fileOf(parquetWithFooter(struct([id, list(12, [], 2 ** 31 - 1)]).bytes));
    for (const id of [2, 4, 7])
      await rejects(claims(id), /expected a whole structure, got one that ends after \d+ bytes/);
    let deep = struct();
    for (let i = 0; i < 100; i++) deep = struct([1, deep]);
    await rejects(
      fileOf(parquetWithFooter(struct([9, deep]).bytes)),
      /expected structures of at most 32 levels and 268435456 bytes, got more/,
    );
  });

  it('refuses indices and levels that do not fit', async () => {
    const bytes = parquetOf([{ name: 'logprobs', value: -1, rows: 2, tokens: 3 }]);
    // The last run of the only data page: its length, and the index that it repeats.
    const end = bytes.length - 8 - bytes.readUInt32LE(bytes.length - 8);
    const changed = (at: number, value: number) => {
      const copy = Buffer.from(bytes);
      copy[end + at] = value;
      return fileOf(copy);
    };
    assert.equal((await readRollouts([changed(-1, 0)])).tokens, 6);
    await rejects(changed(-1, 1), /expected a level or an index of at most 0, got 1/);
    await rejects(changed(-2, 10), /expected as many levels and indices as values, got fewer/);
    await rejects(changed(-3, 40), /expected indices of at most 32 bits, got 40/);
  });

  it('reads no more values of a run than the page has', () => {
    const file = fileOf(
      parquetOf([
        { name: 'logprobs', value: -1, rows: 2, tokens: 3, claimed: 2 ** 31 - 1 },
        { name: 'task_id', value: 'a', rows: 2, claimed: 2 ** 31 - 1 },
      ]),
    );
    const { result, memory } = readApart(file);
    assert.equal(result, 2);
    assert.ok(memory < 400e6, `${memory} bytes`);
  });

  it('refuses differences in blocks that never end', async () => {
    const filename = folder.path('differences.parquet');
    // Blocks of 128 values in -2 parts, as 32-bit integers.
    const head = Buffer.from([0x80, 0x01, 0xfe, 0xff, 0xff, 0xff, 0x0f]);
    for (const type of ['INT32', 'INT64'] as const) {
      const data = Array.from({ length: 100 }, (_, i) => (type === 'INT32' ? i * i : BigInt(i * i)));
      parquetWriteFile({
        filename,
        codec: 'GZIP',
        compressors: {
          GZIP: (page) => gzipSync(page.length > 100 ? Buffer.from(page).fill(head, 0, 7) : page),
        },
        columnData: [
          { name: 'logprobs', data: data.map(() => '[-1]'), encoding: 'RLE_DICTIONARY' },
          { name: 'step', type, data, encoding: 'DELTA_BINARY_PACKED' },
        ],
      });
      await rejects(
        filename,
        /expected 100 differences in blocks of whole parts, got \d+ in blocks of 128 in/,
      );
    }
  });

  it('refuses long statistics, which the library would read for minutes', async () => {
    const bytes = Buffer.concat([Buffer.from([0xe0, 0xa7, 0x12]), Buffer.alloc(300_000)]);
    const statistics = struct([5, { type: 8, bytes }]);
    const column = struct([3, struct([12, statistics])]);
    const group = struct([1, list(12, [column])]);
    await rejects(
      fileOf(parquetWithFooter(struct([4, list(12, [group])]).bytes)),
      /expected statistics of at most 4096 bytes, got 300000/,
    );
  });

  const GIGABYTE = Buffer.alloc(12);
  GIGABYTE.writeUInt32LE(0xfd2fb528);
  GIGABYTE.writeUInt32LE(0xa0, 4);
  GIGABYTE.writeUInt32LE(2 ** 30, 5);
  for (const [codec, page] of [
    ['GZIP', gzipSync(Buffer.alloc(2 ** 26))],
    ['BROTLI', brotliCompressSync(Buffer.alloc(2 ** 26))],
    ['SNAPPY', Buffer.from([0x80, 0x80, 0x80, 0x80, 4, 0])],
    ['ZSTD', GIGABYTE],
    ['LZ4_RAW', Buffer.from([0xf0, 1])],
  ] as const)
    it(`refuses a page of ${codec} that unpacks to another size`, async () => {
      const filename = folder.path('bomb.parquet');
      const columnData = [{ name: 'logprobs', data: ['[-1, -2]', '[-3]'] }];
      parquetWriteFile({ filename, columnData, codec, compressors: { [codec]: () => page } });
      const before = process.memoryUsage().rss;
      await rejects(
        filename,
        codec === 'LZ4_RAW' ? /bomb/ : new RegExp(`expected ${codec} of a Parquet file`),
      );
      assert.ok(process.memoryUsage().rss - before < 50e6);
    });

  it('refuses values that repeat the beginnings of others too often', async () => {
    const filename = folder.path('prefixes.parquet');
    // The writer compares arrays that are not the same one byte by byte, which takes half a minute.
    const long = Buffer.alloc(2_000_000, 'x');
    const data = new Array(140).fill(long);
    parquetWriteFile({
      filename,
      columnData: [
        { name: 'logprobs', data: data.map(() => '[-1]') },
        { name: 'text', data, type: 'BYTE_ARRAY', encoding: 'DELTA_BYTE_ARRAY' },
      ],
      statistics: false,
      pageSize: 2 ** 30,
    });
    const parts = streamRollouts([filename], { keep: ['text'], maxTokens: 1 });
    await assert.rejects(
      async () => {
        for await (const { rows } of parts) assert.equal(rows, 1);
      },
      isLossError('ERR_INVALID_INPUT', /expected at most 268435456 repeated bytes, got more/),
    );
  });

  it('takes less than 400 MB for a row group of 250 MB', () => {
    const file = folder.path('long.parquet');
    const rows = writeLongParquet(file, { pages: 60 });
    const { result, memory } = readApart(file);
    assert.equal(result, rows);
    assert.ok(memory < 400e6, `${memory} bytes`);
  });

  const COLUMNS = ['logprobs', 'old_logprobs', 'ref_logprobs'];
  for (const [what, columns, message] of [
    [
      'many long rows',
      COLUMNS.map((name) => ({ name, value: -1, rows: 2000, tokens: 100_000 })),
      /expected at most \d+ values in a file of \d+ bytes, got 600000000\. .*maxRowTokens$/,
    ],
    [
      'one enormous row',
      [{ name: 'logprobs', value: -1, rows: 1, tokens: 2 ** 31 - 1 }],
      /expected at most \d+ values in a file of \d+ bytes, got 2147483647/,
    ],
    [
      'a row of thirty times the tokens that a row may have',
      [{ name: 'logprobs', value: -1, rows: 1, tokens: 30 * 2 ** 20 }],
      /row 1: logprobs: expected at most 1048576 tokens in a row, got 31457280/,
    ],
    [
      'an enormous row in a column that is not read',
      [
        { name: 'logprobs', value: -1, rows: 1 },
        { name: 'other', value: -1, rows: 1, tokens: 2 ** 31 - 1 },
      ],
      /^1$/,
    ],
    [
      'a long text in every row',
      [
        { name: 'logprobs', value: -1, rows: 2048 },
        { name: 'task_id', value: 'x'.repeat(2_000_000), rows: 2048 },
      ],
      /task_id: expected at most 65536 characters, got 2000000/,
    ],
    [
      'a rather long text in very many rows',
      [
        { name: 'logprobs', value: -1, rows: 20_000 },
        { name: 'task_id', value: 'x'.repeat(60_000), rows: 20_000 },
      ],
      /^20000$/,
    ],
  ] as [string, RepeatedColumn[], RegExp][])
    it(`takes less than 1 GB for ${what} in a small file`, () => {
      const { result, memory } = readApart(fileOf(parquetOf(columns)));
      assert.match(String(result), message);
      assert.ok(memory < 1e9, `${memory} bytes`);
    });
});
