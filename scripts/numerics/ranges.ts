// What inputs each function is made for, and what it does with others: the words of docs/numerics.md. Keys are family and
// name of the registries; test/numerics.test.ts holds that none is missing, and that the words on overflow are true.

/** How a function ends where its inputs do. */
export interface RangeWords {
  /** What it is exact for. */
  range: string;
  /** And elsewhere. */
  outside: string;
  /** Whether the loss is finite for a ratio of e^100 (of KL: a δ of 100), by the sign of the advantage. */
  finite: { positive: boolean; negative: boolean };
}

const BOTH = { positive: true, negative: true };
const NEITHER = { positive: false, negative: false };
const ANY = 'any finite logprobs and advantages';
const RATIO = 'logprob − old_logprob up to 88.7';

/** Of every function. */
export const WORDS: Readonly<Record<string, RangeWords>> = {
  'policy ppo': {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
    finite: BOTH,
  },
  'policy gspo': {
    range: `the row's mean of ${RATIO}`,
    outside:
      'A < 0: the ratio overflows, loss and gradient are ±Infinity; A ≥ 0: the clip holds it; below −87.3 the ratio is 0',
    finite: { positive: true, negative: false },
  },
  'policy cispo': {
    range: ANY,
    outside: 'the ratio overflows and is clipped: loss and gradient are finite',
    finite: BOTH,
  },
  'policy topr': {
    range: ANY,
    outside:
      'the ratio overflows and is truncated to 1 where A is at most the threshold; the metric avg_ratio is Infinity',
    finite: BOTH,
  },
  'policy sapo': {
    range: ANY,
    outside: 'the ratio overflows and the gate is open: the loss is finite; the metric avg_ratio is Infinity',
    finite: BOTH,
  },
  'policy sppo': { range: ANY, outside: 'a ratio out of range has loss and gradient 0', finite: BOTH },
  'policy rec': {
    range: `${ANY}; with importance weights, ${RATIO}; weighted by advantage, advantages / temp up to 88.7`,
    outside: 'the weight overflows: loss and gradient are ±Infinity',
    finite: BOTH,
  },
  'policy importance_sampling': {
    range: 'logprob − old_logprob from −20 to 20',
    outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
    finite: BOTH,
  },
  'policy opmd': { range: ANY, outside: 'products beyond 3.4e38 overflow to ±Infinity', finite: BOTH },
  'policy sft': { range: 'any finite logprob', outside: 'nothing is lost', finite: BOTH },
  'policy sft_is': {
    range: 'logprob up to 88.7 (a log-probability is at most 0)',
    outside: 'the probability overflows to Infinity; below −87.3 it is 0',
    finite: BOTH,
  },
  'policy sft_phi': {
    range: 'logprob of at most 0',
    outside: 'above 0, p(1 − p) is negative, and overflows from 44 on; below −87.3 it is 0',
    finite: BOTH,
  },
  'policy dpo': {
    range: 'sums of logprob − ref_logprob over a row up to 1e37',
    outside: 'margins of any size are linear or 0, without overflow; the sums of rows are float64',
    finite: BOTH,
  },
  'policy mix': {
    range: "ppo's in usual rows, sft's in experts' rows",
    outside: "ppo's and sft's",
    finite: BOTH,
  },
  'policy mix_chord': {
    range: "ppo's in usual rows, sft_phi's in experts' rows",
    outside: "ppo's and sft_phi's",
    finite: BOTH,
  },
  'kl none': { range: 'anything', outside: 'nothing is read', finite: BOTH },
  'kl k1': { range: 'any finite logprobs', outside: 'nothing is lost', finite: BOTH },
  'kl k2': {
    range: 'a difference up to 2.6e19',
    outside: 'its square overflows to Infinity',
    finite: BOTH,
  },
  'kl k3': {
    range: 'ref_logprob − logprob up to 88.7',
    outside: 'the exponential overflows: the value is Infinity and the gradient −Infinity',
    finite: NEITHER,
  },
  'kl low_var_kl': {
    range: 'ref_logprob − logprob from −20 to 20, values up to 10',
    outside: 'difference and value are clipped: the value saturates at 10 and the gradient is 0',
    finite: BOTH,
  },
  'kl abs': { range: 'any finite logprobs', outside: 'nothing is lost', finite: BOTH },
  'kl corrected_k3': {
    range: "k3's; the ratio to old_logprob is clipped to [0, 2]",
    outside: "k3's: Infinity, or NaN where the ratio is 0",
    finite: NEITHER,
  },
  'entropy default': { range: 'any finite entropies', outside: 'nothing is lost', finite: BOTH },
  'entropy mix': { range: 'any finite entropies', outside: 'nothing is lost', finite: BOTH },
  'entropy none': { range: 'anything', outside: 'nothing is read', finite: BOTH },
  'advantage ppo': {
    range: 'finite rewards and values',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
    finite: BOTH,
  },
  'advantage reinforceplusplus': {
    range: 'finite rewards',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
    finite: BOTH,
  },
  'advantage remax': {
    range: 'finite rewards and baselines',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
    finite: BOTH,
  },
  'advantage rloo': {
    range: 'finite rewards',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
    finite: BOTH,
  },
  'advantage grpo': {
    range: 'finite rewards',
    outside: 'not finite: ERR_INVALID_INPUT; a group of equal rewards has advantages 0',
    finite: BOTH,
  },
  'advantage step_wise_grpo': {
    range: 'finite rewards',
    outside: 'not finite: ERR_INVALID_INPUT; a group of equal rewards has advantages 0',
    finite: BOTH,
  },
  'advantage reinforce': { range: 'finite rewards', outside: 'not finite: ERR_INVALID_INPUT', finite: BOTH },
  'advantage opmd': {
    range: 'finite rewards; the soft maximum is taken in float64 from the largest, so that none overflows',
    outside: 'not finite: ERR_INVALID_INPUT',
    finite: BOTH,
  },
  'advantage asymre': { range: 'finite rewards', outside: 'not finite: ERR_INVALID_INPUT', finite: BOTH },
  'advantage rec': { range: 'finite rewards', outside: 'not finite: ERR_INVALID_INPUT', finite: BOTH },
  'advantage on_policy_distill': {
    range: 'any finite logprobs',
    outside: 'NaN and Infinity pass through',
    finite: BOTH,
  },
  'advantage jsd': {
    range: 'any finite logprobs',
    outside:
      'NaN and Infinity pass through; the mixture is taken from the larger one, so that none overflows',
    finite: BOTH,
  },
};
