// Makes the class of a policy loss from the definition of a user.
import type { MetricDeclaration } from '../base/declaration.js';
import { describeValue, guarded, LossError, reasonOf, unknownOption } from '../base/errors.js';
import { aggregation, checkLossAggMode } from '../base/option.js';
import {
  type AggregationOption,
  type CheckedOptions,
  type LossAggMode,
  type OptionDeclaration,
  type OptionSchema,
  readOptions,
  type TrinityArgs,
  toCamelCase,
  toSnakeCase,
  type ValueOf,
} from '../base/options.js';
import { LOSS_CORRECTION_OPTIONS } from '../losses/loss-correction.js';
import { type PolicyLossClass, policyLossClass } from '../losses/policy-loss.js';
import {
  type AggregatedLossOptions,
  keysOfProgram,
  type PolicyLossDeclaration,
  type PolicyLossFn,
} from '../losses/policy-loss-fn.js';
import { METRIC_PER, type MetricPer } from '../program/compile.js';
import { checkedLevel, type LossSymbols, nodeOf, type Operand, symbolsOf } from '../program/expression.js';
import { frozen } from '../program/freeze.js';
import { Graph } from '../program/graph.js';
import { type NamedNodes, programOf, stopsGradient } from '../program/loss-program.js';
import type { Node } from '../program/node.js';
import { parseExpression } from '../program/parse.js';

/** How many metrics a loss may define. */
export const MAX_METRICS = 8;

/**
 * An expression in the definition of a loss with the options S: a text as for {@link lossFromExpression}, or a function
 * that builds the expression. The function gets the columns and functions of the language, and the loss's options. It is
 * called once when the loss is defined, with the default options, and once for each new loss.
 */
export type ExpressionOf<S extends OptionSchema> =
  | string
  | ((symbols: LossSymbols, options: Checked<S>) => Operand);

/** The options of a defined loss: its own, and lossAggMode. */
export type OptionsWithAggregation<S extends OptionSchema> = Omit<S, 'lossAggMode'> & {
  readonly lossAggMode: AggregationOption & { readonly default: LossAggMode };
};

type Checked<S extends OptionSchema> = CheckedOptions<OptionsWithAggregation<S>>;

/** The definition of a metric. */
export interface MetricDefinition<S extends OptionSchema> extends MetricDeclaration {
  /** The metric's value for a token, for a row or for the batch, as `per` says. */
  readonly value: ExpressionOf<S>;
  /**
   * What the value belongs to; 'token' by default. The metric is then the mean over the unmasked tokens of the batch; with
   * 'row', the mean over its rows; with 'batch', the value itself. The result of a part of a batch lacks the metrics with
   * 'batch'.
   */
  readonly per?: MetricPer;
}

/** The definition of a policy loss with the options S and metrics with the names M. */
export interface LossDefinition<S extends OptionSchema, M extends string> {
  /** A description in one line, without a full stop. By default, the formula if `loss` is a text. */
  readonly summary?: string;
  /** The papers and implementations that the loss follows. */
  readonly source?: readonly string[];
  /** The declarations of the loss's options, under camelCase names. The option lossAggMode is added to them. */
  readonly options?: S;
  /** The default of the option lossAggMode: how the losses of the tokens become one number. 'token-mean' if absent. */
  readonly lossAggMode?: LossAggMode;
  /** At most 8 metrics. */
  readonly metrics?: { readonly [K in M]: MetricDefinition<S> };
  /** The loss of a token. */
  readonly loss: ExpressionOf<S>;
}

/**
 * The class of a loss from {@link defineLoss} with the options O, of which those with the names N must be given, and metrics
 * with the names M.
 */
export interface DefinedLoss<O, N extends keyof O, M extends string> {
  /**
   * Creates a loss with these options.
   * @throws LossError `ERR_INVALID_OPTION` for an invalid option, `ERR_UNKNOWN_NAME` for an unknown backend.
   */
  new (
    ...options: [N] extends [never]
      ? [options?: O & AggregatedLossOptions]
      : [options: O & { [K in N]-?: NonNullable<O[K]> } & AggregatedLossOptions]
  ): PolicyLossFn<Record<M, number>>;
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
 * Defines a policy loss and returns its class. The class works like those of this package's own losses. The gradient is
 * derived from the expression, and native code computes both. To use the loss by its name, for example in an algorithm,
 * register the class.
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
>(
  name: string,
  definition: LossDefinition<S, M>,
): DefinedLoss<{ -readonly [K in keyof S]?: ValueOf<S[K]> | null | undefined }, RequiredIn<S>, M> {
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
export function lossClass<S extends OptionSchema, M extends string>(
  at: string,
  name: string,
  definition: LossDefinition<S, M>,
): PolicyLossClass<PolicyLossDeclaration> {
  const { loss, summary, source = [] } = definition;
  const metrics = metricsOf(at, definition.metrics);
  const options = {
    ...definition.options,
    lossAggMode: aggregation(checkLossAggMode(at, definition.lossAggMode)),
  } as unknown as OptionSchema;
  const build = (checked: Readonly<Record<string, unknown>>, isWeighted = false) =>
    nodesOf(at, loss, metrics, checked, isWeighted);
  const sample = programOf(build(sampleOptions(at, options)));
  const declaration: PolicyLossDeclaration = {
    name,
    summary: summary ?? (typeof loss === 'string' ? `ℓ = ${loss}` : 'a loss that the user defined'),
    source,
    reads: keysOfProgram(sample),
    options,
    metrics: Object.fromEntries(metrics.map(([metric, { declaration }]) => [metric, declaration])),
    numerics: { range: 'not measured', outside: 'as the formula in float32' },
  };
  const cls = policyLossClass(declaration, (checked, isWeighted) => {
    const nodes = build(checked, isWeighted);
    return {
      stopsGradient: stopsGradient(nodes),
      program: programOf(nodes),
      frozen: (column) => ({ program: programOf(frozen(nodes, column)) }),
    };
  });
  Object.defineProperty(cls, 'name', { value: at });
  return cls;
}

function checkDefinition<S extends OptionSchema, M extends string>(
  name: string,
  definition: LossDefinition<S, M>,
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

const KEYS = ['summary', 'source', 'options', 'lossAggMode', 'metrics', 'loss'];

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

type NamedMetrics<S extends OptionSchema> = readonly (readonly [
  name: string,
  metric: { declaration: MetricDeclaration; value: ExpressionOf<S>; per: MetricPer },
])[];

function metricsOf<S extends OptionSchema>(at: string, metrics: object = {}): NamedMetrics<S> {
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
    const { value, per = 'token', ...declaration } = Object(metric) as MetricDefinition<S>;
    checkPer(at, name, per);
    return [name, { declaration, value, per }];
  });
}

function checkPer(at: string, metric: string, per: unknown): void {
  if (!METRIC_PER.includes(per as MetricPer))
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

function nodesOf<S extends OptionSchema>(
  at: string,
  loss: ExpressionOf<S>,
  metrics: NamedMetrics<S>,
  options: Readonly<Record<string, unknown>>,
  isWeighted: boolean,
): NamedNodes {
  const graph = new Graph();
  const lossNode = build(at, graph, loss, options);
  const nodes = metrics.map(([name, { value, per }]) => {
    const node = build(`${at}: metric ${name}`, graph, value, options, per);
    return { name, per, node };
  });
  return {
    graph,
    loss: isWeighted ? graph.binary('mul', lossNode, graph.column('token_weights')) : lossNode,
    metrics: nodes,
  };
}

function build<S extends OptionSchema>(
  at: string,
  graph: Graph,
  expression: ExpressionOf<S>,
  options: Readonly<Record<string, unknown>>,
  per: MetricPer = 'token',
): Node {
  if (typeof expression === 'string')
    return checkedLevel(at, parseExpression(at, expression, graph, numbersOf(options)), per);
  if (typeof expression !== 'function')
    throw new LossError('ERR_INVALID_OPTION', {
      at,
      expected: 'the text of an expression, or a function that returns one',
      received: describeValue(expression),
    });
  return nodeOf(
    graph,
    at,
    called(at, () => expression(symbolsOf(graph), options as Checked<S>)),
    per,
  );
}

// Calls a function of the user. An error that it throws becomes the cause of a LossError.
function called<T>(at: string, fn: () => T): T {
  try {
    return fn();
  } catch (error) {
    if (error instanceof LossError) throw error;
    throw new LossError(
      'ERR_INVALID_OPTION',
      { at, expected: 'a function that returns an expression', received: `the error '${reasonOf(error)}'` },
      { cause: error },
    );
  }
}

// Returns the options that a text can use. true is 1 and false is 0.
function numbersOf(options: Readonly<Record<string, unknown>>): ReadonlyMap<string, number> {
  const numbers = Object.entries(options).filter(([, value]) => ['number', 'boolean'].includes(typeof value));
  return new Map(numbers.map(([name, value]) => [name, Number(value)]));
}
