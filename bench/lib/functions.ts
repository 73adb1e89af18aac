// Times every function on batches of several shapes. This package, the traffic floor (see floor.ts) and the peers
// (other implementations) take turns.

import type { Peer, Prepared } from '../peers/peer.js';
import { checkAgreement } from './agreement.js';
import { type Inputs, makeInputs, type Shape, withCorners } from './batch.js';
import { floor } from './floor.js';
import { type Contender, contender, race, syncContender } from './race.js';
import { type FunctionTimes, OURS } from './report.js';
import { ratio, speed, spread, type TableContent } from './tables.js';
import { type Gradients, gradientsOf, type Work } from './works.js';

/**
 * The shapes of the timed batches. SMALL is timed through computeSync(). CACHED fits in the caches, and LARGE does not.
 */
export const SMALL: Shape = [8, 512];
export const CACHED: Shape = [256, 1024];
export const MIDDLE: Shape = [512, 2048];
export const LARGE: Shape = [1024, 4096];

/**
 * Checks that the peers' results agree with this package's. The batch has masked tokens and extreme ratios, which the
 * timed batches do not have.
 * @throws Error if they do not agree.
 */
export async function checkPeers(
  works: readonly Work[],
  peers: readonly Peer[],
  shape: Shape = [16, 256],
): Promise<void> {
  const inputs = withCorners(makeInputs(shape));
  for (const peer of peers) {
    await peer.load(inputs);
    for (const work of works.filter((each) => peer.covers(each)))
      for (const gradient of [false, true]) {
        const theirs = await peer.prepare(work, gradient);
        try {
          await checkPrepared(peer, theirs, work, inputs, gradient);
        } finally {
          await theirs.release();
        }
      }
  }
}

/**
 * Compares a peer's results with this package's, and returns the largest relative error.
 * @throws Error if it is above the tolerance.
 */
async function checkPrepared(
  peer: Peer,
  theirs: Prepared,
  work: Work,
  inputs: Inputs,
  gradient: boolean,
): Promise<number> {
  const [rows, columns] = inputs.shape;
  const gradients = gradient ? gradientsOf(work, rows * columns) : {};
  const { loss, metrics } = work.computeSync(inputs, gradients);
  const who = `${peer.name}, ${work.id} on ${rows}×${columns}`;
  return checkAgreement(who, await theirs.evaluate(), { loss, metrics, ...gradients });
}

/** Returns what takes turns with a function, in addition to the peers. */
type Rivals = (work: Work, inputs: Inputs, gradients: Gradients) => Contender[];

// Small batches are timed through computeSync(). They have no traffic floor, because the floor can only be measured
// asynchronously.
const floorOf: Rivals = (work, inputs, gradients) =>
  inputs.shape === SMALL ? [] : [floor(work, inputs, gradients)];

/**
 * Times every function on a batch of one shape, by default both without gradients and with them.
 * @param rivals what takes turns with a function in addition to the peers; its traffic floor by default.
 */
export async function timeFunctions(
  works: readonly Work[],
  peers: readonly Peer[],
  shape: Shape,
  rounds: number,
  withGradients: readonly boolean[] = [false, true],
  rivals = floorOf,
): Promise<FunctionTimes[]> {
  const inputs = makeInputs(shape);
  for (const peer of peers) await peer.load(inputs);
  const results: FunctionTimes[] = [];
  for (const work of works)
    for (const gradient of withGradients)
      results.push(await timeFunction(work, peers, inputs, gradient, rounds, rivals));
  return results;
}

async function timeFunction(
  work: Work,
  peers: readonly Peer[],
  inputs: Inputs,
  gradient: boolean,
  rounds: number,
  rivals: Rivals,
): Promise<FunctionTimes> {
  const { shape } = inputs;
  const gradients = gradient ? gradientsOf(work, shape[0] * shape[1]) : {};
  const prepared: Prepared[] = [];
  const errors: Record<string, number> = {};
  try {
    for (const peer of peers.filter((each) => each.covers(work))) {
      const theirs = await peer.prepare(work, gradient);
      prepared.push(theirs);
      errors[peer.name] = await checkPrepared(peer, theirs, work, inputs, gradient);
    }
    const times = await race(
      [ours(work, inputs, gradients), ...rivals(work, inputs, gradients), ...prepared],
      rounds,
    );
    return { id: work.id, shape, gradient, times, errors };
  } finally {
    for (const theirs of prepared) await theirs.release();
  }
}

function ours(work: Work, inputs: Inputs, gradients: Gradients): Contender {
  // Only comparisons with another implementation need the keys. Users let clip_cov draw its tokens.
  const { clipCovKeys: _, ...usual } = inputs;
  if (inputs.shape === SMALL) return syncContender(OURS, () => work.computeSync(usual, gradients));
  return contender(OURS, () => work.compute(usual, gradients));
}

/** Returns the table of all functions' times on batches of one shape. */
export function functionsTable(
  functions: readonly FunctionTimes[],
  shape: Shape,
  gradient: boolean,
  peers: readonly Peer[],
): TableContent {
  const [rows, columns] = shape;
  const small = shape === SMALL;
  const scale = small ? 1e3 : 1;
  const listed = functions.filter((f) => f.shape.join() === shape.join() && f.gradient === gradient);
  const names = peers.map(({ name }) => name).filter((name) => listed.some(({ times }) => times[name]));
  return {
    title:
      `${gradient ? 'Forward and gradient' : 'Forward alone'}, ${rows}×${columns}, through ` +
      `${small ? 'computeSync()' : 'compute()'}; × is the peer's time divided by this package's`,
    head: [
      'function',
      small ? 'µs' : 'ms',
      'min – max',
      'Mtoken/s',
      ...(small ? [] : ['of the floor']),
      ...names.map((name) => `× ${name}`),
    ],
    rows: listed.map(({ id, times }) => {
      const sample = times[OURS]!;
      return [
        id,
        (sample.median * scale).toFixed(2),
        spread(sample, scale),
        speed(rows * columns, sample),
        ...(small ? [] : [ratio(times.floor, sample)]),
        ...names.map((name) => ratio(times[name], sample)),
      ];
    }),
  };
}

/** Returns the table that compares the times of all contenders for one function. */
export function contendersTable({ id, shape, gradient, times }: FunctionTimes): TableContent {
  const [rows, columns] = shape;
  return {
    title: `All contenders for ${id}, ${gradient ? 'forward and gradient' : 'forward alone'}, ${rows}×${columns}`,
    head: ['contender', 'ms', 'min – max', 'calls', 'Mtoken/s', `time / ${OURS}'s`],
    rows: Object.entries(times).map(([name, sample]) => [
      name,
      sample.median.toFixed(3),
      spread(sample),
      String(sample.calls),
      speed(rows * columns, sample),
      ratio(sample, times[OURS]),
    ]),
  };
}
