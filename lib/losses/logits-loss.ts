// Makes the classes of the losses of logits from statements, as policy-loss.ts does for policy losses.
import type { FunctionDeclaration, MetricSchema, MetricValues } from '../base/declaration.js';
import { type AnyOption, backendOf, type CheckedOptions, readOptions } from '../base/options.js';
import type { ColumnName } from '../batch/columns.js';
import {
  Expression,
  nodeOf,
  type Operand,
  type ProgramSymbols,
  programSymbolsOf,
} from '../program/expression.js';
import { Graph } from '../program/graph.js';
import { type LossExpressions, type LossProgram, nodesOf, programOf } from '../program/loss-program.js';
import { type Entries, type EntrySymbols, entrySymbolsOf, MARKS } from './entries.js';
import type { LogitsLossOptions } from './logits-call.js';
import type { LogitsLossForm } from './logits-evaluation.js';
import { LogitsLossFn, type LogitsLossParts, type MaskInputs } from './logits-loss-fn.js';
import { FORM_INPUTS, type HasInput } from './logits-parts.js';
import { classOf, type FunctionClass, located } from './statement.js';

/** The symbols of the formula for the weights of tokens. */
export interface WeightSymbols extends ProgramSymbols {
  /** The number that the mask of the loss gives to the token. */
  readonly mark: Expression;
}

/** The declaration of a loss and its formula. */
interface LogitsLossStatement<N extends string, O, M extends MetricSchema>
  extends Omit<FunctionDeclaration, 'name' | 'options' | 'metrics'> {
  readonly name: N;
  readonly options: O;
  readonly metrics: M;
  /** The input by which the loss is differentiated: the logits unless it says otherwise. */
  readonly variable?: 'logits' | 'probs';
  /**
   * The columns with one value per token that the formula reads, and those that it reads if the batch has them. Every loss
   * is multiplied by the token_weights of a batch that has them.
   */
  readonly columns?: readonly ColumnName[];
  readonly optional?: readonly ColumnName[];
  /**
   * Changes a copy of the mask before anything else is computed. May return a number for each token, which the weights can
   * read as `mark`.
   */
  readonly mask?: (
    mask: Uint8Array,
    options: CheckedOptions<O>,
    inputs: MaskInputs,
  ) => Float32Array | undefined;
  /** The sums over tokens that have no meaning for a part of a batch. */
  readonly ofWholeBatch?: readonly (keyof M & string)[];
  /** Returns the entries from which the loss of a token is computed. By default, they are its logits alone. */
  readonly entries?: (options: CheckedOptions<O>, has: HasInput) => Entries;
  /** Returns the weights of a token in the batch, at most three, as values that do not depend on logits. */
  readonly weights: (symbols: WeightSymbols, options: CheckedOptions<O>) => readonly Expression[];
  /** Returns the loss of a token, including its weight in the batch, and the metrics. */
  readonly formula: (
    symbols: EntrySymbols,
    options: CheckedOptions<O>,
    has: HasInput,
  ) => Pick<LossExpressions<M>, 'loss' | 'metrics'>;
}

/**
 * Makes a class of losses of logits: `export class X extends logitsLoss({ … }) {}`. The options and metrics come before the
 * formula, whose types they give.
 */
export function logitsLoss<
  const N extends string,
  const O extends Readonly<Record<string, AnyOption>>,
  const M extends MetricSchema,
>(
  statement: LogitsLossStatement<N, O, M>,
): FunctionClass<LogitsLossFn<MetricValues<M>>, FunctionDeclaration, N, O, LogitsLossOptions> {
  const {
    formula,
    entries,
    weights,
    mask,
    columns = [],
    optional: ofFormula = [],
    ofWholeBatch = [],
    variable = 'logits',
    ...declaration
  } = statement;
  const declared = declaration as unknown as FunctionDeclaration;
  const optional = [...ofFormula, 'token_weights' as const];
  const { name } = declaration;
  return classOf<[string, LogitsLossParts]>(LogitsLossFn, declared, (owner, given) => {
    const backend = backendOf(given);
    const options = readOptions(owner, declared.options, given) as CheckedOptions<O>;
    const forms = new Map<string, LogitsLossForm>();
    const made: LogitsLossParts = {
      variable,
      reads: declaration.reads,
      columns,
      optional,
      ofWholeBatch,
      mask: mask && ((changed, inputs) => mask(changed, options, inputs)),
      weights: located(owner, () => weightPrograms(name, (symbols) => weights(symbols, options))),
      form: (has) => {
        const chosen = entries?.(options, has) ?? { over: 'vocabulary' };
        const key = JSON.stringify([chosen, FORM_INPUTS.map(has)]);
        const known = forms.get(key);
        if (known) return known;
        const form = located(owner, () => {
          const graph = new Graph({ absent: [], perRow: [...columns, ...optional] });
          const symbols = entrySymbolsOf(graph, chosen);
          const { loss = 0, metrics } = formula(symbols, options, has);
          const rowLoss = has('token_weights') ? symbols.weighted(symbols.tokenWeights, loss) : loss;
          const nodes = nodesOf(name, graph, { rowLoss, metrics, allRows: true });
          return { entries: chosen, program: programOf(nodes) };
        });
        forms.set(key, form);
        return form;
      },
    };
    return [backend, made];
  }) as never;
}

// Returns the programs whose derivatives by the log-probabilities are the weights.
function weightPrograms(
  name: string,
  weights: (symbols: WeightSymbols) => readonly Operand[],
): LossProgram[] {
  const symbolsOf = (graph: Graph): WeightSymbols => {
    const symbols = programSymbolsOf(graph);
    return { ...symbols, mark: new Expression(graph, graph.column(MARKS)) };
  };
  const count = weights(symbolsOf(new Graph())).length;
  return Array.from({ length: count }, (_, i) => {
    const graph = new Graph();
    const symbols = symbolsOf(graph);
    const weight = weights(symbols)[i]!;
    nodeOf(graph, `${name}: weight`, weight);
    return programOf(nodesOf(name, graph, { loss: symbols.lp.mul(weight), metrics: {} }));
  });
}
