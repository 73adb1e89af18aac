/**
 * Tests that computations at the same time, or on more threads than a machine has, give the same bits as alone. The
 * matrix tests every function on a few threads.
 */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import { setThreads } from '../../lib/index.js';
import { type BatchSpec, laidOut, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { oneOfEach } from '../support/functions.js';
import { paddedBatch, type Subject, subject } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';

// Large enough to be divided among threads.
const PADDED: BatchSpec = { seed: 3, rows: 8, columns: 5000, values: 'wide', mask: 'random', packed: false };

describe('determinism', () => {
  after(() => setThreads(cpus().length));

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
    const jobs = oneOfEach().map(({ family, name, args }, i) => {
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
