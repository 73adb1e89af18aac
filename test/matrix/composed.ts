/** Functions that are composed of others: objectives of algorithms, losses from expressions, and corrected losses. */
import fc from 'fast-check';
import { LOSS_AGG_MODES } from '../../lib/base/options.js';
import { ALGORITHM_TYPE, lossFromExpression } from '../../lib/index.js';
import type { Args } from '../reference/index.js';
import { countable, countableLoss, objective } from '../support/countable.js';
import { makeBatch, makeRewarded } from '../support/draw.js';
import { readsPairs } from '../support/draw-arguments.js';
import { EXPRESSIONS } from '../support/expressions.js';
import { EVERY_POLICY, partsOf } from '../support/objective.js';
import { userLoss } from '../support/user-loss.js';
import { divisible, drawOnce, type Tested, testedLoss } from './tested.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

export function testedObjective(
  algorithm: string,
  config: Args,
  name: string,
  more: Partial<Tested> = {},
): Tested {
  const policy = (config.policy_loss_fn ?? algorithm) as string;
  const args = (config.policy_loss_fn_args ?? {}) as Args;
  return testedLoss(
    {
      family: 'objective',
      name,
      args,
      title: `objective ${name}`,
      readsSigns: args.enable_sequence_masking === true,
      ...more,
    },
    objective(algorithm, config),
    { unit: readsPairs(policy) ? 2 : 1, several: true },
  );
}

/** Objectives with KL and entropy losses, and one that computes its advantages. */
export function objectives(): Tested[] {
  const entropy = { entropy_loss_fn: 'default', entropy_loss_fn_args: { entropy_coef: 0.1 } };
  const ofRewards = { kl_loss_fn: 'k2', kl_loss_fn_args: { kl_coef: 0.1 } };
  const rewarded: Partial<Tested> = {
    draw: (spec) =>
      drawOnce(
        spec,
        () => {
          const shape = { groups: 'some', rewards: 'normal', perToken: false } as const;
          const { advantages: _, ...batch } = makeRewarded({ ...shape, ...spec });
          return batch;
        },
        'rewarded',
      ),
    // Rows of a group must be in the same part, and a masked row's reward counts.
    axes: ['layout', 'columns', 'masked', 'gradients', 'memory'],
    differsOnDevices: true,
  };
  return [
    ...['ppo', 'gspo', 'sft', 'mix'].map((policy_loss_fn) =>
      testedObjective('ppo', { policy_loss_fn, kl_loss_fn: 'k3', ...entropy }, `of ${policy_loss_fn}`),
    ),
    testedObjective('grpo', { ...ofRewards, ...entropy }, 'from rewards', rewarded),
    testedObjective(
      'grpo',
      { ...ofRewards, entropy_loss_fn: 'none', entropy_loss_fn_args: { entropy_coef: 0 } },
      'from rewards, without an entropy loss',
      rewarded,
    ),
  ];
}

/** The objective of every algorithm, as it is by default. */
export const algorithms = (): Tested[] =>
  ALGORITHM_TYPE.names().map((name) => testedObjective(name, {}, name));

/** Objectives of functions and arguments that are drawn at random. */
export function drawnObjectives(count: number): Tested[] {
  return fc.sample(partsOf(EVERY_POLICY), { seed: SEED + 1, numRuns: count }).map(({ parts, config }, i) => {
    const { name, args } = parts.policy;
    const given = { ...config, policy_loss_fn_args: divisible(name, config.policy_loss_fn_args as Args) };
    return testedObjective('ppo', { ...given, policy_loss_fn: name }, `#${i} of ${name}`, { name, args });
  });
}

export function testedExpression(
  text: string,
  options: Parameters<typeof lossFromExpression>[1] = {},
  title = `expression ${text}`,
): Tested {
  const about = { family: 'expression', name: text, args: {}, title };
  return testedLoss(about, countableLoss(lossFromExpression(text, options)), { several: true });
}

/** Losses from expressions that are drawn at random, and some with gradients with respect to entropies. */
export function drawnExpressions(count: number): Tested[] {
  const drawn = (['token', 'row', 'batch'] as const).flatMap((level) =>
    fc
      .sample(fc.tuple(EXPRESSIONS[level], EXPRESSIONS[level]), { seed: SEED, numRuns: count })
      .map(([loss, metric], i) => {
        const mode = i % 2 ? LOSS_AGG_MODES[i % LOSS_AGG_MODES.length]! : 'seq-mean-token-sum-norm';
        const { fn, text } = userLoss(loss, mode, { metric });
        const about = { family: 'expression', name: `${level} ${i % 5}`, args: {} };
        return testedLoss({ ...about, title: `expression ${text}, ${mode}` }, countableLoss(fn));
      }),
  );
  const texts = ['max(-A*r, -A*clip(r, 0.8, 1.2))', '-A*min(r, 1.2)*batch_mean(r)', 'A*entropy*r'];
  return [...drawn, ...texts.map((text) => testedExpression(text))];
}

const REJECTION = { rollout_rs: 'token_k1,seq_mean_k3', rollout_rs_threshold: '1.2,0.02' };
const CORRECTIONS: Record<string, Args> = {
  tokens: { correction: { rollout_is: 'token', rollout_is_threshold: '0.9_1.1' } },
  rows: { correction: { rollout_is: 'sequence', ...REJECTION } },
  normalized: { correction: { rollout_is: 'token', rollout_is_batch_normalize: true, ...REJECTION } },
  masks: { masks: { delta: 1.1, overlong_length: 60, off_policy_mask_threshold: 0.01 } },
  entropies: { masks: { top_entropy_quantile: 0.3 } },
  both: {
    correction: { rollout_is: 'token', rollout_rs: 'token_k1', rollout_rs_threshold: 1.1 },
    masks: { delta: 1.2, off_policy_mask_threshold: 0.01 },
  },
};
const CORRECTED: Record<string, Args> = {
  ppo: { clip_range: 0.2 },
  gspo: { clip_range: 0.2 },
  mix: { clip_range: 0.2 },
  'verl/geo_mean': {},
  'trl/dapo': {},
  ce_gppo: {},
};

const WEIGHTED: Record<string, Args> = {
  ppo: { clip_range: 0.2 },
  gspo: { clip_range: 0.2, loss_agg_mode: 'seq-mean-token-mean' },
  mix: { clip_range: 0.2 },
  sft_phi: {},
  'verl/gspo': {},
  'trl/dapo': { vllm_importance_sampling_correction: true },
};

/** Losses on batches that weigh tokens, some of them corrected. */
export function weightedLosses(): Tested[] {
  const of = (family: 'policy' | 'value', name: string, args: Args, kind = '') =>
    testedLoss(
      {
        family: `weighted ${family}`,
        name,
        args,
        title: `${family} ${name}, weighted${kind}`,
        draw: (spec) => drawOnce({ ...spec, weights: true }, makeBatch, 'weighted'),
      },
      countable(family, name, args),
      { several: family === 'policy' },
    );
  const correction = { correction: { rollout_is: 'token', ...REJECTION } };
  return [
    ...Object.entries(WEIGHTED).map(([name, args]) => of('policy', name, args)),
    of('policy', 'ppo', { ...WEIGHTED.ppo, ...correction }, ' and corrected'),
    of('policy', 'trl/dapo', correction, ' and corrected'),
    of('value', 'verl/value', {}),
    of('value', 'rlinf/value', { value_clip: 0.2 }),
  ];
}

/** Losses whose tokens a correction weighs, or masks leave out. */
export function correctedLosses(): Tested[] {
  return Object.entries(CORRECTED).flatMap(([name, args]) =>
    Object.entries(CORRECTIONS).map(([kind, correction]) => {
      const all = { ...args, ...correction };
      const about = {
        family: 'corrected policy',
        name,
        args: all,
        title: `policy ${name}, corrected: ${kind}`,
      };
      return testedLoss(
        { ...about, differsOnDevices: kind === 'normalized' },
        countable('policy', name, all),
        { several: true },
      );
    }),
  );
}
