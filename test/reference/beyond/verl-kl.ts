/** verl's straight-through KL functions: the value of one estimator with the gradient of k2. */
import type { Variable } from '../autograd.js';
import { type Formula, option, type Tokens } from '../batch.js';
import { klValues } from '../kl.js';
import { aggregate } from './verl-aggregate.js';

/** The estimators, by the name of verl's function. */
const ESTIMATORS: Record<string, string> = {
  'k1+': 'k1+',
  'kl+': 'k1+',
  'abs+': 'abs+',
  'k2+': 'k2+',
  'mse+': 'k2+',
  'low_var_kl+': 'low_var_kl+',
  'k3+': 'k3+',
};

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
      const values = (x: Tokens) => klValues(estimator, x);
      return [name, { values, loss: loss(values) }];
    }),
  );
