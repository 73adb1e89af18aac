/** Draws rows for rollout files, and losses and metrics for evaluations in parts. */
import type { FunctionDeclaration } from '../../lib/base/declaration.js';
import { POLICY_LOSS_FN, REWARD_LOSS_FN, VALUE_LOSS_FN } from '../../lib/index.js';
import { lossSubject, type Subject } from '../../lib/tools/parts/index.js';
import { requiredArgs } from './draw-arguments.js';
import { modesOf } from './functions.js';
import { generator } from './random.js';
import type { Family } from './subject.js';

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
      label: row % 2 === 0,
      chosen: row % 2 === 0,
      kl_estimate: 0.25,
      prob_desirable: 0.25 + (row % 5) / 10,
      log_sum_sq_prob: logprobs.map((x) => x / 2 - 1),
      entropy_other: logprobs.map((x) => x / 3),
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

/** Returns all losses that rollout files have the columns for, in all their aggregations. */
export function lossesOfFiles(): Subject[] {
  const registries = { policy: POLICY_LOSS_FN, value: VALUE_LOSS_FN, reward: REWARD_LOSS_FN };
  return Object.entries(registries).flatMap(([family, registry]) =>
    registry.names().flatMap((name) => {
      const { declaration, defaultArgs } = registry.get(name);
      const args = requiredArgs(declaration);
      const modes = 'loss_agg_mode' in defaultArgs() ? modesOf(family as Family, name, args) : [];
      return [
        lossSubject(name, args),
        ...modes.map((mode) => lossSubject(name, { ...args, loss_agg_mode: mode })),
      ];
    }),
  );
}

/** Returns those of them that can be computed in parts. */
export function lossesInParts(): Subject[] {
  return lossesOfFiles().filter(({ lossFn }) => !lossFn.readsWholeBatch);
}
