/** Findings depend on the rows only: not on their order, nor on their division into parts and files. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ExactSum } from '../../../lib/base/exact-sum.js';
import type { Diagnosis } from '../../../lib/tools/doctor/index.js';
import { generator } from '../../support/random.js';
import { changed, type DumpRow, diagnosed, drawnRows, realRows } from './support.js';

/** Returns the rows with many faults at once, some in a few rows and some in all. */
function faulty(seed: number): DumpRow[] {
  const { normal, uniform } = generator(seed);
  const rows = changed(drawnRows({ topP: 0.9, seed }), 'logprobs', (values) =>
    values.map((x) => x + 0.6 * normal()),
  ).map((row) => {
    if (uniform() < 0.1) return { ...row, entropy: row.entropy!.map((x) => -x) };
    if (uniform() < 0.1) return { ...row, ref_logprobs: row.ref_logprobs!.map(() => 0) };
    if (uniform() < 0.1) return { ...row, advantages: row.advantages!.map((x) => x + 3) };
    return row;
  });
  return [...rows, { ...rows[3]!, task_id: 99 }, rows[8]!];
}

/** Returns a diagnosis without places, which depend on the order. */
function withoutPlaces({ findings, ...rest }: Diagnosis) {
  return { ...rest, findings: findings.map(({ rows: { count }, ...finding }) => ({ ...finding, count })) };
}

const DUMPS = [realRows(), faulty(3), faulty(4)];

describe('the findings of the doctor', () => {
  it('do not depend on the order of the rows', async () => {
    const expected = await Promise.all(DUMPS.map((rows) => diagnosed(rows)));
    await fc.assert(
      fc.asyncProperty(fc.nat({ max: DUMPS.length - 1 }), fc.nat(), async (dump, seed) => {
        const { uniform } = generator(seed);
        const rows = DUMPS[dump]!.map((row) => ({ row, key: uniform() }))
          .sort((a, b) => a.key - b.key)
          .map(({ row }) => row);
        assert.deepEqual(withoutPlaces(await diagnosed(rows)), withoutPlaces(expected[dump]!));
      }),
      { numRuns: 20 },
    );
  });

  it('do not depend on the division into parts, and neither do their places', async () => {
    const expected = await Promise.all(DUMPS.map((rows) => diagnosed(rows)));
    await fc.assert(
      fc.asyncProperty(
        fc.nat({ max: DUMPS.length - 1 }),
        fc.integer({ min: 1, max: 3000 }),
        async (dump, tokens) => {
          assert.deepEqual(await diagnosed(DUMPS[dump]!, tokens), expected[dump]);
        },
      ),
      { numRuns: 20 },
    );
  });

  it('say which files have the rows', async () => {
    const rows = faulty(3).map((row, i) => ({ ...row, file: `rank_${i % 3}.jsonl` }));
    const { findings } = await diagnosed(rows);
    const { rows: found } = findings.find(({ id }) => id === 'entropy-negative')!;
    assert.equal(found.files.length, 3);
    assert.equal(
      found.files.reduce((sum, file) => sum + file.rows, 0),
      found.count,
    );
    for (const { file, line } of found.first) assert.equal(file, `rank_${(line! - 1) % 3}.jsonl`);
  });
});

describe('ExactSum', () => {
  const sumOf = (terms: readonly number[]) => {
    const sum = new ExactSum();
    for (const x of terms) sum.add(x);
    return sum.value;
  };

  it('rounds the exact sum once', () => {
    assert.equal(sumOf([]), 0);
    assert.equal(sumOf([1e100, 1, -1e100]), 1);
    assert.equal(sumOf([1, 2 ** -53, 2 ** -105]), 1 + 2 ** -52);
    assert.equal(sumOf([1, 2 ** -53]), 1);
    assert.equal(sumOf(new Array<number>(10).fill(0.1)), 1);
  });

  it('does not depend on the order', () => {
    const term = fc.double({ min: -1e20, max: 1e20, noNaN: true });
    fc.assert(
      fc.property(fc.array(term, { maxLength: 50 }), fc.nat(), (terms, seed) => {
        const { uniform } = generator(seed);
        const shuffled = terms.map((x) => ({ x, key: uniform() })).sort((a, b) => a.key - b.key);
        assert.equal(sumOf(shuffled.map(({ x }) => x)), sumOf(terms));
      }),
    );
  });
});
