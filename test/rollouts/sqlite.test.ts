/** Tests the reading of SQLite databases with Node's own SQLite, which versions before 22.13 do not have. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { streamRollouts } from '../../lib/rollouts/index.js';
import { type SqliteQuery, sqliteRows } from '../../lib/rollouts/sqlite.js';
import { isLossError } from '../support/loss-error.js';
import { readsSqlite } from '../support/node-version.js';

interface Sqlite {
  DatabaseSync: new (file: string) => { exec(sql: string): void; close(): void };
}

describe('SQLite', () => {
  let directory: string;
  let sqlite: Sqlite;
  before(async function () {
    if (!readsSqlite) this.skip();
    const module: string = 'node:sqlite';
    sqlite = (await import(module)) as Sqlite;
    directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));
  });
  after(() => {
    if (directory) rmSync(directory, { recursive: true });
  });

  function databaseOf(...statements: string[]): string {
    const file = join(directory, 'made.sqlite');
    for (const ending of ['', '-wal', '-shm']) rmSync(file + ending, { force: true });
    const database = new sqlite.DatabaseSync(file);
    for (const statement of statements) database.exec(statement);
    database.close();
    return file;
  }

  async function partOf(file: string) {
    for await (const part of streamRollouts([file], { keep: ['task_id'] })) return part;
    return assert.fail('no part');
  }

  const rejects = (file: string, ...message: RegExp[]) =>
    assert.rejects(partOf(file), isLossError('ERR_INVALID_INPUT', ...message));

  const COUNT_FOR_EVER = 'WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c';
  const ROLLOUTS = "CREATE TABLE rollouts AS SELECT '[-1, -2]' AS logprobs, 1 AS task_id, 0.5 AS reward";

  it('tables, and not views or virtual tables, which can run for ever', async () => {
    const view = `CREATE VIEW endless AS SELECT '[-1]' AS logprobs FROM (${COUNT_FOR_EVER})`;
    const file = databaseOf(ROLLOUTS, view, 'CREATE VIRTUAL TABLE words USING fts5(logprobs)');
    assert.equal((await partOf(file)).rows, 1);
    await rejects(
      `${file}#endless`,
      /expected the name of a table, got endless, of type view\. CREATE TABLE rollouts AS/,
    );
    await rejects(`${file}#words`, /expected the name of a table, got words, of type virtual/);
    await rejects(databaseOf(view), /expected a table of rollouts, got a database without tables/);
  });

  it('without generated columns, which can take any memory', async () => {
    const file = databaseOf(
      `CREATE TABLE rollouts (logprobs TEXT, reward REAL,
        task_id TEXT GENERATED ALWAYS AS (hex(zeroblob(400000000))) VIRTUAL)`,
      "INSERT INTO rollouts VALUES ('[-1, -2]', 0.5)",
    );
    const { batch } = await partOf(file);
    assert.deepEqual([batch.logprob, batch.groupIds], [Float32Array.of(-1, -2), undefined]);
  });

  it('ids above 2^53, exactly', async () => {
    const ids = [9007199254740993n, 9007199254740992n, 9007199254740993n, 2n ** 63n - 1n];
    const rows = ids.map((id) => `('[-1]', ${id})`);
    const file = databaseOf(
      'CREATE TABLE t (logprobs TEXT, task_id INTEGER)',
      `INSERT INTO t VALUES ${rows}`,
    );
    const { batch, kept } = await partOf(file);
    assert.deepEqual(batch.groupIds, Int32Array.of(0, 1, 0, 2));
    assert.deepEqual(
      kept.map(({ task_id }) => BigInt(task_id as string)),
      ids,
    );
  });

  it('rows that are still in the write-ahead log', async () => {
    const file = join(directory, 'log.sqlite');
    const database = new sqlite.DatabaseSync(file);
    for (const statement of ['PRAGMA journal_mode = wal', ROLLOUTS]) database.exec(statement);
    assert.equal((await partOf(file)).rows, 1);
    database.close();
  });

  it('refuses a text that is too long', async () => {
    const file = databaseOf(ROLLOUTS, 'UPDATE rollouts SET task_id = hex(zeroblob(20000000))');
    await rejects(file, /row 1: task_id: expected a text of at most 33554432 bytes, got 40000000/);
  });

  describe('row by row', () => {
    async function rowsOf(file: string, query: SqliteQuery) {
      const rows = [];
      for await (const row of sqliteRows(file, query)) rows.push(row);
      return rows;
    }

    it('with blobs as bytes, and integers exactly', async () => {
      const file = databaseOf(
        'CREATE TABLE t (bytes BLOB, id INTEGER, x REAL, word TEXT)',
        "INSERT INTO t VALUES (x'8004ff', 9007199254740993, 0.5, 'é'), (zeroblob(3), -1, NULL, '')",
      );
      assert.deepEqual(await rowsOf(file, { columns: ['id', 'bytes', 'x', 'word'] }), [
        { id: '9007199254740993', bytes: Uint8Array.of(0x80, 4, 0xff), x: 0.5, word: 'é' },
        { id: -1, bytes: new Uint8Array(3), x: null, word: '' },
      ]);
    });

    it('of a named table, and only with known columns', async () => {
      const file = databaseOf(ROLLOUTS, 'CREATE TABLE other AS SELECT 5 AS x');
      assert.deepEqual(await rowsOf(file, { table: 'other', columns: ['x'] }), [{ x: 5 }]);
      for (const [query, message] of [
        [{ columns: ['x'] }, /expected the name of one of the tables other, rollouts/],
        [{ table: 'others', columns: ['x'] }, /table.*other/],
        [{ table: 'other', columns: ['y'] }, /column.*y/],
      ] as const)
        await assert.rejects(rowsOf(file, query), isLossError('ERR_INVALID_INPUT', message));
    });

    it('unless a value is too large', async () => {
      const file = databaseOf('CREATE TABLE t AS SELECT zeroblob(100) AS bytes');
      assert.equal((await rowsOf(file, { columns: ['bytes'], maxBytes: 100 })).length, 1);
      await assert.rejects(
        rowsOf(file, { columns: ['bytes'], maxBytes: 99 }),
        isLossError('ERR_INVALID_INPUT', /row 1: bytes: expected a value of at most 99 bytes, got 100/),
      );
    });

    it('in memory that does not depend on the number of rows', async () => {
      const file = databaseOf(
        'CREATE TABLE t (bytes BLOB)',
        `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 200)
          INSERT INTO t SELECT randomblob(1000000) FROM c`,
      );
      const before = process.memoryUsage().rss;
      let bytes = 0;
      for await (const row of sqliteRows(file, { columns: ['bytes'] }))
        bytes += (row.bytes as Uint8Array).length;
      assert.equal(bytes, 200_000_000);
      const grown = process.memoryUsage().rss - before;
      assert.ok(grown < 100e6, `${grown} bytes`);
    });
  });

  it('refuses rows that share their pages', async () => {
    // Of a text of this length, a page holds only 489 bytes. The rest fills 24 other pages.
    const text = `'[-1${' '.repeat(98_689)}]'`;
    const file = databaseOf(
      'PRAGMA page_size = 4096',
      'CREATE TABLE t (logprobs TEXT)',
      ...Array.from({ length: 5 }, () => `INSERT INTO t VALUES (${text})`),
    );
    // The table's root is page 2. Its cells are the rows; each ends with the number of the page on which the text
    // continues. These pages follow each other, so the file can end after those of the first row.
    const bytes = readFileSync(file);
    const root = bytes.subarray(4096, 8192);
    const starts = [0, 1, 2, 3, 4].map((cell) => root.readUInt16BE(8 + 2 * cell));
    const ends = [4096, ...starts.slice(0, -1)].map((end) => end - 4);
    const [first, second] = ends.map((at) => root.readUInt32BE(at)) as [number, number];
    assert.equal(first, 3);
    for (const at of ends) root.writeUInt32BE(first, at);
    bytes.writeUInt32BE(second - 1, 28);
    writeFileSync(file, bytes.subarray(0, (second - 1) * 4096));
    await rejects(file, /expected rows of at most 106496 bytes, as the file, got more/);
  });
});

describe('SQLite on an older Node', () => {
  it('names the version that can read it', async function () {
    if (readsSqlite) this.skip();
    const file = new URL('fixtures/rollouts.sqlite', import.meta.url).pathname;
    await assert.rejects(
      streamRollouts([`${file}#rollouts`]).next(),
      isLossError(
        'ERR_INVALID_INPUT',
        /expected Node 22\.13 or later, which can read SQLite, got Node .* sqlite3 -header -csv/,
      ),
    );
  });
});
