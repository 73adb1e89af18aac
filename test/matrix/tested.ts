/**
 * The functions that the matrix tests. All of them have the same calls here: policy losses, KL functions and their
 * estimates, entropy losses, objectives, losses from expressions, advantage functions and corrections.
 */
import {
  ADVANTAGE_FN,
  type Batch,
  CORRECTION_FN,
  type Counts,
  type DeviceBatch,
  type DeviceCallOptions,
  ENTROPY_LOSS_FN,
  type HalfColumn,
  KL_FN,
  type Normalizer,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  VALUE_LOSS_FN,
} from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import type { Args } from '../reference/index.js';
import { type Computed, type Countable, countable, type Wanted } from '../support/countable.js';
import { type BatchSpec, makeBatch, makeRewarded } from '../support/draw.js';
import { fitting, readsPairs } from '../support/draw-arguments.js';
import type { Half } from '../support/half.js';
import { type Family, HOST_ONLY, withState } from '../support/subject.js';

export type AnyFamily = Family | 'advantage' | 'correction' | 'objective' | 'expression';

/** What a call returns. */
export interface Result {
  /** The loss and the metrics. */
  numbers: Readonly<Record<string, number>>;
  /** One number per token. */
  tokens: Readonly<Record<string, Float32Array | HalfColumn>>;
  /** One number per row. */
  rows: Readonly<Record<string, ArrayLike<number>>>;
  part?: Float64Array;
}

/** Which gradients a call computes: that of its function, none, all that exist, or that of its function in 16 bits. */
export type Gradients = 'float32' | 'none' | 'all' | Half;

export interface Options {
  gradients?: Gradients;
  normalizer?: Normalizer | undefined;
  part?: boolean;
  device?: string | undefined;
  stream?: bigint | undefined;
}

/** The axes along which calls differ; see forms.ts. */
export type Axis = 'layout' | 'columns' | 'masked' | 'gradients' | 'parts' | 'memory';

/** A function with arguments. */
export interface Tested {
  family: string;
  name: string;
  args: Args;
  title: string;
  sync(batch: Batch | DeviceBatch, options?: Options): Result;
  async(batch: Batch | DeviceBatch, options?: Options): Promise<Result>;
  /** Draws a batch that the function can compute. Returns the same batch for the same description. */
  draw(spec: BatchSpec): RewardedBatch;
  /** The axes that the function has in addition to those of every call. */
  axes: readonly Axis[];
  /** The columns whose masked values have no effect; by default all. */
  unread?: readonly (keyof RewardedBatch)[];
  /** Whether the signs of masked advantages have an effect. */
  readsSigns?: boolean;
  /** How the function computes a batch in parts. */
  parts?: Parts;
  /** Whether a device computes other bits per token than the CPU. */
  differsOnDevices?: boolean;
  /** Whether the function reads columns that cannot be uploaded. */
  hostOnly?: boolean;
  /** Whether the CPU computes the function, whatever the option `device` says. */
  onCpu?: boolean;
}

export interface Parts {
  /** The number of rows that must stay in the same part. */
  unit: number;
  count(batch: Batch): Counts;
  merge(parts: Float64Array[], normalizer: Normalizer): Result;
}

const known = new Map<string, RewardedBatch>();

/** Draws a batch, or returns the one that was drawn before for a description and a kind. */
export function drawOnce(
  spec: BatchSpec,
  draw: (spec: BatchSpec) => RewardedBatch,
  kind: string,
): RewardedBatch {
  const key = kind + JSON.stringify(spec);
  const batch = known.get(key) ?? draw(spec);
  known.set(key, batch);
  return batch;
}

const drawLoss = (name: string, args: Args) => (spec: BatchSpec) =>
  drawOnce(fitting(name, args, spec), makeBatch, 'loss');

/** The key of the loss among the numbers of a result. Some metrics are called loss. */
export const LOSS = 'the loss';

export function lossResult(computed: Computed): Result {
  const { loss, gradEntropy, gradLogZ, gradRewards, halfGradEntropy, part } = computed;
  const grad = computed.grad ?? computed.halfGrad;
  const tokens = { grad, gradEntropy: gradEntropy ?? halfGradEntropy };
  return {
    numbers: { [LOSS]: loss, ...withState(computed).metrics },
    tokens: Object.fromEntries(Object.entries(tokens).filter(([, values]) => values)) as Result['tokens'],
    rows: { ...(gradLogZ && { gradLogZ }), ...(gradRewards && { grad: gradRewards }) },
    ...(part && { part }),
  };
}

const requestOf = (gradients: Gradients) =>
  gradients === 'float16' || gradients === 'bfloat16' ? { dtype: gradients } : gradients !== 'none';

const OF_LOSSES = ['layout', 'columns', 'masked', 'gradients', 'memory'] as const;

/** Gives a loss, or an objective, the calls of the matrix. */
export function testedLoss(
  about: Pick<Tested, 'family' | 'name' | 'args' | 'title'> & Partial<Tested>,
  on: Countable,
  { unit = 1, several = false }: { unit?: number; several?: boolean } = {},
): Tested {
  const wanted = ({ gradients = 'float32', part, device, stream }: Options): Wanted => ({
    ...(several &&
      gradients !== 'float32' && { gradEntropy: requestOf(gradients), gradLogZ: gradients === 'all' }),
    grad: requestOf(gradients),
    ...(part && { part }),
    ...(device && { device }),
    ...(stream !== undefined && { stream }),
  });
  return {
    sync: (batch, options = {}) => lossResult(on.sync(batch, options.normalizer, wanted(options))),
    async: async (batch, options = {}) =>
      lossResult(await on.async(batch, options.normalizer, wanted(options))),
    draw: drawLoss(about.name, about.args),
    axes: [...OF_LOSSES, ...(on.readsWholeBatch ? [] : (['parts'] as const))],
    ...(!on.readsWholeBatch && {
      parts: {
        unit,
        count: (batch) => on.countSync(batch),
        merge: (parts, normalizer) => lossResult(on.merge(parts, normalizer)),
      },
    }),
    ...about,
  };
}

/** Arguments with which a batch can be divided: without pairs, dpo has one margin for the whole batch. */
export const divisible = (name: string, args: Args): Args =>
  name === 'dpo' ? { ...args, pairwise: true } : args;

export function tested(family: Family, name: string, args: Args, title = `${family} ${name}`): Tested {
  const on = countable(family, name, args);
  const parts = on.readsWholeBatch ? [] : (['parts'] as const);
  return testedLoss(
    {
      family,
      name,
      args,
      title,
      readsSigns: args.enable_sequence_masking === true,
      // The gradient of rows has no 16 bits.
      ...(family === 'reward' && { axes: ['layout', 'columns', 'memory', ...parts] }),
      hostOnly: HOST_ONLY.includes(name),
    },
    on,
    { unit: readsPairs(name) ? 2 : 1, several: family === 'policy' },
  );
}

/** A function whose calls return one result, whatever gradients are asked for. */
function whole<R>(
  about: Pick<Tested, 'family' | 'name' | 'args' | 'title' | 'draw' | 'axes'> & Partial<Tested>,
  sync: (batch: Batch | DeviceBatch) => R,
  async: (batch: Batch | DeviceBatch, options: DeviceCallOptions) => Promise<R>,
  result: (computed: R) => Result,
): Tested {
  return {
    ...about,
    sync: (batch) => result(sync(batch)),
    async: async (batch, { device, stream } = {}) =>
      result(await async(batch, { ...(device && { device }), ...(stream !== undefined && { stream }) })),
  };
}

/** The estimates of a KL function. They do not read the mask. */
export function testedKlValues(name: string): Tested {
  const fn = KL_FN.create(name);
  const about = { family: 'kl values', name, args: {}, title: `kl values ${name}` };
  return whole(
    { ...about, draw: drawLoss(name, {}), axes: ['layout', 'columns', 'memory'] },
    (batch) => fn.calculateKlSync(batch),
    (batch, options) => fn.calculateKl(batch, options),
    (kl) => ({ numbers: {}, tokens: { kl }, rows: {} }),
  );
}

/** What an advantage function reads under the mask, and what it does not. */
function unreadOf(name: string, args: Args): (keyof RewardedBatch)[] {
  const {
    reads = [],
    readsMasked,
    optional = [],
  } = ADVANTAGE_FN.get(name).declaration as {
    reads?: readonly string[];
    readsMasked?: boolean;
    optional?: readonly string[];
  };
  const columns = {
    tokenLevelRewards: !readsMasked && reads.includes('token_level_rewards'),
    oldLogprob: reads.includes('old_logprob') || (args.rank_penalty ?? null) !== null,
    teacherLogprob: reads.includes('teacher_logprob'),
    sumPiSquared: reads.includes('sum_pi_squared'),
    rolloutIsWeights: optional.includes('rollout_is_weights'),
  };
  return Object.entries(columns).flatMap(([key, isUnread]) => (isUnread ? [key as keyof RewardedBatch] : []));
}

export function testedAdvantage(
  name: string,
  args: Args,
  perToken = true,
  title = `advantage ${name}`,
): Tested {
  const fn = ADVANTAGE_FN.create(name, args);
  const about = { family: 'advantage', name, args, title };
  return whole(
    {
      ...about,
      draw: (spec) =>
        drawOnce(
          spec,
          () => makeRewarded({ groups: 'some', rewards: 'normal', perToken, ...spec }),
          `advantage ${perToken}`,
        ),
      axes: [
        // This function has a metric of all positions, padding too.
        ...(name === 'roll/opd' ? [] : (['layout'] as const)),
        'columns',
        'memory',
        ...(unreadOf(name, args).length > 0 ? (['masked'] as const) : []),
      ],
      unread: unreadOf(name, args),
      differsOnDevices: true,
      hostOnly: fn.definition.named !== undefined || fn.definition.hostOnly,
      onCpu: fn.definition.hostOnly,
    },
    (batch) => fn.computeSync(batch),
    (batch, options) => fn.compute(batch, options),
    ({ advantages, returns, keptRows, copies, metrics }) => ({
      numbers: metrics,
      tokens: { advantages, returns },
      rows: { keptRows, ...(copies && { copies }) },
    }),
  );
}

export function testedCorrection(name: string, args: Args, title = `correction ${name}`): Tested {
  const fn = CORRECTION_FN.create(name, args);
  const about = { family: 'correction', name, args, title };
  return whole(
    { ...about, draw: drawLoss(name, {}), axes: ['layout', 'columns', 'masked'] },
    (batch) => fn.computeSync(batch),
    (batch, options) => fn.compute(batch, options),
    ({ weights, keptMask, metrics }) => ({
      numbers: metrics as Record<string, number>,
      tokens: { ...(weights && { weights }), keptMask: Float32Array.from(keptMask) },
      rows: {},
    }),
  );
}

/** The registries, by the family whose functions they hold. */
export const REGISTRIES = {
  policy: POLICY_LOSS_FN,
  kl: KL_FN,
  entropy: ENTROPY_LOSS_FN,
  advantage: ADVANTAGE_FN,
  correction: CORRECTION_FN,
  value: VALUE_LOSS_FN,
  reward: REWARD_LOSS_FN,
};
