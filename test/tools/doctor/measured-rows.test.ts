/** Tests that rows which were measured in shards, and replayed, have the findings of one examination. */
import assert from 'node:assert/strict';
import { Examination, RowMeasurer, RowReplay } from '../../../lib/tools/doctor/index.js';
import { Fields } from '../../../lib/tools/parts/fields.js';
import { countRefused } from '../../support/replaced-values.js';
import { type DumpRow, diagnosed, drawnRows, partsOf, realRows } from './support.js';

const FILE = 'a.part';

/** Returns what is measured of rows, after a round trip through JSON. */
function measured(rows: readonly DumpRow[], maxTokens: number): Record<string, unknown> {
  const measurer = new RowMeasurer();
  for (const part of partsOf(rows, maxTokens)) measurer.add(part);
  return JSON.parse(JSON.stringify(measurer.toJson()));
}

/** Returns rows with all columns and several faults, over two files. */
function faulty(): DumpRow[] {
  const rows = drawnRows({ topP: 0.9, seed: 5 }).map((row, i) => ({
    ...row,
    file: i % 40 < 20 ? 'one.jsonl' : 'two.jsonl',
    ...(i % 7 === 3 && { entropy: row.entropy!.map((x) => -x) }),
    ...(i % 9 === 2 && { advantages: row.advantages!.map(() => Number.NaN) }),
  }));
  return [...rows, { ...rows[3]!, task_id: 9 }, rows[8]!];
}

describe('measured rows', () => {
  it('give the findings of one examination, however they are divided', async () => {
    for (const rows of [faulty(), realRows(), realRows().map(({ task_id: _, ...row }) => row)]) {
      const expected = await diagnosed(rows);
      assert.ok(expected.findings.length > 0 || rows.length < 1000);
      for (const size of [1, 7, rows.length]) {
        const examination = new Examination();
        const replay = new RowReplay(examination);
        // Each shard numbers its ids by itself, and counts its lines from 1.
        for (let at = 0; at < rows.length; at += size) {
          const shard = rows.slice(at, at + size);
          replay.add(new Fields(FILE, renumbered(measured(shard, 300), shard, at)), size);
        }
        assert.deepEqual(examination.finish(), expected);
      }
    }
  });

  it('are an error if they take too much memory', () => {
    const [part] = partsOf(faulty());
    assert.throws(() => new RowMeasurer(1000).add(part!), {
      code: 'ERR_OUT_OF_MEMORY',
      message:
        /expected fewer rows in a shard that is computed for a report, got \d+ rows or more\. Plan with/,
    });
  });

  it('are checked field by field', () => {
    const json = measured(faulty().slice(0, 20), 300);
    const replayed = () => new RowReplay(new Examination()).add(new Fields(FILE, json), 20);
    replayed();
    assert.ok(countRefused(json, replayed) > 500);
    for (const [name, rows, says] of [
      ['rollout-shift', [1, 0], /ascending numbers/],
      ['rollout-shift', [0, 20], /ascending numbers below 20/],
    ] as const) {
      const checks = json.checks as Record<string, object>;
      const check = {
        count: 2,
        rows: Buffer.from(Uint32Array.from(rows).buffer).toString('base64'),
        numbers: '',
      };
      const before = checks[name]!;
      checks[name] = check;
      assert.throws(replayed, says);
      checks[name] = before;
    }
  });
});

/** Gives a shard's ids the numbers of a file of its own, and its rows the lines that they have among all rows. */
function renumbered(
  json: Record<string, unknown>,
  rows: readonly DumpRow[],
  at: number,
): Record<string, unknown> {
  const lines = Float64Array.from(rows, (_, i) => at + i + 1);
  const result: Record<string, unknown> = { ...json, numbers: Buffer.from(lines.buffer).toString('base64') };
  for (const [key, name] of [
    ['groups', 'task_id'],
    ['runs', 'run_id'],
  ] as const) {
    if (rows[0]![name] === undefined) continue;
    const ids = [...new Set(rows.map((row) => row[name]!))].reverse();
    const numbers = Int32Array.from(rows, (row) => ids.indexOf(row[name]!));
    result[key] = { numbers: Buffer.from(numbers.buffer).toString('base64'), ids };
  }
  return result;
}
