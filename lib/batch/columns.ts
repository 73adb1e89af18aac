// The table of all inputs of a batch besides its shape. What reads, copies, names or describes an input takes it from
// here, so a new column is one more row. `npm run generate` writes native/generated/columns.h from it.
import type { InputRow, ValuesOfType } from './input-row.js';

const UNSCORED =
  'TRL leaves a completion without a reward out of the mean and deviation of its group and gives it advantage 0, ' +
  'ms-swift counts it as 0, and in Trinity-RFT, verl and NeMo-RL it makes the advantages of its whole group NaN. ' +
  'Give it a reward, leave its row out, or pass advantages';

/** The table. Its order is that of the package's documentation. */
export const INPUTS = {
  logprob: {
    type: 'floats',
    per: 'token',
    expected: 'a log-probability per token',
    help: "each token's log-probability under the current policy. Gradients are taken with respect to it",
    verl: 'log_prob',
    file: 'logprobs',
    symbol: 'lp',
    loss: 0,
  },
  old_logprob: {
    type: 'floats',
    per: 'either',
    expected: 'a log-probability per token',
    help: "each token's log-probability under the policy that sampled it",
    verl: 'old_log_probs',
    file: 'old_logprobs',
    symbol: 'old',
    loss: 1,
    advantage: 1,
  },
  ref_logprob: {
    type: 'floats',
    per: 'either',
    expected: 'a log-probability per token',
    help: "each token's log-probability under the reference policy",
    verl: 'ref_log_prob',
    file: 'ref_logprobs',
    symbol: 'ref',
    loss: 2,
  },
  rollout_logprob: {
    type: 'floats',
    per: 'either',
    expected: 'a log-probability per token',
    help: "each token's log-probability as the inference engine reported it when it sampled the token",
    verl: 'rollout_log_probs',
    file: 'rollout_logprobs',
    symbol: 'rollout',
    loss: 5,
  },
  prox_logprob: {
    type: 'floats',
    per: 'either',
    expected: 'a log-probability per token',
    help: "each token's log-probability under the proximal policy, the policy at the start of the update",
    file: 'prox_logprobs',
    symbol: 'prox',
    loss: 6,
  },
  advantages: {
    type: 'floats',
    per: 'either',
    expected: 'an advantage per token, or per row',
    help: 'the advantages',
    file: 'advantages',
    symbol: 'A',
    loss: 3,
  },
  action_mask: {
    type: 'flags',
    per: 'token',
    expected: 'a mask per token',
    help: '0 masks a token. If it is absent, all tokens count. Losses and gradients do not depend on the values of masked tokens. Some advantage functions do read their rewards; the details of those functions say so',
    verl: 'response_mask',
    file: 'action_mask',
    member: 'mask',
  },
  entropy: {
    type: 'floats',
    per: 'token',
    expected: 'an entropy per token',
    help: "the entropy of the policy's distribution at each token",
    file: 'entropy',
    symbol: 'H',
    loss: 4,
  },
  old_entropy: {
    type: 'floats',
    per: 'either',
    expected: 'an entropy per token',
    help: 'the entropy of the distribution of the policy that sampled the token',
    file: 'old_entropy',
    symbol: 'old_entropy',
    loss: 8,
  },
  teacher_logprob: {
    type: 'floats',
    per: 'either',
    expected: 'a log-probability per token',
    help: "each token's log-probability under a teacher",
    file: 'teacher_logprobs',
    symbol: 'teacher',
    loss: 7,
    advantage: 2,
  },
  rewards: {
    type: 'numbers',
    per: 'row',
    expected: 'a reward per row',
    help: 'the reward of each row, for advantage functions, and for losses of reward models. The gradients of these are taken with respect to it',
    hint: UNSCORED,
    file: 'reward',
    symbol: 'reward',
    row: 0,
    member: 'rewards',
  },
  token_level_rewards: {
    type: 'floats',
    per: 'token',
    expected: 'a reward per token, or the key rewards with one per row',
    help: 'the reward of each token',
    hint: UNSCORED,
    file: 'token_level_rewards',
    advantage: 0,
  },
  token_level_scores: {
    type: 'floats',
    per: 'token',
    expected: 'a score per token',
    help: 'the score of each token, from which the KL penalty is subtracted to get its reward',
  },
  values: {
    type: 'floats',
    per: 'token',
    expected: "a critic's value per token",
    help: "a critic's estimate of the value at each token. The gradients of value losses are taken with respect to it",
    file: 'values',
    symbol: 'value',
    loss: 10,
    advantage: 3,
  },
  old_values: {
    type: 'floats',
    per: 'either',
    expected: 'a value per token',
    help: "the critic's estimate of the value at each token when the returns were computed",
    file: 'old_values',
    symbol: 'old_value',
    loss: 11,
  },
  returns: {
    type: 'floats',
    per: 'either',
    expected: 'a return per token',
    help: 'the return at each token, which the critic is to estimate',
    file: 'returns',
    symbol: 'returns',
    loss: 12,
  },
  sum_pi_squared: {
    type: 'floats',
    per: 'token',
    expected: "the sum of the vocabulary's squared probabilities per token",
    help: 'for each token, the sum of the squared probabilities of all words of the vocabulary',
    file: 'sum_pi_squared',
    advantage: 4,
  },
  rollout_is_weights: {
    type: 'floats',
    per: 'token',
    expected: 'an importance weight per token',
    help: 'the importance weight of each token from a rollout correction',
    advantage: 5,
  },
  reward_baselines: {
    type: 'numbers',
    per: 'row',
    expected: 'a reward per row',
    help: "the reward of the greedy answer to each row's prompt",
    file: 'reward_baseline',
    member: 'baselines',
  },
  v_star: {
    type: 'numbers',
    per: 'row',
    expected: 'a value per row',
    help: "the estimate of the best reward that each row's prompt allows. Read by trl/a2po",
    file: 'v_star',
    row: 1,
  },
  probability: {
    type: 'numbers',
    per: 'row',
    expected: 'a probability per row',
    help: 'the probability that each row is preferred to another one. Read by trl/nash_md',
    file: 'probability',
    row: 2,
  },
  log_z: {
    type: 'numbers',
    per: 'row',
    expected: 'a logarithm per row',
    help: "the logarithm of the partition function of each row's prompt. Read by verl/flowrl",
    file: 'log_z',
    row: 3,
  },
  sample_mask: {
    type: 'flags',
    per: 'pair',
    expected: 'a mask per row or pair',
    help: '0 leaves out a row, or a pair of rows. If it is absent, all rows count. Read by losses that say so',
    absent: 1,
    file: 'sample_mask',
    row: 4,
  },
  margin: {
    type: 'numbers',
    per: 'pair',
    expected: 'a margin per pair',
    help: 'by how much the reward of the chosen row of each pair should exceed that of the rejected row. If it is absent, all margins are 0',
    symbol: 'margin',
    absent: 0,
    file: 'margin',
    row: 5,
  },
  loss_mask_sum: {
    type: 'numbers',
    per: 'row',
    expected: 'a number of tokens per row',
    help: "the number of unmasked tokens of each row's whole episode. Read by rlinf/value",
    file: 'loss_mask_sum',
    row: 6,
  },
  label: {
    type: 'flags',
    per: 'row',
    expected: 'a flag per row',
    help: 'true for each row that is desirable. Read by the preference losses of single rows, such as trl/kto',
    file: 'label',
    symbol: 'label',
    row: 7,
  },
  ref_logps: {
    type: 'numbers',
    per: 'row',
    expected: 'a log-probability per row',
    help: "each row's log-probability under the reference policy: the sum over its tokens, with their weights in the loss. Preference losses that say so read it in place of ref_logprob",
    file: 'ref_logps',
    row: 8,
    standsFor: 'ref_logprob',
  },
  prob_desirable: {
    type: 'numbers',
    per: 'row',
    expected: 'a probability per row',
    help: 'the probability that the prompt of each row is one of a desirable row. Read by trl/bco',
    file: 'prob_desirable',
    row: 9,
  },
  chosen: {
    type: 'flags',
    per: 'pair',
    expected: 'a flag per pair',
    help: 'true for each pair of which the first row is preferred. Read by trl/xpo',
    file: 'chosen',
    row: 10,
  },
  kl_estimate: {
    type: 'numbers',
    per: 'row',
    expected: 'a number per row',
    help: 'the estimate of the KL divergence, in nats, the same number for all rows. KTO losses compute it from the columns kl_… if it is absent',
    file: 'kl_estimate',
    row: 11,
  },
  group_ids: {
    type: 'ids',
    per: 'row',
    expected: 'an id per row, equal within a group',
    help: 'an id for each row. Rows that answer the same prompt have the same id and form a group',
    file: 'task_id',
    row: 12,
    member: 'groups',
  },
  pair_ids: {
    type: 'ids',
    per: 'row',
    expected: 'an id per row, equal within a pair',
    help: 'an id for each row. Two rows with the same id are a pair, of which the first is chosen and the second is rejected. If it is absent, the rows alternate: chosen, rejected, chosen, … Read by losses over pairs',
    absent: 'alternate',
    file: 'pair_id',
    row: 13,
  },
  run_ids: {
    type: 'ids',
    per: 'row',
    expected: 'an id per row, equal within a run',
    help: 'an id for each row. Rows of a group with the same id are the steps of one run',
    file: 'run_id',
    member: 'runs',
  },
  rollout_ids: {
    type: 'ids',
    per: 'row',
    expected: 'an id per row, equal within a rollout',
    help: 'an id for each row. Rows with the same id are the samples of one rollout. If it is absent, each row is a rollout of its own. Read by slime/value and miles/value',
    absent: 'own',
    file: 'rollout_id',
    takesPlaceOf: 'group_ids',
  },
  dataset_ids: {
    type: 'ids',
    per: 'row',
    expected: 'an id per row, equal within a data set',
    help: 'an id for each row, of the data set of its prompt. Read by tinker/opd for its metrics',
  },
  teacher_rows: {
    type: 'flags',
    per: 'row',
    expected: 'a mask per row',
    help: '0 for each row that the teacher does not score. If it is absent, the teacher scores all rows. Read by roll/opd',
  },
  attention_mask: {
    type: 'flags',
    per: 'token',
    expected: 'a mask per token',
    help: '0 at the tokens that are padding. Read by trl/orpo and easyr1/value; action_mask stands in for it',
    file: 'attention_mask',
    member: 'mask',
  },
  expert_mask: {
    type: 'flags',
    per: 'row',
    expected: 'a mask per row',
    help: 'true for each row that an expert wrote. Read by MIX and the other losses that treat these rows differently',
    file: 'expert',
    member: 'expert',
  },
  step: {
    type: 'step',
    per: 'row',
    expected: "the trainer's step, one number or one per row",
    help: "the trainer's step number, given once or as B equal numbers. Read by MIX-CHORD",
    file: 'step',
  },
  clip_cov_keys: {
    type: 'floats',
    per: 'either',
    expected: 'a number per token',
    help: 'the numbers by which verl/clip_cov chooses the tokens that it does not clip; it draws them if they are absent',
    loss: 9,
  },
  token_weights: {
    type: 'floats',
    per: 'either',
    expected: 'a weight per token',
    help: 'what the loss of each token is multiplied by. Losses of tokens read it if a batch has it; docs/api.md says how',
    file: 'token_weights',
    symbol: 'weights',
    loss: 13,
  },
  log_sum_sq_prob: {
    type: 'floats',
    per: 'token',
    expected: 'a logarithm per token',
    help: 'for each token, the logarithm of the sum of the squared probabilities of all words of the vocabulary. Read by trl/dpo with use_weighting',
    file: 'log_sum_sq_prob',
    loss: 14,
  },
  entropy_other: {
    type: 'floats',
    per: 'token',
    expected: 'a number per token',
    help: 'for each token, the sum over all other words of the vocabulary of sg(probability)·logprob. Read by oat/bnf, whose gradient by it is returned as gradEntropy',
    file: 'entropy_other',
    loss: 15,
  },
  answer_mask: {
    type: 'floats',
    per: 'token',
    expected: 'a number per token',
    help: '0 for tokens of attention_mask, 2 for those of action_mask, and 1 for those of both. trl/orpo makes it from them',
    loss: 16,
  },
  kl_logprob: {
    type: 'floats',
    per: 'token',
    expected: 'a log-probability per token of the mismatched rows',
    help: "the log-probabilities of each row's prompt with another row's answer, under the current policy: B rows of any length, from which KTO losses estimate the KL divergence",
    ofOtherRows: true,
  },
  kl_ref_logprob: {
    type: 'floats',
    per: 'token',
    expected: 'a log-probability per token of the mismatched rows',
    help: 'the same under the reference policy',
    ofOtherRows: true,
  },
  kl_action_mask: {
    type: 'flags',
    per: 'token',
    expected: 'a mask per token of the mismatched rows',
    help: 'the mask of the mismatched rows. If it is absent, all of their tokens count',
    ofOtherRows: true,
  },
  kl_ref_logps: {
    type: 'numbers',
    per: 'row',
    expected: 'a log-probability per mismatched row',
    help: 'the sums of kl_ref_logprob over the rows, in place of it',
  },
} as const satisfies Record<string, InputRow>;

type Inputs = typeof INPUTS;
/** The Trinity-RFT name of any input that a batch may have. */
export type InputName = keyof Inputs;
/** The names of the inputs of which the table has this fact. */
export type InputWith<Fact extends keyof InputRow> = {
  [N in InputName]: Inputs[N] extends Record<Fact, unknown> ? N : never;
}[InputName];
/** The TypeScript type of an input's values. */
export type ValuesOf<N extends InputName> = ValuesOfType[Inputs[N]['type']];
/** The short name of an input in expressions. */
export type SymbolOf<N extends InputWith<'symbol'>> = Inputs[N]['symbol'];
/** verl's name of an input for which it has a name of its own. */
export type VerlName<N extends InputWith<'verl'>> = Inputs[N]['verl'];
/** The name of a column of rollout files that becomes an input. */
export type FileName = Inputs[InputWith<'file'>]['file'];
/** The name of a column of rollout files that has ids. */
export type FileIdName = {
  [N in InputWith<'file'>]: Inputs[N]['type'] extends 'ids' ? Inputs[N]['file'] : never;
}[InputWith<'file'>];

/** The name of a float column that losses read. */
export type ColumnName = InputWith<'loss'>;
/** The name of a float column that advantage functions read. */
export type AdvantageColumnName = InputWith<'advantage'>;
/** The name of what losses read of rows: numbers, the groups, and the pairs. */
export type RowDataName = InputWith<'row'>;
/** The name of a number per row that losses read. */
export type RowColumnName = Exclude<RowDataName, IdsOfRows>;
/** The name of a column, or of a number per row, that losses read. */
export type LossInput = ColumnName | RowColumnName;
// The ids, which native code gets as the index of the next row of a group or pair.
type IdsOfRows = 'group_ids' | 'pair_ids';
/** The name of an input, other than the action mask, that advantage functions read. */
export type AdvantageInput =
  | AdvantageColumnName
  | Exclude<InputWith<'member'>, 'action_mask' | 'attention_mask' | 'expert_mask'>;

/** The names of all inputs. */
export const INPUT_NAMES = Object.keys(INPUTS) as InputName[];

/** Returns the row of an input in the table. */
export function inputRow(name: InputName): Omit<InputRow, 'file'> & { readonly file?: FileName } {
  return INPUTS[name];
}

/** Returns the names of the inputs that have an index of this kind in native batches, in the order of the indices. */
function ordered<Fact extends 'loss' | 'advantage' | 'row'>(fact: Fact): readonly InputWith<Fact>[] {
  const indices = new Map(INPUT_NAMES.map((name) => [name, inputRow(name)[fact]]));
  return INPUT_NAMES.filter((name): name is InputWith<Fact> => indices.get(name) !== undefined).sort(
    (a, b) => indices.get(a)! - indices.get(b)!,
  );
}

/** The float columns that losses read, in the order of NativeBatch.data. */
export const COLUMNS = ordered('loss');
/** The index in NativeBatch.data of the weights of the tokens. The weights of a correction are passed there too. */
export const WEIGHTS_COLUMN = COLUMNS.indexOf('token_weights');
/** What losses read of rows, in the order of NativeBatch.rowData. */
export const ROW_DATA = ordered('row');
/** The numbers per row that losses read, in the order of NativeBatch.rowData. The groups and the pairs follow them there. */
export const ROW_COLUMNS = ROW_DATA.filter((name): name is RowColumnName => inputRow(name).type !== 'ids');
/** The float columns that advantage functions read, in the order of NativeAdvantageBatch.data. */
export const ADVANTAGE_COLUMNS = ordered('advantage');
