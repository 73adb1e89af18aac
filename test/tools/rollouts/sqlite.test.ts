/** Tests the reading of SQLite databases: with Node's own SQLite, and before Node 22.13 with that in WebAssembly. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type StreamOptions, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { isLossError } from '../../support/loss-error.js';
import { global, pickle, unsigned } from '../../support/pickle.js';
import { nodeSqlite, openForWriting } from '../../support/sqlite.js';

describe('SQLite', () => {
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));
  });
  after(() => {
    if (directory) rmSync(directory, { recursive: true });
  });

  function databaseOf(...statements: string[]): string {
    const file = join(directory, 'made.sqlite');
    for (const ending of ['', '-wal', '-shm']) rmSync(file + ending, { force: true });
    const database = openForWriting(file);
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
    const database = openForWriting(file);
    for (const statement of ['PRAGMA journal_mode = wal', ROLLOUTS]) database.exec(statement);
    if (nodeSqlite) assert.equal((await partOf(file)).rows, 1);
    database.close();
    if (nodeSqlite) return;
    // SQLite as WebAssembly writes no log. Its header can say that there is one.
    const bytes = readFileSync(file);
    bytes.fill(2, 18, 20);
    writeFileSync(file, bytes);
    await rejects(
      file,
      /expected Node 22\.13 or later for a database with a write-ahead log, got Node .*PRAGMA/,
    );
  });

  describe('leave nothing beside a database with a write-ahead log', () => {
    const ENDINGS = ['', '-wal', '-shm'];
    const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
    /** The files beside a database, with their content and the time of their last change. */
    const state = (file: string) =>
      ENDINGS.filter((ending) => existsSync(file + ending)).map((ending) => [
        ending,
        digest(readFileSync(file + ending)),
        statSync(file + ending, { bigint: true }).mtimeNs,
      ]);
    async function readsWithoutTraces(file: string, rows: number): Promise<void> {
      const before = state(file);
      for await (const part of streamRollouts([file])) {
        assert.equal(part.rows, rows);
        assert.deepEqual(state(file), before);
      }
      assert.deepEqual(state(file), before);
    }
    const logged = (name: string) => {
      const file = join(directory, name);
      const database = openForWriting(file);
      for (const statement of ['PRAGMA journal_mode = wal', ROLLOUTS]) database.exec(statement);
      return { file, database };
    };
    beforeEach(function () {
      // SQLite as WebAssembly has no log.
      if (!nodeSqlite) this.skip();
    });

    it('that nobody has open', async () => {
      const { file, database } = logged('closed % #?.sqlite');
      database.close();
      await readsWithoutTraces(file, 1);
      const link = join(directory, 'link.sqlite');
      symlinkSync(file, link);
      await readsWithoutTraces(link, 1);
      assert.deepEqual(state(file).length, 1);
    });

    it('that a program writes to', async () => {
      const { file, database } = logged('open.sqlite');
      await readsWithoutTraces(file, 1);
      database.exec('INSERT INTO rollouts SELECT * FROM rollouts');
      await readsWithoutTraces(file, 2);
      database.close();
    });

    it('that has a log but no program', async () => {
      const { file, database } = logged('left.sqlite');
      database.exec('PRAGMA wal_checkpoint');
      database.exec('INSERT INTO rollouts SELECT * FROM rollouts');
      const copy = join(directory, 'copy.sqlite');
      for (const ending of ['', '-wal']) copyFileSync(file + ending, copy + ending);
      database.close();
      await readsWithoutTraces(copy, 2);
    });
  });

  it('files in folders that nobody may write to, without a trace beside them', async () => {
    const file = databaseOf(ROLLOUTS);
    chmodSync(directory, 0o555);
    try {
      const before = readdirSync(directory);
      for await (const part of streamRollouts([file])) {
        assert.equal(part.rows, 1);
        assert.deepEqual(readdirSync(directory), before);
      }
      assert.deepEqual(readdirSync(directory), before);
    } finally {
      chmodSync(directory, 0o755);
    }
  });

  it('refuses a database with an unfinished change, unless Node can undo it', async () => {
    const file = databaseOf(ROLLOUTS);
    writeFileSync(`${file}-journal`, 'x'.repeat(600));
    try {
      if (nodeSqlite) assert.equal((await partOf(file)).rows, 1);
      else await rejects(file, /for a database with an unfinished change/);
    } finally {
      rmSync(`${file}-journal`, { force: true });
    }
  });

  it('refuses a text that is too long', async () => {
    const file = databaseOf(ROLLOUTS, 'UPDATE rollouts SET task_id = hex(zeroblob(20000000))');
    await rejects(file, /row 1: task_id: expected a text of at most 33554432 bytes, got 40000000/);
  });

  describe('buffers of Trinity-RFT', () => {
    const floats = (values: readonly number[]) => Buffer.from(Float32Array.from(values).buffer);
    /** A frame of one experience for each list of log-probabilities. */
    function frame(...logprobs: number[][]): Buffer {
      const items = logprobs.map((_, i) => ({
        eid: { batch: 3, task: i, run: 4, step: 5 },
        reward: i,
        prompt_length: 0,
        response_text: 'x',
      }));
      const metadata = pickle({ version: 1, num_items: items.length, items });
      const entries: Record<string, unknown> = {};
      let end = 0;
      for (const [i, list] of logprobs.entries()) {
        const begin = end;
        end += 4 * list.length;
        entries[`${i}:logprobs`] = { dtype: 'F32', shape: [list.length], data_offsets: [begin, end] };
      }
      const header = Buffer.from(JSON.stringify(entries));
      const data = logprobs.map(floats);
      const tensors = Buffer.concat([unsigned(header.length, 8), header, ...data]);
      const lengths = [unsigned(metadata.length, 8), unsigned(tensors.length, 8)];
      return Buffer.concat([Buffer.from('TRXP\x01'), ...lengths, metadata, tensors]);
    }
    const hex = (bytes: Buffer) => `x'${bytes.toString('hex')}'`;
    const BUFFER =
      'CREATE TABLE buffer (id INTEGER PRIMARY KEY, task_id TEXT, run_id INTEGER, experience_bytes BLOB, reward REAL)';
    const insert = (values: string) =>
      `INSERT INTO buffer (task_id, run_id, experience_bytes, reward) VALUES (${values})`;
    async function read(file: string, options: StreamOptions = {}) {
      const keep = ['task_id', 'run_id', 'reward', 'response'];
      for await (const part of streamRollouts([file], { logprobs: 'optional', keep, ...options }))
        return part;
      throw new Error('no part');
    }

    it('have their columns in the table and in the experience', async () => {
      const file = databaseOf(
        BUFFER,
        insert(`'7', 8, ${hex(frame([-1, -2]))}, 0.5`),
        insert(`NULL, NULL, ${hex(frame([-3]))}, NULL`),
        insert(`'9', 9, ${hex(frame([-4], [-5]))}, 9`),
      );
      const { batch, kept } = await read(file);
      assert.deepEqual(Array.from(batch.oldLogprob as Float32Array), [-1, -2, -3, -4, -5]);
      assert.deepEqual(kept, [
        { task_id: '3/7', run_id: 8, reward: 0.5, response: 'x' },
        { task_id: '3/0', run_id: 4, reward: 0, response: 'x' },
        { task_id: '3/0', run_id: 4, reward: 0, response: 'x' },
        { task_id: '3/1', run_id: 4, reward: 1, response: 'x' },
      ]);
    });

    it('with bad rows: without bytes, with others, and with too many', async () => {
      const file = databaseOf(
        BUFFER,
        insert(`'0', 0, ${hex(frame([-1]))}, 0`),
        insert(`'0', 0, NULL, 0`),
        insert(`'0', 0, ${hex(pickle({ a: 1 }))}, 0`),
        insert(`'0', 0, ${hex(Buffer.concat([frame([-1]), Buffer.from('x')]))}, 0`),
        insert(`'0', 0, ${hex(pickle(global('os', 'system')))}, 0`),
        insert(`'0', 0, zeroblob(${2 ** 26 + 1}), 0`),
      );
      const reasons: string[] = [];
      const onBadRow = ({ message }: Error) => reasons.push(message.slice(file.length + 2));
      assert.equal((await read(file, { skipBadRows: true, onBadRow, maxRowTokens: 1000 })).rows, 1);
      const expected = [
        /^row 2: experience_bytes: expected at most 67108864 bytes, got none/,
        /^row 3: expected experiences, got another object/,
        /^row 4: expected a frame of \d+ bytes, got \d+/,
        /got the function os\.system at byte 2\./,
        /^row 6: experience_bytes: expected at most 67108864 bytes, got 67108865/,
      ];
      assert.equal(reasons.length, expected.length);
      for (const [i, pattern] of expected.entries()) assert.match(reasons[i]!, pattern);
    });

    it('in memory that does not depend on the number of rows', async () => {
      const bytes = hex(frame(new Array(250_000).fill(-0.5)));
      const file = databaseOf(
        BUFFER,
        insert(`'0', 0, ${bytes}, 0`),
        `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 249)
          INSERT INTO buffer (task_id, experience_bytes) SELECT n, experience_bytes FROM buffer, c`,
      );
      const before = process.memoryUsage().rss;
      let rows = 0;
      for await (const part of streamRollouts([file], { logprobs: 'optional', maxTokens: 2 ** 19 }))
        rows += part.rows;
      assert.equal(rows, 250);
      const grown = process.memoryUsage().rss - before;
      // The rows are 250 MB, twice if they were kept as numbers too. When garbage is collected depends on the machine.
      assert.ok(grown < 200e6, `${grown} bytes`);
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
