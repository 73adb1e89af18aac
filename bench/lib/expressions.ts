// Times losses that are written as expressions: PPO compared with the built-in PPO, and others compared with PyTorch.
import { readFileSync } from 'node:fs';
import { lossFromExpression } from '../../lib/index.js';
import type { Peer, Prepared } from '../peers/peer.js';
import { checkAgreement } from './agreement.js';
import { makeInputs, type Shape } from './batch.js';
import { LARGE, SMALL, timeFunctions } from './functions.js';
import { contender, race, syncContender } from './race.js';
import { type FunctionTimes, OURS, type Times } from './report.js';
import { ratio, speed, spread, type TableContent } from './tables.js';
import { gradientsOf, policyWork, type Work } from './works.js';

const GOLDEN_CASES = new URL('../../test/golden/beyond/expressions.json', import.meta.url);

/**
 * Returns the expressions of the golden cases as functions to time. torch_losses.py has each of them under its text.
 * @param only a pattern for the ids of the functions.
 */
export function expressionWorks(only: RegExp | undefined): Work[] {
  const cases: { expression: string; args: Record<string, number> }[] = JSON.parse(
    readFileSync(GOLDEN_CASES, 'utf8'),
  );
  return cases
    .map(({ expression, args }) => expressionWork(expression, args))
    .filter(({ id }) => !only || only.test(id));
}

function expressionWork(text: string, options: Record<string, number>): Work {
  const named = { id: `expression ${text}`, family: 'expression', name: text, args: options } as const;
  return policyWork(named, lossFromExpression(text, { options }));
}

/** Times the expressions and those peers that have them, with gradients. */
export function timeExpressions(
  works: readonly Work[],
  peers: readonly Peer[],
  rounds: number,
): Promise<FunctionTimes[]> {
  return timeFunctions(works, peers, LARGE, rounds, [true]);
}

/** PPO as an expression: the same loss and metrics as the built-in PPO with its default options. */
const PPO = (() => {
  const ratio = 'exp(clip(d, -20, 20))';
  const clipped = `-A*clip(${ratio}, 0.8, 1.2)`;
  const upper = `max(-A*${ratio}, ${clipped})`;
  return {
    text: `A < 0 ? min(${upper}, -3*A) : ${upper}`,
    metrics: {
      pg_clipfrac: `${clipped} > -A*${ratio}`,
      pg_clipfrac_lower: `A < 0 && ${upper} > -3*A`,
      ppo_kl: '-clip(d, -20, 20)',
    },
  };
})();

/** PPO as the README writes it: the clipped surrogate and its clip fraction, without the dual clip. */
const CLIPPED_PPO = {
  text: 'max(-A*r, -A*clip(r, 1-low, 1+high))',
  options: { low: 0.2, high: 0.2 },
  metrics: { pg_clipfrac: 'abs(r-1) > 0.2' },
};

/** The names of PPO as expressions among the contenders: all of the built-in PPO, and the README's form. */
export const AS_EXPRESSION = 'as an expression';
export const CLIPPED_EXPRESSION = 'as the expression of the README';
/** The name of this package's own PPO among the contenders. */
export const BUILT_IN = 'built-in';

/** The times of PPO as an expression, of the built-in PPO, and of the peers that cover `ppo`. */
export interface PpoTimes {
  /** compute() on a batch of the shape LARGE. */
  large: Times;
  /** computeSync() on a batch of the shape SMALL. */
  small: Times;
}

/**
 * Times PPO as an expression, forward and gradient.
 * @param ppo the built-in PPO.
 * @throws Error if the expression's results differ from the built-in loss's.
 */
export async function timePpo(ppo: Work, peers: readonly Peer[], rounds: number): Promise<PpoTimes> {
  const expression = lossFromExpression(PPO.text, { metrics: PPO.metrics });
  const { text, ...options } = CLIPPED_PPO;
  const clipped = lossFromExpression(text, options);
  const small = inputsFor(ppo, SMALL);
  const times = await race(
    [
      syncContender(BUILT_IN, () => ppo.computeSync(small.inputs, small.own)),
      syncContender(AS_EXPRESSION, () => expression.computeSync(small.inputs, small.other)),
    ],
    rounds,
  );
  const { inputs, own, other } = inputsFor(ppo, LARGE);
  const contenders = [
    contender(BUILT_IN, () => ppo.compute(inputs, own)),
    contender(AS_EXPRESSION, () => expression.compute(inputs, other)),
    contender(CLIPPED_EXPRESSION, () => clipped.compute(inputs, other)),
  ];
  // The expression has no metric pg_loss, because it would only repeat the loss.
  const { loss, metrics } = ppo.computeSync(inputs, own);
  delete metrics.pg_loss;
  checkAgreement(
    AS_EXPRESSION,
    { ...expression.computeSync(inputs, other), ...other },
    { loss, metrics, ...own },
  );
  const prepared: Prepared[] = [];
  try {
    for (const peer of peers.filter((each) => each.covers(ppo))) {
      await peer.load(inputs);
      prepared.push(await peer.prepare(ppo, true));
    }
    return { small: times, large: await race([...contenders, ...prepared], rounds) };
  } finally {
    for (const one of prepared) await one.release();
  }
}

function inputsFor(work: Work, shape: Shape) {
  const gradients = () => gradientsOf(work, shape[0] * shape[1]);
  return { inputs: makeInputs(shape), own: gradients(), other: gradients() };
}

/** Returns the table of all expressions and the peers that have them. */
export function expressionsTable(
  expressions: readonly FunctionTimes[],
  peers: readonly Peer[],
): TableContent {
  const names = peers.map(({ name }) => name).filter((name) => expressions.some(({ times }) => times[name]));
  return {
    title: `Expressions, forward and gradient, ${LARGE.join('×')}; × is the peer's time divided by this package's`,
    head: ['expression', 'ms', 'min – max', 'Mtoken/s', 'of the floor', ...names.map((name) => `× ${name}`)],
    rows: expressions.map(({ id, times }) => {
      const sample = times[OURS]!;
      return [
        id.replace('expression ', ''),
        sample.median.toFixed(2),
        spread(sample),
        speed(LARGE[0] * LARGE[1], sample),
        ratio(times.floor, sample),
        ...names.map((name) => ratio(times[name], sample)),
      ];
    }),
  };
}
