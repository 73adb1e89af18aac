// Times the policy losses of other frameworks and papers than Trinity-RFT. Each takes turns with the built-in PPO and
// with the peers that have it.
import type { Peer } from '../peers/peer.js';
import { LARGE, timeFunctions } from './functions.js';
import { passesOf } from './passes.js';
import { contender } from './race.js';
import { type FrameworkTimes, OURS } from './report.js';
import { digits, ratio, spread, type TableContent } from './tables.js';
import { type Work, works } from './works.js';

/** The names of the built-in PPO and of a loss without its gradient among the contenders. */
const PPO = 'ppo';
const FORWARD = 'forward alone';

/**
 * The largest time of a loss that meets its target, divided by PPO's time. A loss may take longer if it needs more than
 * one pass over the tokens, for example because its gradient depends on sums over rows.
 */
export const LIMITS = { onePass: 1.5, severalPasses: 2.2 };

/** Times losses with gradients and without, on a batch of the shape LARGE. */
export async function timeFrameworks(
  losses: readonly Work[],
  peers: readonly Peer[],
  rounds: number,
): Promise<FrameworkTimes[]> {
  const [ppo] = works(/^ppo$/);
  const times = await timeFunctions(losses, peers, LARGE, rounds, [true], (loss, inputs, gradients) => [
    contender(PPO, () => ppo!.compute(inputs, gradients)),
    contender(FORWARD, () => loss.compute(inputs, {})),
  ]);
  return times.map((each, i) => ({ ...each, passes: passesOf(losses[i]!.spec) }));
}

/** Returns how many times as long as PPO a loss takes. */
export function timeOverPpo({ times }: FrameworkTimes): number {
  return times[OURS]!.median / times[PPO]!.median;
}

export function limitOf({ passes }: FrameworkTimes): number {
  return passes > 1 ? LIMITS.severalPasses : LIMITS.onePass;
}

/** Returns the table of all losses and the peers that have them. */
export function frameworksTable(losses: readonly FrameworkTimes[], peers: readonly Peer[]): TableContent {
  const names = peers.map(({ name }) => name).filter((name) => losses.some(({ times }) => times[name]));
  return {
    title:
      `Losses of other frameworks and papers, forward and gradient, ${LARGE.join('×')}; × is the peer's time divided ` +
      "by this package's",
    head: [
      'loss',
      'passes',
      'ms',
      'min – max',
      "time / PPO's",
      'wanted',
      'forward alone, ms',
      ...names.map((name) => `× ${name}`),
    ],
    rows: losses.map((loss) => [
      loss.id,
      String(loss.passes),
      loss.times[OURS]!.median.toFixed(2),
      spread(loss.times[OURS]!),
      digits(timeOverPpo(loss)),
      `≤ ${limitOf(loss)}`,
      loss.times[FORWARD]!.median.toFixed(2),
      ...names.map((name) => ratio(loss.times[name], loss.times[OURS])),
    ]),
  };
}
