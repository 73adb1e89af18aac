// Computes corrections: a program for each array that a correction consists of.
import type { NativeBatch, NativeFunctionSpec } from '../../binding.js';
import { allocate } from '../base/errors.js';
import { inSlices, type Steps } from '../base/steps.js';
import type { ColumnName, RowDataName } from '../batch/columns.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader } from '../batch/reader.js';
import type { Metrics } from '../call/calls.js';
import type { Corrected, Correction } from '../call/correction.js';
import { Evaluator } from '../call/evaluator.js';
import type { Forms } from '../call/forms.js';
import type { Input } from '../device/input.js';
import { type Expression, type ProgramSymbols, programSymbolsOf } from '../program/expression.js';
import { Graph } from '../program/graph.js';
import { type LossProgram, type MetricExpression, nodesOf, programOf } from '../program/loss-program.js';
import { reachable } from '../program/node.js';

/** A correction as expressions. None of them has a gradient. */
export interface CorrectionExpressions {
  /** What the loss of a token is multiplied by; undefined if there are no weights. */
  readonly weight?: Expression | undefined;
  /** 1 for tokens that are kept, and 0 for others; undefined if all are kept. */
  readonly kept?: Expression | undefined;
  /** The log-probability that replaces logprob; undefined if logprob stays. */
  readonly logprob?: Expression | undefined;
  /** 1 for tokens whose `logprob` is that of the batch, and 0 for tokens without a gradient; undefined if all have one. */
  readonly passing?: Expression | undefined;
  readonly metrics: Readonly<Record<string, MetricExpression | undefined>>;
}

/** Returns a correction's expressions. */
export type BuildCorrection = (symbols: ProgramSymbols) => CorrectionExpressions;

type Output = 'weight' | 'kept' | 'logprob' | 'passing';
type Evaluators = readonly (readonly [Output, Evaluator])[];
type Arrays = Partial<Record<Output, Float32Array>>;

/** The programs of one correction, or of several that are combined. */
export class CorrectionPrograms implements Correction {
  /** The columns that the correction reads. `logprob` is among them only if it depends on it. */
  readonly columns: readonly ColumnName[];
  readonly rowColumns: readonly RowDataName[];
  readonly readsWholeBatch: boolean;
  /** The columns that the mask of the kept tokens is computed from. */
  readonly maskColumns: readonly ColumnName[];
  readonly #evaluators: Evaluators;

  /**
   * @param name the name of the correction, for error messages.
   * @param alone whether there is no loss to correct. The kept tokens are then computed even if all are kept. For a loss,
   * the weights are multiplied by the token_weights of the batch, if it has them.
   */
  constructor(name: string, builds: readonly BuildCorrection[], mapper: KeyMapper, alone = false) {
    const graph = new Graph();
    const symbols = programSymbolsOf(graph);
    const { metrics, ...outputs } = combined(
      symbols,
      builds.map((build) => build(symbols)),
    );
    const defined = Object.entries(outputs).filter(([, value]) => value) as [Output, Expression][];
    if (outputs.kept === undefined && (alone || defined.length === 0))
      defined.push(['kept', symbols.constant(1)]);
    const reader = new BatchReader(mapper, { inputs: ['action_mask'] });
    // The gradient of an output times logprob is the output itself.
    const programFor = (value: Expression, i: number) => {
      const loss = symbols.lp.mul(symbols.sg(value));
      return programOf(nodesOf(name, graph, { loss, metrics: i === 0 ? metrics : {}, allRows: true }));
    };
    const specOf = (program: LossProgram): NativeFunctionSpec => ({
      policyLoss: { program, metrics: program.metrics, aggregation: 'token-sum' },
    });
    const programs = defined.map(([output, value], i) => [output, programFor(value, i)] as const);
    this.#evaluators = programs.map(([output, program], i) => {
      const weighted = () => programFor(defined[i]![1].mul(symbols.weights), i);
      const forms: Forms = {
        optional: ['token_weights'],
        perRow: [],
        spec: (form) => specOf(form === 0 ? program : weighted()),
      };
      const isMultiplied = output === 'weight' && !alone;
      return [output, new Evaluator(isMultiplied ? forms : specOf(program), reader)] as const;
    });
    const values = [...defined.map(([, value]) => value), ...Object.values(metrics).flatMap(valuesOf)];
    const nodes = reachable(values.map(({ node }) => node));
    const readsLogprob = nodes.includes(graph.column('logprob'));
    this.columns = unique(programs.flatMap(([, { columns }]) => columns)).filter(
      (column) => column !== 'logprob' || readsLogprob,
    );
    this.maskColumns = programs.find(([output]) => output === 'kept')?.[1].columns ?? [];
    this.rowColumns = unique(programs.flatMap(([, { rowColumns }]) => rowColumns));
    this.readsWholeBatch = programs.some(([, program]) => program.readsWholeBatch);
  }

  /** Whether the correction multiplies the losses of the tokens by weights. */
  get hasWeights(): boolean {
    return this.#evaluators.some(([output]) => output === 'weight');
  }

  /** Whether the correction replaces logprob, for all terms of an objective. */
  get replacesLogprob(): boolean {
    return this.#evaluators.some(([output]) => output === 'logprob');
  }

  /** The batch keys that the correction reads in addition to logprob. */
  get keys(): string[] {
    return [...this.columns.filter((column) => column !== 'logprob'), ...this.rowColumns];
  }

  /** Whether the weights depend on logprob, although they are constants for the gradient. */
  get weighsByLogprob(): boolean {
    return this.hasWeights && this.columns.includes('logprob');
  }

  apply(input: Input, stream: bigint | undefined): Steps<Corrected> {
    return this.#run(this.#evaluators, input, stream);
  }

  *mask(input: Input): Steps<Uint8Array | undefined> {
    const evaluators = this.#evaluators.filter(([output]) => output === 'kept');
    return (yield* this.#run(evaluators, input, undefined)).columns.mask;
  }

  *#run(evaluators: Evaluators, input: Input, stream: bigint | undefined): Steps<Corrected> {
    const own = onceEach(input);
    const arrays: Arrays = {};
    const metrics: Metrics = {};
    for (const [output, evaluator] of evaluators) {
      const call = { input: own, gradients: newArray(input), options: { stream }, coefficients: {} };
      const result = yield* evaluator.evaluate<Metrics>(call);
      arrays[output] = result.grad!;
      Object.assign(metrics, result.metrics);
    }
    const { weight, kept, logprob, passing } = arrays;
    const mask = kept && (yield* maskOf(kept));
    return { columns: { mask, weights: weight, logprob }, passing, metrics };
  }
}

// Multiplies the weights of several corrections. A token is kept if all of them keep it.
function combined(
  { constant }: ProgramSymbols,
  all: readonly CorrectionExpressions[],
): CorrectionExpressions {
  const given = (output: Output) => all.flatMap((each) => each[output] ?? []);
  const product = (output: Output) => {
    const values = given(output);
    return values.length === 0 ? undefined : values.reduce((a, b) => a.mul(b), constant(1));
  };
  return {
    weight: product('weight'),
    kept: product('kept'),
    logprob: given('logprob')[0],
    passing: product('passing'),
    metrics: Object.assign({}, ...all.map(({ metrics }) => metrics)),
  };
}

function valuesOf(metric: MetricExpression | undefined): Expression[] {
  return Object.values(metric ?? {}).filter((value) => typeof value !== 'number');
}

function unique<T>(values: readonly T[]): T[] {
  return [...new Set(values)];
}

// Returns the batch with each row once. A correction does not depend on how often a row counts.
function onceEach(input: Input): Input {
  const { repeats } = input.native as NativeBatch;
  return repeats ? { ...input, native: { ...(input.native as NativeBatch), repeats: undefined } } : input;
}

function newArray({ layout: { tokens } }: Input): { grad: Float32Array } {
  return { grad: allocate(`a correction of ${tokens} values`, () => new Float32Array(tokens)) };
}

function* maskOf(kept: Float32Array): Steps<Uint8Array> {
  const mask = new Uint8Array(kept.length);
  yield* inSlices(kept.length, (begin, end) => {
    for (let i = begin; i < end; i++) mask[i] = kept[i]!;
  });
  return mask;
}
