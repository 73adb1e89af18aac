// The KL functions. Kernels of the native module compute the estimators.
import { klFunction } from './kl-fn.js';

const REFERENCE = ['ref_logprob', 'action_mask'] as const;
const WITH_OLD = [...REFERENCE, 'old_logprob'] as const;
const GRADIENT_OF_K2 = 'Its gradient is that of k2: logprob − ref_logprob.';
const UNBOUNDED = { range: 'any finite logprobs', outside: 'NaN and Infinity pass through' };
const SQUARED = { range: 'a difference up to 2.6e19', outside: 'its square overflows to Infinity' };
const FINITE = {
  range: 'any finite logprobs',
  outside: 'value and gradient stay finite while the difference is',
};
const LIMITED = {
  range: 'ref_logprob − logprob from −20 to 20, values up to 10',
  outside: 'difference and value are clipped: the value saturates at 10, and the gradient goes on',
};

/** The KL function `none`. It estimates nothing: its values, its loss and its penalty are 0. */
export class DummyKLFn extends klFunction({
  name: 'none',
  summary: 'no estimate',
  details: ['The values, the loss and its gradient are 0, and rewards are the scores.'],
  source: ['Trinity-RFT'],
  reads: ['action_mask'],
  numerics: { range: 'anything', outside: 'the values do not matter' },
}) {}

/** The k1 estimator. */
export class K1Fn extends klFunction({
  name: 'k1',
  summary: '−δ',
  details: ['Unbiased, but with high variance, and negative for many tokens.'],
  source: ['Schulman 2020', 'Trinity-RFT'],
  reads: REFERENCE,
  estimator: 'k1',
  numerics: UNBOUNDED,
}) {}

/** The k2 estimator. */
export class K2Fn extends klFunction({
  name: 'k2',
  summary: 'δ² / 2',
  details: ['Never negative.', 'On policy, its expected gradient is the gradient of the true divergence.'],
  source: ['Schulman 2020', 'Trinity-RFT'],
  reads: REFERENCE,
  estimator: 'k2',
  numerics: SQUARED,
}) {}

/** The k3 estimator. */
export class K3Fn extends klFunction({
  name: 'k3',
  summary: 'e^δ − 1 − δ',
  details: ['Unbiased and never negative.'],
  source: ['Schulman 2020', 'Trinity-RFT'],
  reads: REFERENCE,
  estimator: 'k3',
  numerics: {
    range: 'ref_logprob − logprob up to 88.7',
    outside: 'the exponential overflows: the value is Infinity and the gradient −Infinity',
    overflows: 'always',
  },
}) {}

/** The KL estimator `low_var_kl`: k3 with ref_logprob − logprob clipped to ±20, and the value clipped to ±10. */
export class LowVarKLFn extends klFunction({
  name: 'low_var_kl',
  summary: 'k3 with δ clipped to ±20 and the value to ±10',
  source: ['verl', 'Trinity-RFT'],
  reads: REFERENCE,
  estimator: 'low_var_kl',
  numerics: {
    range: 'ref_logprob − logprob from −20 to 20, values up to 10',
    outside: 'difference and value are clipped: the value saturates at 10 and the gradient is 0',
  },
}) {}

/** The KL estimator `abs`: the absolute difference between logprob and ref_logprob. */
export class AbsFn extends klFunction({
  name: 'abs',
  summary: '|δ|',
  details: ['Its derivative at 0 is 0.'],
  source: ['verl', 'Trinity-RFT'],
  reads: REFERENCE,
  estimator: 'abs',
  numerics: UNBOUNDED,
}) {}

/**
 * The KL estimator `corrected_k3`. An older policy sampled the rows, so k3 is multiplied by the ratio of the current
 * policy's probability to the older policy's. The ratio is limited to 2.
 */
export class CorrectedK3Fn extends klFunction({
  name: 'corrected_k3',
  summary: 'k3 times clip(r, 0, 2), with r the ratio to the old policy',
  details: ['The gradient flows through both factors.', 'Without old_logprob in the batch it is k3.'],
  source: ['Trinity-RFT'],
  reads: WITH_OLD,
  estimator: 'corrected_k3',
  estimatorWithoutOld: 'k3',
  numerics: {
    range: "as k3's; the ratio to old_logprob is clipped to [0, 2]",
    outside: "as k3's: Infinity, or NaN where the ratio is 0",
    overflows: 'always',
  },
}) {}

/**
 * The KL estimator `bias_corrected_k3`. An older policy sampled the rows, so k3 is multiplied by the ratio of the current
 * policy's probability to the older policy's. Unlike in `corrected_k3`, the ratio is not limited.
 */
export class BiasCorrectedK3Fn extends klFunction({
  name: 'bias_corrected_k3',
  summary: 'k3 times the ratio to the old policy',
  details: [
    'The gradient flows through both factors.',
    'Without old_logprob in the batch, the old policy is the current one: the value is that of k3, and the gradient logprob − ref_logprob.',
  ],
  source: ['arXiv 2512.02556', 'TRL'],
  reads: WITH_OLD,
  estimator: 'bias_corrected_k3',
  estimatorWithoutOld: 'bias_corrected_k3_on_policy',
  numerics: {
    range: "as k3's, and logprob − old_logprob up to 88.7",
    outside: "as k3's: Infinity, or NaN where the ratio is 0",
    overflows: 'always',
  },
}) {}

/** The straight-through estimator `k1+`: the value of k1, the gradient of k2. */
export class K1PlusFn extends klFunction({
  name: 'k1+',
  summary: 'the value of k1, −δ, with the gradient of k2',
  details: [
    GRADIENT_OF_K2,
    'On policy, this is an unbiased gradient of the true divergence, which k1 itself does not have.',
  ],
  source: ['verl'],
  reads: REFERENCE,
  estimator: 'k1+',
  numerics: FINITE,
}) {}

/** The straight-through estimator `k2+`: the same as k2. */
export class K2PlusFn extends klFunction({
  name: 'k2+',
  summary: 'k2, δ² / 2, which has the gradient of k2 already',
  details: ['The same as k2.'],
  source: ['verl'],
  reads: REFERENCE,
  estimator: 'k2',
  numerics: SQUARED,
}) {}

/** The straight-through estimator `k3+`: verl's k3 is low_var_kl, so this is low_var_kl+. */
export class K3PlusFn extends klFunction({
  name: 'k3+',
  summary: 'the value of low_var_kl, with the gradient of k2',
  details: [GRADIENT_OF_K2, 'The same as low_var_kl+, because k3 is limited in verl as low_var_kl is.'],
  source: ['verl'],
  reads: REFERENCE,
  estimator: 'low_var_kl+',
  numerics: LIMITED,
}) {}

/** The straight-through estimator `low_var_kl+`: the value of low_var_kl, the gradient of k2. */
export class LowVarKLPlusFn extends klFunction({
  name: 'low_var_kl+',
  summary: 'the value of low_var_kl, with the gradient of k2',
  details: [GRADIENT_OF_K2, 'It has this gradient also where low_var_kl is clipped.'],
  source: ['verl'],
  reads: REFERENCE,
  estimator: 'low_var_kl+',
  numerics: LIMITED,
}) {}

/** The straight-through estimator `abs+`: the value of abs, the gradient of k2. */
export class AbsPlusFn extends klFunction({
  name: 'abs+',
  summary: 'the value of abs, |δ|, with the gradient of k2',
  details: [GRADIENT_OF_K2],
  source: ['verl'],
  reads: REFERENCE,
  estimator: 'abs+',
  numerics: FINITE,
}) {}
