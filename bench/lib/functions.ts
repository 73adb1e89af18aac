// Every function on batches of every shape: this package, the traffic floor and the peers take turns.
import type { Peer } from '../peers/peer.js';
import { checkAgreement } from './agreement.js';
import { type Inputs, makeInputs, type Shape, withCorners } from './batch.js';
import { floor } from './floor.js';
import { type Contender, contender, contenderAtOnce, race } from './race.js';
import { type FunctionTimes, OURS } from './report.js';
import { ratio, speed, spread, type TableContent } from './tables.js';
import { type Gradients, gradientsOf, type Work } from './works.js';

/** The smallest one is for computeSync(); the largest has more than the caches hold. */
export const SMALL: Shape = [8, 512];
export const CACHED: Shape = [256, 1024];
export const MIDDLE: Shape = [512, 2048];
export const LARGE: Shape = [1024, 4096];

/** That peers compute what this package does, also where masks and ratios are such as are not timed. */
export async function checkPeers(works: readonly Work[], peers: readonly Peer[]): Promise<void> {
  const inputs = withCorners(makeInputs([16, 256]));
  for (const peer of peers) {
    await peer.load(inputs);
    for (const work of works)
      for (const gradient of [false, true])
        if (peer.covers(work)) await prepared(peer, work, inputs, gradient, async () => {});
  }
}

/** All works on batches of a shape, without gradients and with them. */
export async function timeFunctions(
  works: readonly Work[],
  peers: readonly Peer[],
  shape: Shape,
  rounds: number,
): Promise<FunctionTimes[]> {
  const inputs = makeInputs(shape);
  for (const peer of peers) await peer.load(inputs);
  const results: FunctionTimes[] = [];
  for (const work of works)
    for (const gradient of [false, true]) {
      const covering = peers.filter((peer) => peer.covers(work));
      results.push(await timeFunction(work, covering, inputs, gradient, rounds));
    }
  return results;
}

async function timeFunction(
  work: Work,
  peers: readonly Peer[],
  inputs: Inputs,
  gradient: boolean,
  rounds: number,
): Promise<FunctionTimes> {
  const { shape } = inputs;
  const gradients = gradient ? gradientsOf(work, shape[0] * shape[1]) : {};
  const contenders = ours(work, inputs, gradients);
  const errors: Record<string, number> = {};
  // Each peer stays ready while the next one is made so.
  const enter = async ([peer, ...others]: readonly Peer[]): Promise<FunctionTimes['times']> => {
    if (!peer) return race(contenders, rounds);
    return prepared(peer, work, inputs, gradient, (theirs, error) => {
      contenders.push(theirs);
      errors[peer.name] = error;
      return enter(others);
    });
  };
  return { id: work.id, shape, gradient, times: await enter(peers), errors };
}

// Small batches are computed at once, where nothing is handed to other threads; the floor has no such form.
function ours(work: Work, inputs: Inputs, gradients: Gradients): Contender[] {
  if (inputs.shape === SMALL) return [contenderAtOnce(OURS, () => work.computeSync(inputs, gradients))];
  return [contender(OURS, () => work.compute(inputs, gradients)), floor(work, inputs, gradients)];
}

// Makes a peer ready, sees to it that it computes the same, and frees what it needed when `use` has ended.
async function prepared<T>(
  peer: Peer,
  work: Work,
  inputs: Inputs,
  gradient: boolean,
  use: (theirs: Contender, error: number) => Promise<T>,
): Promise<T> {
  const [rows, columns] = inputs.shape;
  const expected = work.computeSync(inputs, gradient ? gradientsOf(work, rows * columns) : {});
  const theirs = await peer.prepare(work, gradient);
  try {
    const who = `${peer.name}, ${work.id} on ${rows}×${columns}`;
    return await use(theirs, checkAgreement(who, await theirs.evaluate(), expected));
  } finally {
    await theirs.release();
  }
}

/** One table of a shape. */
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
      `${small ? 'computeSync()' : 'compute()'}; × means that a peer took so many times as long`,
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

/** Everybody's own times for one function. */
export function contendersTable({ id, shape, gradient, times }: FunctionTimes): TableContent {
  const [rows, columns] = shape;
  return {
    title: `Everybody's times for ${id}, ${gradient ? 'forward and gradient' : 'forward alone'}, ${rows}×${columns}`,
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
