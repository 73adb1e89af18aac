/** The KL estimators, which give a value per token, and the losses made of them. `delta` is refLogprob − logprob. */
import type { Variable } from './autograd.js';
import { type Formula, option, type Tokens } from './batch.js';

export const k3 = (delta: Variable): Variable => delta.expm1().sub(delta);

export const klEstimators: Record<string, (delta: Variable, x: Tokens) => Variable> = {
  none: (delta) => delta.detach().mul(0),
  k1: (delta) => delta.neg(),
  k2: (delta) => delta.square().mul(0.5),
  k3,
  low_var_kl: (delta) => k3(delta.clip(-20, 20)).clip(-10, 10),
  abs: (delta) => delta.abs(),
  corrected_k3: (delta, x) =>
    x.batch.oldLogprob ? x.logprob.sub(x.oldLogprob).exp().clip(0, 2).mul(k3(delta)) : k3(delta),
};

export const klValues = (name: string, x: Tokens): Variable =>
  klEstimators[name]!(x.refLogprob.sub(x.logprob), x);

export const klLoss =
  (name: string): Formula =>
  (x, args) => {
    const coef = option(args, 'kl_coef', 0.001);
    const aggregated = x.aggregate(klValues(name, x), option(args, 'loss_agg_mode', 'token-mean'));
    const metrics = name === 'none' ? {} : { kl_loss: aggregated, kl_coef: coef };
    return { loss: aggregated.mul(coef), metrics };
  };
