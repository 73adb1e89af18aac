/** Tests the reading of Parquet files: of every type of column, and of files that claim far more than they hold. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { DuckDBInstance } from '@duckdb/node-api';
import { connectDuckDB } from '../../lib/rollouts/duckdb.js';
import { readRollouts, type StreamOptions, streamRollouts } from '../../lib/rollouts/index.js';
import { isLossError } from '../support/loss-error.js';
import { temporaryFolder } from '../support/temporary-folder.js';
import {
  group,
  list,
  parquetOf,
  parquetWithFooter,
  parquetWithSchema,
  type RepeatedColumn,
  struct,
} from './parquet-file.js';

const LIBRARY = new URL('../../lib/rollouts/index.ts', import.meta.url).href;

describe('Parquet', () => {
  const folder = temporaryFolder();

  function fileOf(content: Buffer): string {
    const file = folder.path('made.parquet');
    writeFileSync(file, content);
    return file;
  }

  /** Writes the result of an SQL query. */
  async function written(select: string): Promise<string> {
    const file = folder.path('written.parquet');
    const instance = await DuckDBInstance.create(':memory:');
    const connection = await instance.connect();
    await connection.run(`COPY (${select}) TO '${file}'`);
    connection.closeSync();
    instance.closeSync();
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
    const jsonl = folder.path('rows.jsonl');
    writeFileSync(
      jsonl,
      rows
        .map((row, i) => JSON.stringify({ ...row, task_id: `id ${i % 5}`, text: 'x'.repeat(999 * i) }))
        .join('\n'),
    );
    const file = await written(`SELECT * FROM read_json('${jsonl}', columns = {logprobs: 'FLOAT[]',
      old_logprobs: 'DOUBLE[]', advantages: 'FLOAT[]', reward: 'DOUBLE', task_id: 'VARCHAR', text: 'VARCHAR'})`);
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
    const file = await written(`SELECT [-1.5::DECIMAL(5, 2), -2] AS logprobs, [1::BIGINT, 0] AS action_mask,
      [1::HUGEINT, 2] AS old_logprobs, 'NaN'::FLOAT AS reward, true AS expert, 3::UTINYINT AS step, '[1, 2]' AS values,
      12::DECIMAL(20, 0) AS task_id, UUID '12345678-1234-1234-1234-123456789abc' AS run_id`);
    const { batch } = await readRollouts([file]);
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

  it('kept columns of every type, unchanged', async () => {
    const file =
      await written(`SELECT [-1.5] AS logprobs, [{'role': 'user', 'content': 'said "x"'}] AS prompt,
      ['one', NULL, 'två'] AS tokens, MAP {'a': [1.5]} AS map, DATE '2026-01-01' AS date, [1, NULL] AS ids,
      NULL::VARCHAR[] AS nothing, 'x'::BLOB AS bytes`);
    const keep = ['prompt', 'tokens', 'map', 'date', 'ids', 'nothing', 'bytes'];
    const { kept } = await partOf(file, { keep });
    assert.deepEqual(
      { ...kept[0] },
      {
        prompt: [{ role: 'user', content: 'said "x"' }],
        tokens: ['one', null, 'två'],
        map: { a: [1.5] },
        date: '2026-01-01',
        ids: [1, null],
        bytes: 'x',
      },
    );
  });

  it('ids above 2^53, exactly', async () => {
    const ids = [9007199254740993n, 9007199254740992n, 9007199254740993n, 2n ** 63n - 1n, -(2n ** 63n)];
    for (const type of ['BIGINT', 'DECIMAL(20, 0)', 'HUGEINT::VARCHAR']) {
      const file = await written(
        `SELECT [-1.5] AS logprobs, id::${type} AS task_id FROM (SELECT unnest([${ids}]::HUGEINT[]) AS id)`,
      );
      const { batch, kept } = await partOf(file, { keep: ['task_id'] });
      assert.deepEqual(batch.groupIds, Int32Array.of(0, 1, 0, 2, 3), type);
      assert.deepEqual(
        kept.map(({ task_id }) => BigInt(task_id as string)),
        ids,
        type,
      );
    }
  });

  it('says that a required value is null', async () => {
    const file = await written('SELECT NULL::FLOAT[] AS logprobs, 1 AS reward');
    await assert.rejects(
      readRollouts([file]),
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

  it('refuses a malformed footer before DuckDB reads it', async () => {
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
    await rejects(claims(2), /expected at most 10000 columns, got 2147483647/);
    await rejects(claims(4), /expected at most 0 elements in the rest of the footer, got 2147483647/);
    await rejects(claims(7), /expected a whole footer, got one that ends after \d+ bytes/);
    let deep = struct();
    for (let i = 0; i < 100; i++) deep = struct([1, deep]);
    await rejects(fileOf(parquetWithFooter(struct([9, deep]).bytes)), /expected at most 32 levels/);
  });

  /** Reads a file in another process. Returns the error's message, and the largest memory of the process in bytes. */
  function readApart(columns: readonly RepeatedColumn[]): { said: string; memory: number } {
    const script = `import { readRollouts } from ${JSON.stringify(LIBRARY)};
      const said = await readRollouts([process.argv[1]]).then(({ tokens }) => tokens, ({ message }) => message);
      console.log(JSON.stringify({ said, memory: 1024 * process.resourceUsage().maxRSS }));`;
    const { stdout, stderr } = spawnSync(
      process.execPath,
      ['--import', 'tsx', '--input-type=module', '-e', script, fileOf(parquetOf(columns))],
      { encoding: 'utf8' },
    );
    assert.notEqual(stdout, '', stderr);
    return JSON.parse(stdout);
  }

  const COLUMNS = ['logprobs', 'old_logprobs', 'ref_logprobs'];
  for (const [what, columns, message] of [
    [
      'many long rows',
      COLUMNS.map((name) => ({ name, value: -1, rows: 2000, tokens: 100_000 })),
      /Out of Memory.* Write row groups of fewer rows$/,
    ],
    ['one enormous row', [{ name: 'logprobs', value: -1, rows: 1, tokens: 2 ** 31 - 1 }], /Out of Memory/],
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
      const { said, memory } = readApart(columns);
      assert.match(String(said), message);
      assert.ok(memory < 1e9, `${memory} bytes`);
    });

  it('is read without a network, extensions, and other files', async () => {
    const other = await written('SELECT [-1] AS logprobs');
    const file = fileOf(parquetOf([{ name: 'logprobs', value: -1, rows: 1 }]));
    const { connection, close } = await connectDuckDB('a test', { memory: 1e8, files: [file] });
    try {
      await connection.run(`FROM read_parquet('${file}')`);
      for (const query of [
        `FROM read_parquet('${other}')`,
        'INSTALL sqlite',
        'LOAD httpfs',
        "FROM read_parquet('https://localhost/x.parquet')",
        `COPY (SELECT 1) TO '${other}'`,
        'SET enable_external_access = true',
        'SET autoinstall_known_extensions = true',
      ])
        await assert.rejects(connection.run(query), /disabled|locked|Cannot/, query);
    } finally {
      close();
    }
  });
});
