/**
 * Tests that the same input always gives the same bits: in repeated calls, on any number of threads, and with both
 * compute() and computeSync().
 */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import { setThreads } from '../lib/index.js';
import { type BatchSpec, fitting, laidOut, makeBatch } from './support/draw.js';
import { everyFunction } from './support/functions.js';
import { paddedBatch, type Subject, subject } from './support/subject.js';
import { assertSameBits } from './support/tolerance.js';

// Both batches are large enough to be divided among threads. The packed one has long and short rows.
const PADDED: BatchSpec = { seed: 3, rows: 8, columns: 5000, values: 'wide', mask: 'random', packed: false };
const PACKED: BatchSpec = {
  ...PADDED,
  values: 'moderate',
  packed: true,
  rowLengths: [1, 9000, 30, 700, 20_000, 5, 64, 3],
  columns: 20_000,
};

describe('determinism', () => {
  after(() => setThreads(cpus().length));

  const functions = everyFunction(1);
  // One aggregation per function is enough. Aggregations differ only in the weights of rows, which are computed before
  // the tokens are divided among threads.
  const oneEach = functions.filter(
    (each, i) =>
      functions.findIndex((other) => other.family === each.family && other.name === each.name) === i,
  );
  for (const { family, name, args } of oneEach) {
    it(`${family} ${name}`, async () => {
      const on = subject(family, name, args);
      for (const spec of [PADDED, PACKED]) {
        const batch = laidOut(makeBatch(fitting(name, args, spec)));
        setThreads(1);
        const once = on.sync(batch);
        assertSameBits(on.sync(batch), once);
        assertSameBits(await on.async(batch), once);
        for (const threads of [2, 3, 8]) {
          setThreads(threads);
          assertSameBits(on.sync(batch), once);
          assertSameBits(await on.async(batch), once);
        }
      }
    });
  }

  // With so many threads and pieces, the pieces of a phase have several counters. m2po has phases of its own.
  it('more threads than any machine has', async () => {
    const shape = { ...PADDED, rows: 200, columns: 16_384 };
    const jobs = ['ppo', 'm2po'].map((name) => {
      const on: Subject = subject('policy', name, {});
      const batch = laidOut(makeBatch(fitting(name, {}, shape)));
      setThreads(1);
      return { on, batch, alone: on.sync(batch) };
    });
    setThreads(256);
    for (const { on, batch, alone } of jobs) assertSameBits(on.sync(batch), alone);
    const together = await Promise.all([...jobs, ...jobs].map(({ on, batch }) => on.async(batch)));
    together.forEach((computed, i) => {
      assertSameBits(computed, jobs[i % jobs.length]!.alone);
    });
  });

  it('many computations at once do not disturb each other', async () => {
    setThreads(2);
    const jobs = oneEach.map(({ family, name, args }, i) => {
      const on: Subject = subject(family, name, args);
      const batch = paddedBatch(makeBatch(fitting(name, args, { ...PADDED, seed: i, columns: 1500 })));
      return { on, batch, alone: on.sync(batch) };
    });
    const together = await Promise.all(
      Array.from({ length: 6 }, () => jobs).flatMap((round) => round.map(({ on, batch }) => on.async(batch))),
    );
    together.forEach((computed, i) => {
      assertSameBits(computed, jobs[i % jobs.length]!.alone);
    });
    assert.equal(together.length, 6 * jobs.length);
  });
});
