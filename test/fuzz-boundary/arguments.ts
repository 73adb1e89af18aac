/** Valid arguments of the package's functions, for the targets of the boundary fuzzer. */
import * as api from '../../lib/index.js';
import {
  hiddenOfTokens,
  logitsOfTokens,
  ofRows,
  rowsAndGradients,
  teacherOfTokens,
  VOCABULARY,
} from './logits.js';
import type { Anything } from './odd-values.js';

export const ROWS = 2;
export const COLUMNS = 3;
export const TOKENS = ROWS * COLUMNS;
export const column = (value: number) => new Float32Array(TOKENS).fill(value);

/** Makes a batch with all columns except `advantages`, which objectives compute from the rewards. */
export const rewarded = () => ({
  shape: [ROWS, COLUMNS],
  logprob: column(-1),
  oldLogprob: column(-1.5),
  refLogprob: column(-1.25),
  rolloutLogprob: column(-1.5),
  proxLogprob: column(-1.25),
  teacherLogprob: column(-0.5),
  entropy: column(0.5),
  oldEntropy: column(0.75),
  clipCovKeys: column(0.5),
  tokenLevelRewards: column(1),
  tokenLevelScores: column(1),
  values: column(0.25),
  oldValues: column(0.5),
  returns: column(1),
  attentionMask: new Uint8Array(TOKENS).fill(1),
  sampleMask: [1, 1],
  margin: [0.5],
  lossMaskSum: [2, 3],
  rolloutIds: [0, 1],
  label: [true, false],
  chosen: [true],
  probDesirable: [0.5, 0.25],
  logSumSqProb: column(-1),
  entropyOther: column(-0.5),
  klLogprob: [
    [-1, -2],
    [-1, -1],
  ],
  klRefLogprob: column(-1).subarray(0, 4),
  klActionMask: [1, 1, 1, 0],
  datasetIds: [1, 2],
  teacherRows: [1, 0],
  sumPiSquared: column(0.5),
  rolloutIsWeights: column(1),
  actionMask: new Uint8Array(TOKENS).fill(1),
  expertMask: [true, false],
  rewards: [1, 2],
  rewardBaselines: [0, 0],
  vStar: [1, 2],
  probability: [0.25, 0.75],
  logZ: [0, 1],
  groupIds: [1, 1],
  runIds: ['a', 'b'],
  step: 1,
});
export const whole = () => ({ ...rewarded(), advantages: column(0.5) });
/** Makes a batch with all columns that programs can read. Some losses refuse these. */
export const complete = () => ({
  ...whole(),
  tokenWeights: column(0.5),
  answerMask: column(1),
  refLogps: [-2, -3],
  klEstimate: [0.5, 0.5],
});
const withoutLogprob = () => {
  const { logprob, entropy, ...batch } = whole();
  return batch;
};
/** Makes a batch with logits. */
export const ofVocabulary = () => ({ ...withoutLogprob(), ...teacherOfTokens(TOKENS) });
export const CONTROLLER = new AbortController();
const halfGradients = () => ({
  grad: { dtype: 'bfloat16', data: new Uint16Array(TOKENS) },
  gradEntropy: { dtype: 'float16' },
});
const outputs = () => ({ advantages: new Float32Array(TOKENS) });
export const options = () => ({ grad: true, device: 'cpu', signal: CONTROLLER.signal, seed: 1 });
const counts = () => ({ tokens: TOKENS, rows: ROWS, columns: COLUMNS, expert: { tokens: 3, rows: 1 } });
export const config = () => ({
  policy_loss_fn: 'ppo',
  policy_loss_fn_args: { clip_range: 0.2 },
  advantage_fn: 'grpo',
  advantage_fn_args: { epsilon: 1e-6 },
  kl_loss_fn: 'k2',
  kl_loss_fn_args: { kl_coef: 0.1 },
  entropy_loss_fn: 'mix',
  entropy_loss_fn_args: { entropy_coef: 0.1 },
  loss_agg_mode: 'token-mean',
  backend: 'verl',
});

// Valid arguments of methods, by the method's name. They suit every class, unless methods() is given others.
export const METHODS: Record<string, () => Anything[]> = {
  fromLogits: () => [
    { ...withoutLogprob(), ...logitsOfTokens(TOKENS) },
    { ...options(), entropy: true, gradLogits: true },
  ],
  fromLogitsSync: () => [
    { ...withoutLogprob(), ...logitsOfTokens(TOKENS) },
    { grad: true, seed: 1, entropy: true, gradLogits: new Float32Array(2 * TOKENS) },
  ],
  fromHidden: () => [
    { ...withoutLogprob(), ...hiddenOfTokens(TOKENS) },
    { ...options(), entropy: true, gradHidden: true, gradWeight: true, gradBias: true },
  ],
  fromHiddenSync: () => [
    { ...withoutLogprob(), ...hiddenOfTokens(TOKENS) },
    { grad: true, seed: 1, gradHidden: new Float32Array(4 * TOKENS), gradWeight: new Float32Array(12) },
  ],
  compute: () => [whole(), { ...options(), out: outputs() }],
  computeSync: () => [whole(), { ...halfGradients(), seed: 1, out: outputs() }],
  count: () => [whole(), { seed: 1 }],
  countSync: () => [whole(), { seed: 1 }],
  calculateKl: () => [whole(), { device: 'cpu' }],
  calculateKlSync: () => [whole()],
  calculateKlLoss: () => [whole(), { ...options(), lossAggMode: 'token-mean' }],
  calculateKlLossSync: () => [whole(), { grad: true, lossAggMode: 'token-mean' }],
  applyKlPenaltyToReward: () => [whole(), { device: 'cpu' }],
  applyKlPenaltyToRewardSync: () => [whole()],
  updateKlCoef: () => [0.1, 2],
  softGateFunction: () => [
    [1, 2, 1],
    [1, -1, 1],
  ],
  muScheduleFunction: () => [1, 10, 10, 0.5, 0.1],
  toTrinity: () => ['log_prob'],
  fromTrinity: () => ['logprob'],
  get: () => ['ppo'],
  create: () => ['ppo', {}, { backend: 'verl' }],
  register: () => ['fuzzed', class {}],
  names: () => [],
  aliases: () => [],
  defaultArgs: () => [],
  defaultConfig: () => [],
  checkConfig: () => [
    {
      mode: 'train',
      buffer: { trainer_input: { experience_buffer: { path: 'here' } } },
      synchronizer: { sync_method: 'checkpoint' },
    },
  ],
  objective: () => [config()],
};

export const FUNCTIONS: Record<string, () => Anything[]> = {
  logprobs: () => [column(1), { ...ofRows(), signal: CONTROLLER.signal }],
  logprobsSync: () => [column(1), ofRows()],
  logprobsBackward: () => [column(1), { ...rowsAndGradients(), signal: CONTROLLER.signal }],
  logprobsBackwardSync: () => [column(1), rowsAndGradients()],
  devices: () => [],
  setThreads: () => [2],
  sumCounts: () => [[counts(), counts()]],
  trimDevice: () => ['cuda:0'],
  allocPinned: () => [64, 'cuda:0'],
  freePinned: () => [new ArrayBuffer(0)],
  upload: () => [whole(), 'cuda:0', { backend: 'verl', signal: CONTROLLER.signal }],
  lossFromExpression: () => [
    'max(-A*r, -A*clip(r, 1-low, 1+high))',
    {
      options: { low: 0.2, high: 0.28 },
      lossAggMode: 'token-mean',
      metrics: { clipped: 'abs(r-1) > low' },
      name: 'mine',
      backend: 'verl',
    },
  ],
  defineLoss: () => [
    'mine',
    {
      summary: 'a loss',
      source: ['a paper'],
      options: { beta: { type: 'number', default: 0.1, atLeast: 0, atMost: 1, help: 'a factor' } },
      lossAggMode: 'token-mean',
      metrics: { ratio: { unit: 'ratio', value: 'r' } },
      loss: ({ r, A }: api.LossSymbols, { beta }: { beta: number }) => r.mul(A).mul(beta),
    },
  ],
  checkLoss: () => [new api.SFTLossFn(), whole()],
  fromTrinityConfig: () => {
    const { backend, ...section } = config();
    return [{ algorithm: { algorithm_type: 'grpo', ...section } }, { backend }];
  },
  fromConfig: () => [
    {
      'actor_rollout_ref.actor': {
        use_kl_loss: true,
        kl_loss_type: 'k3+',
        clip_ratio_high: 0.28,
        entropy_coeff: 0.01,
      },
      algorithm: {
        adv_estimator: 'grpo',
        rollout_correction: { rollout_is: 'token' },
        kl_ctrl: { type: 'fixed' },
      },
    },
    { framework: 'verl', backend: 'verl' },
  ],
};

/** Valid arguments of the methods of losses that are computed from logits. */
export const OF_LOGITS: typeof METHODS = {
  compute: () => [ofVocabulary(), { gradLogits: true, device: 'cpu', signal: CONTROLLER.signal }],
  computeSync: () => [ofVocabulary(), { gradLogits: new Float32Array(VOCABULARY * TOKENS) }],
  count: () => [ofVocabulary()],
  countSync: () => [ofVocabulary()],
};

// Valid arguments of constructors. A constructor that is not listed here takes the default arguments of its class.
export const CONSTRUCTORS: Record<string, () => Anything[]> = {
  KeyMapper: () => [{ log_prob: 'logprob' }],
};
