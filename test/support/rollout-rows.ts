/** Draws rows for rollout files, and losses and metrics for evaluations in parts. */
import type { FunctionDeclaration } from '../../lib/base/declaration.js';
import { LOSS_FN, VALUE_LOSS_FN } from '../../lib/index.js';
import { lossSubject, type Subject } from '../../lib/tools/parts/index.js';
import { requiredArgs } from './draw.js';
import { modesOf } from './functions.js';
import { generator } from './random.js';

/** The columns of a row. */
export type Columns = Record<string, unknown>;

/**
 * Draws rows of different lengths. Some are empty and some are fully masked. The rows of a group are spread over the
 * file.
 */
export function drawRows(seed: number, count: number): Columns[] {
  const draws = generator(seed);
  const { integer } = draws;
  const uniform = (low: number, high: number) => low + (high - low) * draws.uniform();
  const list = (tokens: number, low: number, high: number) =>
    Array.from({ length: tokens }, () => Math.fround(uniform(low, high)));
  return Array.from({ length: count }, (_, row) => {
    const tokens = integer(0, 9);
    const logprobs = list(tokens, -3, -0.01);
    const mask = row % 11 === 5 ? 0 : 1;
    return {
      logprobs,
      old_logprobs: logprobs.map((x) => x + uniform(-0.6, 0.6)),
      ref_logprobs: logprobs.map((x) => x + uniform(-0.6, 0.6)),
      teacher_logprobs: list(tokens, -3, -0.01),
      rollout_logprobs: logprobs.map((x) => x + uniform(-0.3, 0.3)),
      prox_logprobs: logprobs.map((x) => x + uniform(-0.3, 0.3)),
      entropy: list(tokens, 0, 3),
      old_entropy: list(tokens, 0, 3),
      values: list(tokens, -1, 1),
      old_values: logprobs.map((x) => Math.sin(7 * x)),
      returns: logprobs.map((x) => Math.cos(5 * x)),
      action_mask: logprobs.map(() => mask * Number(integer(0, 4) > 0)),
      reward: integer(0, 6) / 2,
      reward_baseline: uniform(0, 2),
      v_star: uniform(0, 2),
      probability: uniform(0, 1),
      log_z: uniform(-1, 1),
      task_id: `task ${integer(0, 6)}`,
      run_id: integer(0, 3),
      expert: integer(0, 3) === 0,
      step: 5,
      margin: (row % 4) / 10,
      sample_mask: row % 6 < 4,
      loss_mask_sum: tokens + 1,
      rollout_id: `rollout ${row >> 1}`,
    };
  });
}

/** Returns the metrics of a subject that are there when the rows are computed in parts. */
export function metricsOfParts({ subject, metrics }: { subject: Subject; metrics: object }): string[] {
  const { lossFn } = subject;
  const { policyLoss } = 'spec' in lossFn ? lossFn.spec : lossFn;
  const ofBatch =
    policyLoss && 'program' in policyLoss ? policyLoss.metrics.filter(({ per }) => per === 'batch') : [];
  const { declaration } = lossFn.constructor as { declaration?: FunctionDeclaration };
  const isOfCall = (name: string) => declaration?.metrics[name]?.when?.endsWith('in one call') === true;
  return Object.keys(metrics).filter(
    (name) => !isOfCall(name) && !ofBatch.some((metric) => metric.name === name),
  );
}

/** Returns all losses that can be computed in parts, in all their aggregations. */
export function lossesInParts(): Subject[] {
  return LOSS_FN.names().flatMap((name) => {
    const { declaration, defaultArgs } = LOSS_FN.get(name);
    const args = requiredArgs(declaration);
    const family = VALUE_LOSS_FN.names().includes(name) ? 'value' : 'policy';
    const modes = 'loss_agg_mode' in defaultArgs() ? modesOf(family, name, args) : [];
    return [
      lossSubject(name, args),
      ...modes.map((mode) => lossSubject(name, { ...args, loss_agg_mode: mode })),
    ].filter(({ lossFn }) => !lossFn.readsWholeBatch);
  });
}
