/** Tests that files of all formats, which other programs wrote, are read as exactly the same batch. */
import assert from 'node:assert/strict';
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';

const fixture = (name: string) => fileURLToPath(new URL(`fixtures/${name}`, import.meta.url));
const LINES = fixture('rollouts.jsonl');
const PARQUET = fixture('parquet/duckdb-snappy.parquet');
// The other Parquet files hold other rows.
const HAS_ROLLOUTS = /^(?!.*-(types|kept|null|ids|fixed-lists|large|int96)\.).*\.parquet$/;

describe('reading every format', () => {
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));
    // A gzip file may consist of several compressed members, for example after log rotation.
    const compressed = readFileSync(fixture('rollouts.jsonl.gz'));
    writeFileSync(join(directory, 'twice.jsonl.gz'), Buffer.concat([compressed, compressed]));
    copyFileSync(fixture('rollouts.sqlite'), join(directory, 'copy.db'));
  });
  after(() => rmSync(directory, { recursive: true }));

  const made = (name: string) => join(directory, name);
  async function same(file: string, lines = LINES) {
    assert.deepEqual(await readRollouts([file]), await readRollouts([lines]));
  }

  it('JSON lines compressed by gzip', async () => {
    await same(fixture('rollouts.jsonl.gz'));
    const { batch } = await readRollouts([made('twice.jsonl.gz')]);
    assert.deepEqual(batch, (await readRollouts([LINES, LINES])).batch);
  });

  for (const name of readdirSync(fixture('parquet')).filter((name) => HAS_ROLLOUTS.test(name)))
    it(`Parquet: ${name}`, async () => {
      const file = fixture(`parquet/${name}`);
      const { rows } = await readRollouts([file]);
      const { batch } = await readRollouts(new Array<string>(rows / 6).fill(LINES));
      assert.deepEqual((await readRollouts([file])).batch, batch);
    });

  it('Parquet in a file whose name looks like a pattern', async () => {
    const file = made("it's of [2]*.parquet");
    copyFileSync(fixture('parquet/duckdb-snappy.parquet'), file);
    await same(file);
  });

  it("CSV by Python's csv", () => same(fixture('rollouts.csv')));
  for (const name of ['duckdb.csv', 'semicolons.csv', 'tabs.tsv.gz'])
    it(`CSV by DuckDB: ${name}`, () => same(fixture(name)));

  it('safetensors, padded', () => same(fixture('padded.safetensors'), fixture('padded.jsonl')));
  it('safetensors, packed', () => same(fixture('packed.safetensors')));
  it('safetensors of 16-bit floats', () => same(fixture('halves.safetensors'), fixture('halves.jsonl')));

  it('npz, stored, with Fortran and big-endian arrays', () =>
    same(fixture('stored.npz'), fixture('padded.jsonl')));
  it('npz, deflated', () => same(fixture('deflated.npz'), fixture('padded.jsonl')));
  it('npz, packed, of other types', () => same(fixture('packed.npz')));

  it("SQLite by Python's sqlite3", async () => {
    for (const file of [fixture('rollouts.sqlite'), made('copy.db')]) await same(`${file}#rollouts`);
  });

  it('files of several formats together', async () => {
    const files = [LINES, fixture('rollouts.csv'), PARQUET];
    const { batch } = await readRollouts(files);
    assert.deepEqual(batch, (await readRollouts([LINES, LINES, LINES])).batch);
  });

  it('parts, with the place of each row', async () => {
    const partsOf = async (file: string) => {
      const parts = [];
      for await (const part of streamRollouts([file], { maxTokens: 8 })) parts.push(part);
      return parts;
    };
    const expected = await partsOf(LINES);
    assert.deepEqual(
      expected.map(({ rows, first }) => ({ rows, first })),
      [
        { rows: 2, first: 0 },
        { rows: 2, first: 2 },
        { rows: 1, first: 4 },
        { rows: 1, first: 5 },
      ],
    );
    for (const file of [fixture('packed.npz'), fixture('packed.safetensors'), PARQUET]) {
      const parts = await partsOf(file);
      const plain = ({ batch, first }: (typeof parts)[0]) => ({ batch, first });
      assert.deepEqual(parts.map(plain), expected.map(plain));
      assert.deepEqual(
        parts.flatMap(({ places }) => places),
        [1, 2, 3, 4, 5, 6].map((row) => ({ file, row })),
      );
    }
    // In the CSV file, the third row spans two lines. The row's place names the first of them.
    assert.deepEqual(
      (await partsOf(fixture('rollouts.csv'))).flatMap(({ places }) => places.map(({ line }) => line)),
      [2, 3, 4, 6, 7, 8],
    );
  });

  it('other columns, unchanged', async () => {
    const keptOf = async (file: string) => {
      for await (const { kept } of streamRollouts([file], { keep: ['prompt', 'task_id', 'nothing'] }))
        return kept;
    };
    const expected = [
      { prompt: 'one, two', task_id: 70 },
      { prompt: 'said "yes"', task_id: 70 },
      { prompt: 'two\nlines', task_id: 71 },
      { prompt: '', task_id: 71 },
      { prompt: 'plain', task_id: 72 },
      { prompt: 'ünïcode 🙂', task_id: 72 },
    ];
    for (const file of [LINES, PARQUET, fixture('stored.npz'), fixture('deflated.npz')])
      assert.deepEqual(await keptOf(file), expected);
    // A kept column has the name of the column (task_id), even if the file's tensor is named after the batch key
    // (group_ids).
    for await (const { kept } of streamRollouts([fixture('packed.safetensors')], {
      columns: ['reward'],
      keep: ['task_id', 'step'],
    }))
      assert.deepEqual(
        kept,
        expected.map(({ task_id }) => ({ task_id, step: 12 })),
      );
    // An empty cell is read as an absent value.
    assert.deepEqual(
      await keptOf(fixture('rollouts.csv')),
      expected.map(({ prompt, task_id }) => (prompt === '' ? { task_id } : { prompt, task_id })),
    );
  });

  it('progress up to the last byte', async () => {
    for (const name of [
      'rollouts.jsonl.gz',
      'rollouts.csv',
      'packed.npz',
      'packed.safetensors',
      'padded.safetensors',
    ]) {
      let last = { bytes: 0, totalBytes: 1 };
      await readRollouts([fixture(name)], {
        onProgress: (progress) => {
          last = progress;
        },
      });
      assert.ok(Math.abs(last.bytes - last.totalBytes) < 1e-6 * last.totalBytes, `${name}: ${last.bytes}`);
      assert.ok(last.totalBytes > 1);
    }
  });
});
