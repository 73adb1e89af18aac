// Makes the class of a loss from the definition of a user.
import type { MetricDeclaration } from '../base/declaration.js';
import { describeValue, guarded, LossError, unknownOption } from '../base/errors.js';
import { AGGREGATION_HELP, aggregation, checkLossAggMode } from '../base/option.js';
import {
  type LossAggMode,
  type OptionDeclaration,
  type OptionSchema,
  readOptions,
  type TrinityArgs,
  toCamelCase,
  toSnakeCase,
  type ValueOf,
} from '../base/options.js';
import { columnLossClass } from '../losses/column-loss.js';
import type { ColumnLossOptions, RewardLossFn, ValueLossFn } from '../losses/column-loss-fn.js';
import { LOSS_CORRECTION_OPTIONS } from '../losses/loss-correction.js';
import { policyLossClass } from '../losses/policy-loss.js';
import type { AggregatedLossOptions, PolicyLossDeclaration } from '../losses/policy-loss-declaration.js';
import type { PolicyLossFn } from '../losses/policy-loss-fn.js';
import { METRIC_PER, type MetricPer } from '../program/compile.js';
import { frozen } from '../program/freeze.js';
import type { Variable } from '../program/graph.js';
import { type LossProgram, programOf, stopsGradient } from '../program/loss-program.js';
import {
  buildLoss,
  type DefinedExpressions,
  type ExpressionOf,
  VARIABLES,
  variableOf,
} from './build-loss.js';

export type { ExpressionOf, OptionsWithAggregation } from './build-loss.js';

/** How many metrics a loss may define. */
export const MAX_METRICS = 8;

/** The definition of a metric. */
export interface MetricDefinition<S extends OptionSchema> extends MetricDeclaration {
  /** The metric's value for a token, for a row or for the batch, as `per` says. */
  readonly value: ExpressionOf<S>;
  /**
   * What the value belongs to. With 'token', the metric is the mean over the unmasked tokens of the batch; with 'row', the
   * mean over its rows; with 'batch', the value itself. The result of a part of a batch lacks the metrics with 'batch'. By
   * default 'token', but 'row' for a value of rows in a loss that is the mean over the rows.
   */
  readonly per?: MetricPer;
}

/** The column by which a loss may be differentiated, and the losses that it makes, with the metrics M. */
export interface LossesByVariable<M> {
  readonly logprob: PolicyLossFn<M>;
  readonly values: ValueLossFn<M>;
  readonly rewards: RewardLossFn<M>;
}

/** The options that losses have in addition to their own, by the column by which they are differentiated. */
interface FurtherOptions {
  readonly logprob: AggregatedLossOptions;
  readonly values: ColumnLossOptions & Pick<AggregatedLossOptions, 'lossAggMode'>;
  readonly rewards: ColumnLossOptions;
}

/**
 * The definition of a loss with the options S and metrics with the names M, which is differentiated by the column V.
 */
export interface LossDefinition<
  S extends OptionSchema,
  M extends string,
  V extends keyof LossesByVariable<unknown> = 'logprob',
> {
  /** A description in one line, without a full stop. By default, the formula if `loss` is a text. */
  readonly summary?: string;
  /** The papers and implementations that the loss follows. */
  readonly source?: readonly string[];
  /** The declarations of the loss's options, under camelCase names. The option lossAggMode is added to them. */
  readonly options?: S;
  /**
   * The default of the option lossAggMode: how the losses of the tokens become one number. If it is absent, a loss with one
   * value per row is the mean over all rows, and other losses have 'token-mean'.
   */
  readonly lossAggMode?: LossAggMode;
  /**
   * The column by which the loss is differentiated; the others are constants. By default the first of logprob, values and
   * rewards on which the gradient depends. Entropy counts as logprob. The type of the class is that of a policy loss unless
   * this is given.
   */
  readonly variable?: V;
  /** At most 8 metrics. */
  readonly metrics?: { readonly [K in M]: MetricDefinition<S> };
  /** The loss of a token, or of a row. */
  readonly loss: ExpressionOf<S>;
}

/**
 * The class of a loss from {@link defineLoss} with the options O, of which those with the names N must be given, and metrics
 * with the names M. It is differentiated by the column V.
 */
export interface DefinedLoss<
  O,
  N extends keyof O,
  M extends string,
  V extends keyof LossesByVariable<unknown> = 'logprob',
> {
  /**
   * Creates a loss with these options.
   * @throws LossError `ERR_INVALID_OPTION` for an invalid option, `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  new (
    ...options: [N] extends [never]
      ? [options?: O & FurtherOptions[V]]
      : [options: O & { [K in N]-?: NonNullable<O[K]> } & FurtherOptions[V]]
  ): LossesByVariable<Record<M, number>>[V];
  /** The declaration that was made from the definition. */
  readonly declaration: PolicyLossDeclaration;
  /** Returns the default arguments, with their names in snake_case. */
  defaultArgs(): TrinityArgs;
}

// The names of the options that have no default and must be given.
type RequiredIn<S> = {
  [K in keyof S]: S[K] extends { required: true }
    ? S[K] extends { default: unknown } | { defaultFrom: string }
      ? never
      : K
    : never;
}[keyof S];

/**
 * Defines a loss and returns its class: of policy losses, of value losses or of losses of reward models. The class works like
 * those of this package's own losses. The gradient is derived from the expression, and native code computes both. To use
 * the loss by its name, for example in an algorithm, register the class.
 *
 * @param name the name of the loss, for registries and error messages.
 * @param definition the loss's options, metrics and formula.
 * @throws LossError `ERR_INVALID_OPTION` if the definition is invalid or the loss is too large, `ERR_UNKNOWN_NAME` for an
 * unknown name in a text. The constructor of the class throws the same errors, because the formula may depend on the
 * options.
 *
 * @example
 * ```ts
 * const ClippedLoss = defineLoss('clipped', {
 *   options: {
 *     low: { type: 'number', default: 0.2, help: 'lower clip range' },
 *     high: { type: 'number', default: 0.28, help: 'upper clip range' },
 *   },
 *   metrics: { clipfrac: { unit: 'fraction of tokens', value: ({ r, abs }) => abs(r.sub(1)).gt(0.2) } },
 *   loss: ({ lp, old, A, exp, max, clip }, { low, high }) => {
 *     const ratio = exp(lp.sub(old));
 *     return max(A.neg().mul(ratio), A.neg().mul(clip(ratio, 1 - low, 1 + high)));
 *   },
 * });
 * POLICY_LOSS_FN.register('clipped', ClippedLoss);
 * const { loss, grad } = await new ClippedLoss({ low: 0.1 }).compute(batch, { grad: true });
 * ```
 */
export function defineLoss<
  const S extends OptionSchema = Record<never, never>,
  const M extends string = never,
  const V extends keyof LossesByVariable<unknown> = 'logprob',
>(
  name: string,
  definition: LossDefinition<S, M, V>,
): DefinedLoss<{ -readonly [K in keyof S]?: ValueOf<S[K]> | null | undefined }, RequiredIn<S>, M, V> {
  return guarded(() => {
    checkDefinition(name, definition);
    for (const [option, declaration] of Object.entries(definition.options ?? {}))
      checkOption(name, option, declaration);
    return lossClass(name, name, definition) as never;
  }, 'ERR_INVALID_OPTION');
}

/**
 * Makes the class of a defined loss.
 * @param at the beginning of error messages.
 */
export function lossClass<S extends OptionSchema, M extends string, V extends Variable>(
  at: string,
  name: string,
  definition: LossDefinition<S, M, V>,
) {
  const { loss, summary, source = [], lossAggMode } = definition;
  const expressions: DefinedExpressions<S> = { loss, metrics: metricsOf(at, definition.metrics) };
  const mode = aggregation(checkLossAggMode(at, lossAggMode)) as unknown as OptionDeclaration;
  const sampled = sampleOptions(at, { ...definition.options, lossAggMode: mode });
  const variable = checkVariable(at, definition.variable) ?? variableOf(at, expressions, sampled);
  if (variable === 'rewards' && lossAggMode !== undefined) throw hasNoTokens(at);
  const given = lossAggMode === undefined ? { ...sampled, lossAggMode } : sampled;
  const { ofRows, ...sample } = buildLoss(at, variable, expressions, given);
  const program = programOf(sample);
  const declaration: PolicyLossDeclaration = {
    name,
    summary: summary ?? (typeof loss === 'string' ? `ℓ = ${loss}` : 'a loss that the user defined'),
    source,
    reads: keysOf(program, variable),
    options: {
      ...definition.options,
      ...(variable !== 'rewards' && { lossAggMode: ofRows ? ANY_MODE : mode }),
    } as OptionSchema,
    metrics: Object.fromEntries(
      expressions.metrics.map(([metric, { declaration }]) => [metric, declaration]),
    ),
    numerics: { range: 'not measured', outside: 'as the formula in float32' },
    ...(ofRows && (program.readsPairs ? { pairs: true, ofRows: true } : { ofRows: true })),
  };
  const isMultiplied = variable === 'values' && !ofRows && !program.columns.includes('token_weights');
  const cls =
    variable === 'logprob'
      ? policyLossClass(declaration, (options, isWeighted) => {
          const nodes = buildLoss(at, variable, expressions, options, isWeighted);
          return {
            stopsGradient: stopsGradient(nodes),
            program: programOf(nodes),
            frozen: (column) => ({ program: programOf(frozen(nodes, column)) }),
          };
        })
      : columnLossClass(variable, declaration, (options) => {
          const compiled = (isWeighted: boolean) =>
            programOf(buildLoss(at, variable, expressions, options, isWeighted));
          return {
            program: compiled(false),
            weighted: isMultiplied ? () => compiled(true) : undefined,
            aggregation: options.lossAggMode as LossAggMode | undefined,
          };
        });
  Object.defineProperty(cls, 'name', { value: at });
  return cls;
}

// The option of losses that are the mean over all rows if it is absent.
const ANY_MODE: OptionDeclaration = { type: 'aggregation', help: AGGREGATION_HELP };

function keysOf({ columns, rowColumns }: LossProgram, variable: Variable): string[] {
  const inputs = [...columns, ...rowColumns].filter((input) => input !== variable);
  return variable === 'rewards' ? inputs : [...inputs, 'action_mask'];
}

function checkVariable(at: string, variable: unknown): Variable | undefined {
  if (variable === undefined || (VARIABLES as readonly unknown[]).includes(variable))
    return variable as Variable | undefined;
  throw new LossError('ERR_INVALID_OPTION', {
    at,
    option: 'variable',
    expected: `one of ${VARIABLES.join(', ')}`,
    received: describeValue(variable),
  });
}

function hasNoTokens(at: string): LossError {
  return new LossError('ERR_INVALID_OPTION', {
    at,
    option: 'lossAggMode',
    expected: 'no mode, because a loss that is differentiated by reward is the mean over the rows',
    received: 'a mode',
  });
}

function checkDefinition<S extends OptionSchema, M extends string, V extends Variable>(
  name: string,
  definition: LossDefinition<S, M, V>,
): void {
  if (typeof name !== 'string' || name === '' || name.length > MAX_NAME)
    throw new LossError('ERR_INVALID_OPTION', {
      at: 'defineLoss',
      expected: 'the name of the loss',
      received: describeValue(name),
    });
  checkObject(name, undefined, definition);
  for (const key of Object.keys(definition)) if (!KEYS.includes(key)) throw unknownOption(name, key, KEYS);
  for (const key of ['options', 'metrics'] as const)
    if (definition[key] !== undefined) checkObject(name, key, definition[key]);
}

const KEYS = ['summary', 'source', 'options', 'lossAggMode', 'variable', 'metrics', 'loss'];

/** @throws LossError `ERR_INVALID_OPTION` if a value of the user is not an object. */
export function checkObject(at: string, option: string | undefined, value: unknown): void {
  if (value === null || typeof value !== 'object')
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option,
      expected: 'an object',
      received: describeValue(value),
    });
}

const OPTION_TYPES: readonly string[] = [
  'number',
  'integer',
  'boolean',
  'choice',
  'text',
  'list',
  'aggregation',
];

function checkOption(at: string, option: string, declaration: OptionDeclaration): void {
  if (
    option.length > MAX_NAME ||
    !/^[a-z][A-Za-z0-9]*$/.test(option) ||
    toCamelCase(toSnakeCase(option)) !== option
  )
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option,
      expected: `a name in camelCase of at most ${MAX_NAME} letters and digits`,
      received: 'another',
    });
  if (RESERVED_OPTIONS.includes(option))
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option,
      expected: 'another name, because every loss has this option',
      received: 'its declaration',
    });
  if (!OPTION_TYPES.includes(declaration?.type))
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option,
      expected: `a declaration whose type is one of ${OPTION_TYPES.join(', ')}`,
      received: describeValue(declaration?.type ?? declaration),
    });
}

/** The options that every loss has. */
export const RESERVED_OPTIONS = ['lossAggMode', 'backend', ...LOSS_CORRECTION_OPTIONS];
/** The length of the longest name of a loss, an option or a metric. */
export const MAX_NAME = 100;

// Returns options with which a loss can be built to find out which columns it reads: the defaults, and any valid value
// of options without a default.
function sampleOptions(at: string, schema: OptionSchema): Readonly<Record<string, unknown>> {
  const given = Object.entries(schema).map(([key, option]) => [
    key,
    option.default ?? (option.defaultFrom === undefined ? sampleValue(option) : undefined),
  ]);
  return readOptions(at, schema, Object.fromEntries(given));
}

function sampleValue(option: OptionDeclaration): unknown {
  switch (option.type) {
    case 'boolean':
      return false;
    case 'choice':
      return option.choices[0];
    case 'text':
    case 'list':
      return option.typical?.[0];
    case 'aggregation':
      return 'token-mean';
    default: {
      const { typical, atLeast, above, atMost } = option;
      return (
        typical?.[0] ??
        atLeast ??
        (above === undefined ? (atMost ?? 0) : Math.min(above + 1, atMost ?? Infinity))
      );
    }
  }
}

function metricsOf<S extends OptionSchema>(
  at: string,
  metrics: object = {},
): DefinedExpressions<S>['metrics'] {
  const entries = Object.entries<MetricDefinition<S>>(metrics as Record<string, MetricDefinition<S>>);
  if (entries.length > MAX_METRICS)
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: 'metrics',
      expected: `at most ${MAX_METRICS} metrics`,
      received: String(entries.length),
    });
  return entries.map(([name, metric]) => {
    checkMetricName(at, name);
    const { value, per, ...declaration } = Object(metric) as MetricDefinition<S>;
    checkPer(at, name, per);
    return [name, { declaration, value, per }];
  });
}

function checkPer(at: string, metric: string, per: unknown): void {
  if (per !== undefined && !METRIC_PER.includes(per as MetricPer))
    throw new LossError('ERR_INVALID_OPTION', {
      at: `${at}: metric ${metric}`,
      option: 'per',
      expected: `one of ${METRIC_PER.join(', ')}`,
      received: describeValue(per),
    });
}

function checkMetricName(at: string, name: string): void {
  if (!/^[A-Za-z][\w./-]*$/.test(name) || name.length > MAX_NAME)
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      option: 'metrics',
      expected: `names of at most ${MAX_NAME} letters, digits and _ . / -, which begin with a letter`,
      received: describeValue(name),
    });
}
