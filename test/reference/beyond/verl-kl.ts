/** verl's straight-through KL functions: the value of one estimator with the gradient of k2. */
import type { Variable } from '../autograd.js';
import { type Formula, option, type Tokens } from '../batch.js';
import { klEstimators } from '../kl.js';
import { aggregate } from './verl-aggregate.js';

/** The estimator that gives the value, by the name of the function. verl's k3 is the clipped low_var_kl. */
const ESTIMATORS: Record<string, string> = {
  'k1+': 'k1',
  'kl+': 'k1',
  'abs+': 'abs',
  'k2+': 'k2',
  'mse+': 'k2',
  'low_var_kl+': 'low_var_kl',
  'k3+': 'low_var_kl',
};

function straightThrough(estimator: string, x: Tokens): Variable {
  const delta = x.refLogprob.sub(x.logprob);
  const slope = klEstimators.k2!.formula(delta, x);
  return slope.sub(slope.detach()).add(klEstimators[estimator]!.formula(delta, x).detach());
}

const loss =
  (values: (x: Tokens) => Variable): Formula =>
  (x, args) => {
    const coef = option(args, 'kl_coef', 0.001);
    const aggregated = aggregate(x, values(x), args);
    return { loss: aggregated.mul(coef), metrics: { kl_loss: aggregated, kl_coef: coef } };
  };

/** The KL values of tokens and the formula of the loss, by the function's name. */
export const klFunctions: Record<string, { values: (x: Tokens) => Variable; loss: Formula }> =
  Object.fromEntries(
    Object.entries(ESTIMATORS).map(([name, estimator]) => {
      const values = (x: Tokens) => straightThrough(estimator, x);
      return [name, { values, loss: loss(values) }];
    }),
  );
