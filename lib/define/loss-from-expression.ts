// Makes a loss from the text of an expression.
import { describeValue, guarded, LossError, unknownOption } from '../base/errors.js';
import type { LossAggMode, OptionSchema } from '../base/options.js';
import { LOSS_CORRECTION_OPTIONS, type LossCorrectionOptions } from '../losses/loss-correction.js';
import { checkObject, type LossesByVariable, lossClass, MAX_NAME, RESERVED_OPTIONS } from './define-loss.js';

/** Options of {@link lossFromExpression} for metrics with the names M, and a loss that is differentiated by the column V. */
export interface ExpressionOptions<
  M extends string = never,
  V extends keyof LossesByVariable<unknown> = 'logprob',
> extends LossCorrectionOptions {
  /** Named numbers that the texts use. */
  readonly options?: Readonly<Record<string, number>> | undefined;
  /**
   * How the losses of the tokens become one number. If it is absent, a loss with one value per row is the mean over all
   * rows, and other losses have 'token-mean'.
   */
  readonly lossAggMode?: LossAggMode | undefined;
  /**
   * The column by which the loss is differentiated; the others are constants. By default the first of logprob, values and
   * rewards on which the gradient depends. Entropy counts as logprob. The type of the result is that of a policy loss unless
   * this is given.
   */
  readonly variable?: V | undefined;
  /**
   * At most 8 metrics: for each name, the text of its value. A metric is the mean over the unmasked tokens. In a loss that
   * is the mean over the rows, a metric with one value per row is the mean over the rows, too.
   */
  readonly metrics?: Readonly<Record<M, string>> | undefined;
  /** The name of the loss; 'expression' by default. */
  readonly name?: string | undefined;
  /** The training framework whose key names a batch may use as well as Trinity-RFT's; 'verl' by default. */
  readonly backend?: string | undefined;
}

const KEYS = ['options', 'lossAggMode', 'variable', 'metrics', 'name', 'backend', ...LOSS_CORRECTION_OPTIONS];

/**
 * Returns a loss that the text of an expression gives: a policy loss, a value loss or a loss of rewards. Native code
 * computes the loss, its metrics and its gradient, which is derived from the expression. The text is read, but never
 * executed as JavaScript.
 *
 * The language is a part of JavaScript's: decimal numbers, `+ - * / **`, `- !`, `< <= > >= == !=`, `&& ||`, `c ? a : b`,
 * parentheses and calls. It has these names:
 *
 * - the columns `logprob` or `lp`, `old_logprob` or `old`, `ref_logprob` or `ref`, `rollout_logprob` or `rollout`,
 *   `prox_logprob` or `prox`, `teacher_logprob` or `teacher` (in nats), `advantages` or `A`, `entropy` or `H` and
 *   `old_entropy` (in nats), `token_weights` or `weights`, `values` or `value`, `old_values` or `old_value`, `returns`, and of
 *   rows `rewards` or `reward`, `margin`, and `label`;
 * - `d` = lp − old, `r` = exp(d), `n`, the number of unmasked tokens in the row, `t`, the token's position among them, and
 *   `group_size`, the number of rows of the row's group;
 * - the functions `exp expm1 log log1p sqrt abs sign tanh sigmoid logsigmoid square pow min max clip(x, low, high)`, and
 *   `sg(x)`, which is x as a constant for the gradient;
 * - the reductions over a row's unmasked tokens `row_sum row_mean row_min row_max`, and over those of the batch `batch_sum
 *   batch_mean batch_min batch_max`;
 * - of values of rows, the reductions over the row's group `group_sum group_mean group_min group_max`, and `chosen(x)` and
 *   `rejected(x)`, the values of the two rows of the row's pair. A loss with a batch or group reduction cannot be computed
 *   in parts;
 * - `row_quantile(x, q)` of the row's unmasked tokens, and `row_rank(x)`, the rank of each token among them. Both are
 *   constant for the gradient.
 *
 * The gradients are with respect to `lp` (`grad`) and to `H` (`gradEntropy`, which a call must request); other columns
 * are constants. A loss whose gradient depends on neither, but on `value` or `reward`, has `gradValues` or `gradRewards`.
 * A text has at most 16,384 characters, of which at most 2,000 are operators, commas and parentheses.
 *
 * @throws LossError `ERR_UNKNOWN_NAME` for an unknown name in a text or an unknown backend, and `ERR_INVALID_OPTION` for
 * any other error in a text, an invalid option, or a loss that is too large. An error in a text has its place there as
 * `position`.
 *
 * @example
 * ```ts
 * const fn = lossFromExpression('max(-A*r, -A*clip(r, 1-low, 1+high))', {
 *   options: { low: 0.2, high: 0.28 },
 *   metrics: { pg_clipfrac: 'abs(r-1) > 0.2 ? 1 : 0' },
 * });
 * const { loss, metrics, grad } = await fn.compute(batch, { grad: true });
 * ```
 */
export function lossFromExpression<
  const M extends string = never,
  const V extends keyof LossesByVariable<unknown> = 'logprob',
>(text: string, options?: ExpressionOptions<M, V>): LossesByVariable<Record<M, number>>[V] {
  return expressionLoss('lossFromExpression', text, options);
}

/**
 * Does the same as {@link lossFromExpression}.
 * @param at the beginning of error messages.
 */
export function expressionLoss<
  const M extends string = never,
  const V extends keyof LossesByVariable<unknown> = 'logprob',
>(at: string, text: string, options?: ExpressionOptions<M, V>): LossesByVariable<Record<M, number>>[V] {
  return guarded(() => {
    const given = checkKeys(at, options);
    const { options: numbers = {}, lossAggMode, variable, metrics: texts = {}, name = 'expression' } = given;
    const { backend, correction, masks } = given;
    checkObject(at, 'options', numbers);
    checkObject(at, 'metrics', texts);
    if (typeof name !== 'string' || name === '' || name.length > MAX_NAME)
      throw new LossError('ERR_INVALID_OPTION', {
        at,
        option: 'name',
        expected: `a text of at most ${MAX_NAME} characters`,
        received: describeValue(name),
      });
    const metrics = Object.entries<string>(texts).map(
      ([metric, value]) => [metric, { unit: 'mean', value }] as const,
    );
    const Loss = lossClass(at, name, {
      options: schemaOf(at, numbers),
      ...(lossAggMode !== undefined && { lossAggMode }),
      ...(variable !== undefined && { variable }),
      metrics: Object.fromEntries(metrics),
      loss: text,
    });
    // Only policy losses have these options.
    const corrections = Object.entries({ correction, masks }).filter(
      ([, x]) => x !== undefined && x !== null,
    );
    return new Loss({ backend, ...Object.fromEntries(corrections) }) as never;
  }, 'ERR_INVALID_OPTION');
}

function checkKeys<M extends string, V extends keyof LossesByVariable<unknown>>(
  at: string,
  options: ExpressionOptions<M, V> = {},
): ExpressionOptions<M, V> {
  checkObject(at, undefined, options);
  for (const key of Object.keys(options)) if (!KEYS.includes(key)) throw unknownOption(at, key, KEYS);
  return options;
}

// Declares the named numbers of an expression as options.
function schemaOf(at: string, numbers: Readonly<Record<string, number>>): OptionSchema {
  const entries = Object.entries(numbers).map(([name, value]) => {
    checkNumber(at, name, value);
    return [name, { type: 'number', default: value, help: 'a number in the expression' }] as const;
  });
  return Object.fromEntries(entries);
}

function checkNumber(at: string, name: string, value: unknown): void {
  if (name.length > MAX_NAME || !/^[A-Za-z][A-Za-z0-9_]*$/.test(name) || RESERVED_OPTIONS.includes(name))
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: name,
      expected: `a name of at most ${MAX_NAME} letters, digits and _ that begins with a letter and is not ${RESERVED_OPTIONS.join(' or ')}`,
      received: 'another',
    });
  if (!Number.isFinite(value))
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: name,
      expected: 'a finite number',
      received: describeValue(value),
    });
}
