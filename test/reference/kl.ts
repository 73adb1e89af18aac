/** The KL estimators, which give a value per token, and the losses made of them. `delta` is refLogprob − logprob. */
import type { Variable } from './autograd.js';
import { type Args, type Loss, option, type Tokens } from './batch.js';

interface Estimator {
  formula: (delta: Variable, x: Tokens) => Variable;
  /** The estimator in the language of user-defined losses. */
  written: string;
}

export const k3 = (delta: Variable): Variable => delta.expm1().sub(delta);
const writtenK3 = (delta: string) => `(exp(${delta}) - 1 - (${delta}))`;

const estimators: Record<string, Estimator> = {
  none: { formula: (delta) => delta.detach().mul(0), written: '0' },
  k1: { formula: (delta) => delta.neg(), written: 'lp - ref' },
  k2: { formula: (delta) => delta.square().mul(0.5), written: 'square(ref - lp)/2' },
  k3: { formula: k3, written: writtenK3('ref - lp') },
  low_var_kl: {
    formula: (delta) => k3(delta.clip(-20, 20)).clip(-10, 10),
    written: `clip(${writtenK3('clip(ref - lp, -20, 20)')}, -10, 10)`,
  },
  abs: { formula: (delta) => delta.abs(), written: 'abs(lp - ref)' },
  corrected_k3: {
    formula: (delta, x) =>
      x.batch.oldLogprob ? x.logprob.sub(x.oldLogprob).exp().clip(0, 2).mul(k3(delta)) : k3(delta),
    written: `clip(r, 0, 2)*${writtenK3('ref - lp')}`,
  },
  bias_corrected_k3: {
    formula: (delta, x) => {
      const old = x.batch.oldLogprob ? x.oldLogprob : x.logprob.detach();
      return x.logprob.sub(old).exp().mul(k3(delta));
    },
    written: `r*${writtenK3('ref - lp')}`,
  },
};

/** Returns an estimator with the value of the named one and the gradient of k2. */
function straightThrough(name: string): Estimator {
  const [value, slope] = [estimators[name]!, estimators.k2!];
  return {
    formula: (delta, x) => {
      const k2 = slope.formula(delta, x);
      return k2.sub(k2.detach()).add(value.formula(delta, x).detach());
    },
    written: `${slope.written} - sg(${slope.written}) + sg(${value.written})`,
  };
}

export const klEstimators: Record<string, Estimator> = {
  ...estimators,
  'k1+': straightThrough('k1'),
  'k2+': straightThrough('k2'),
  // verl's k3 is the clipped low_var_kl.
  'k3+': straightThrough('low_var_kl'),
  'low_var_kl+': straightThrough('low_var_kl'),
  'abs+': straightThrough('abs'),
};

export const klValues = (name: string, x: Tokens): Variable =>
  klEstimators[name]!.formula(x.refLogprob.sub(x.logprob), x);

const coefficient = (args: Args) => option(args, 'kl_coef', 0.001);

export const klLoss = (name: string): Loss => ({
  formula: (x, args) => {
    const coef = coefficient(args);
    const aggregated = x.aggregate(klValues(name, x), option(args, 'loss_agg_mode', 'token-mean'));
    const metrics = name === 'none' ? {} : { kl_loss: aggregated, kl_coef: coef };
    return { loss: aggregated.mul(coef), metrics };
  },
  written: (args) => ({
    text: `coef*(${klEstimators[name]!.written})`,
    options: { coef: coefficient(args) },
    metricsNotWritten: {
      kl_loss: 'the loss without its coefficient, in the aggregation of the loss',
      kl_coef: 'an option, also if the batch has no token',
    },
  }),
});
