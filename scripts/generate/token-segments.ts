// Collects the token segments of the package's own losses, each as a graph of the values that it computes.
import { createHash } from 'node:crypto';
import type { NativeFunctionSpec, NativeProgramLossSpec } from '../../binding.js';
import { native } from '../../lib/base/native.js';
import { toSnakeCase } from '../../lib/base/options.js';
import type { LossInput } from '../../lib/batch/columns.js';
import type { FormColumns } from '../../lib/call/forms.js';
import { LOSS_FN, LossError, POLICY_LOSS_FN, VALUE_LOSS_FN } from '../../lib/index.js';
import { ARITHMETIC, isArithmetic } from '../../lib/program/arithmetic.js';
import { requiredArgs } from '../../test/support/draw-arguments.js';

const NUMBERS_PER_INSTRUCTION = 6;
// The kinds of operands, by their numbers in native code.
const [REGISTER, COLUMN, CONSTANT, SCANNED] = [0, 1, 2, 8];
const TOKEN_KINDS: Record<number, string> = {
  [REGISTER]: 'register',
  [COLUMN]: 'column',
  [SCANNED]: 'scanned',
};
const OUTPUTS = ['loss', 'metric', 'grad'];
const SCANS = ['prefix_sum', 'suffix_sum', 'turn_sum', 'token_rank'];
// The output that compiled segments lack. No loss has it with default options.
const NOT_COMPILED = 'grad_entropy';

/** A value of a segment, or a use of values: an output, a reduction or a scan. Equal ones are one object. */
export interface Value {
  /** The operation, or 'column', 'scanned', 'uniform' or 'literal'. */
  readonly op: string;
  readonly operands: readonly Value[];
  /** The index of a column, uniform number, metric, reduction, and so on, or the value of a literal. */
  readonly number: number;
  /** Equal for equal values of all segments. */
  readonly key: string;
}

/** A token segment, and the losses that have it. */
export interface Segment {
  readonly losses: string[];
  readonly uses: readonly Value[];
  /** The names of the first loss's metrics. */
  readonly metrics: readonly string[];
}

/** The names of the losses of tokens. */
const NAMES = [POLICY_LOSS_FN, VALUE_LOSS_FN].flatMap((registry) => registry.names());

/** Returns the token segments of losses. */
export function tokenSegments(names: readonly string[] = NAMES): Segment[] {
  const segments = new Map<string, Segment>();
  for (const name of names)
    for (const { metrics, instructions } of segmentsOf(name)) {
      if (instructions.some(({ op }) => op === NOT_COMPILED)) continue;
      const uses = new Builder().usesIn(instructions);
      const key = uses.map((use) => use.key).join();
      const segment = segments.get(key) ?? { losses: [], uses, metrics };
      if (!segment.losses.includes(name)) segment.losses.push(name);
      segments.set(key, segment);
    }
  return [...segments.values()];
}

interface Instruction {
  readonly op: string;
  readonly out: number;
  /** `literal` is the value of a constant. It is NaN if options can change it. */
  readonly operands: { readonly kind: number; readonly index: number; literal: number }[];
}

interface Instructions {
  readonly instructions: readonly Instruction[];
  readonly metrics: readonly string[];
}

// Returns the token segments that a loss runs for its gradient with default options, or none if native code computes it.
// Options are changed a little where that leaves the instructions as they are. Afterwards, two constants are the same
// number only if they always are, and a constant that has not changed is a literal. There are two exceptions: numbers other
// than 0 and 1 that equal an option which could not be changed, and Infinity, with which GCC 12 would compare in a branch.
function segmentsOf(name: string): Instructions[] {
  const declaration = LOSS_FN.get(name).declaration!;
  let args: Record<string, unknown> = requiredArgs(declaration);
  const original = segmentsWith(name, args);
  let changed = original;
  const notLiteral = [Infinity, -Infinity];
  for (const [i, [key, option]] of Object.entries(declaration.options).entries()) {
    if (option.type !== 'number' && option.type !== 'integer') continue;
    const given = Number(args[toSnakeCase(key)] ?? option.default ?? option.typical?.[0]);
    const step = option.type === 'integer' ? i + 1 : (i + 1) / 1024;
    const found = [given + step, given - step]
      .map((value) => ({ ...args, [toSnakeCase(key)]: value }))
      .map((args) => ({ args, segments: segmentsWith(name, args) }))
      .find(({ segments }) => shapeOf(segments) === shapeOf(original));
    if (found) [args, changed] = [found.args, found.segments];
    else if (![0, 1].includes(given)) notLiteral.push(Math.fround(given));
  }
  const operandsOf = (segments: Instructions[]) =>
    segments.flatMap(({ instructions }) => instructions.flatMap(({ operands }) => operands));
  const before = operandsOf(original);
  for (const [i, operand] of operandsOf(changed).entries())
    if (operand.literal !== before[i]!.literal || notLiteral.includes(operand.literal))
      operand.literal = Number.NaN;
  return changed;
}

// Returns the token segments with some arguments, or none if they are not valid.
function segmentsWith(name: string, args: Record<string, unknown>): Instructions[] {
  try {
    return programsOf(name, args).flatMap(segmentsIn);
  } catch (error) {
    if (error instanceof LossError) return [];
    throw error;
  }
}

/** Returns the forms of a loss for the usual batches, or nothing if native code computes the loss. */
export function programsOf(name: string, args: Record<string, unknown>): NativeProgramLossSpec[] {
  const loss = LOSS_FN.create(name, args);
  if (!('spec' in loss || 'withTerms' in loss)) return [];
  if (!('withTerms' in loss)) return programsIn([loss.spec]);
  const made = loss.withTerms({});
  if (!('spec' in made)) return programsIn([made]);
  return programsIn(usualForms(made, loss.reads.optional).map((form) => made.spec(form)));
}

function programsIn(specs: readonly NativeFunctionSpec[]): NativeProgramLossSpec[] {
  return specs.flatMap(({ policyLoss }) => (policyLoss && 'program' in policyLoss ? [policyLoss] : []));
}

// The optional columns that batches usually lack.
const RARE: readonly LossInput[] = [
  'clip_cov_keys',
  'token_weights',
  'ref_logps',
  'prob_desirable',
  'answer_mask',
];

// Returns three forms, all with one advantage per token. Each has all optional columns but the entropies and the rare
// ones. The second also has the entropies, and the third the rare ones that the loss itself reads.
function usualForms({ optional }: FormColumns, read: readonly LossInput[]): number[] {
  const bits = (columns: readonly LossInput[]) =>
    columns.reduce((sum, column) => sum | (optional.includes(column) ? 1 << optional.indexOf(column) : 0), 0);
  const usual = bits(optional.filter((column) => column !== 'entropy' && !RARE.includes(column)));
  return [
    ...new Set([
      usual,
      usual | bits(['entropy']),
      usual | bits(RARE.filter((column) => read.includes(column))),
    ]),
  ];
}

// Returns a text that is equal for segments that differ at most in which operands are the same number for all tokens.
function shapeOf(segments: readonly Instructions[]): string {
  const shape = ({ kind, index }: Instruction['operands'][number]) =>
    kind in TOKEN_KINDS ? [kind, index] : 'uniform';
  return JSON.stringify(
    segments.map(({ instructions }) => instructions.map((x) => [x.op, x.out, x.operands.map(shape)])),
  );
}

// Returns the token segments of a program. The one with the outputs includes a token segment without scans after it.
function segmentsIn({ program, metrics }: NativeProgramLossSpec): Instructions[] {
  const { code, constants } = program.withGrad;
  const segments: { kind: string; instructions: Instruction[] }[] = [];
  for (let at = 0; at < code.length; at += NUMBERS_PER_INSTRUCTION) {
    const [index, out, ...numbers] = code.subarray(at, at + NUMBERS_PER_INSTRUCTION);
    const op = native.programOps[index!]!;
    const operands = numbers.map((x) => {
      const [kind, index] = [x >> 16, x & 0xffff];
      return { kind, index, literal: kind === CONSTANT ? Math.fround(constants[index]!) : Number.NaN };
    });
    if (['tokens', 'row', 'batch'].includes(op)) segments.push({ kind: op, instructions: [] });
    else segments.at(-1)!.instructions.push({ op, out: out!, operands });
  }
  const has = (segment: (typeof segments)[number] | undefined, ops: readonly string[]) =>
    segment?.kind === 'tokens' && segment.instructions.some(({ op }) => ops.includes(op));
  const follows = segments.map((segment, i) => has(segments[i - 1], OUTPUTS) && !has(segment, SCANS));
  const named = metrics.filter(({ per }) => per !== 'batch').map((metric) => metric.name);
  return segments.flatMap(({ kind, instructions }, i) => {
    if (kind !== 'tokens' || follows[i]) return [];
    const { kind: next, instructions: others } = segments[i + 1] ?? { kind: 'none', instructions: [] };
    return [
      {
        instructions: next === 'tokens' && follows[i + 1] ? [...instructions, ...others] : instructions,
        metrics: named,
      },
    ];
  });
}

const OF_POSITION = ['is_at', 'is_up_to', 'draw'];
const CONDITIONS = ['lt', 'le', 'eq', 'and', 'or', 'not', 'is_at', 'is_up_to'];
/** Returns whether a value depends on the position of the token. */
export const isOfPosition = ({ op }: Pick<Value, 'op'>) => OF_POSITION.includes(op);
/** Returns whether a value is always 0 or 1. */
export const isCondition = ({ op }: Value) => CONDITIONS.includes(op);
const isLiteral = ({ op, number }: Value, value: number) => op === 'literal' && number === value;

// Builds the graph of a segment.
class Builder {
  readonly #values = new Map<string, Value>();
  // The uniform operands and the results that depend on positions, in the order of their first use.
  readonly #uniforms = new Set<string>();
  readonly #positions: string[] = [];

  usesIn(instructions: readonly Instruction[]): Value[] {
    const registers: Value[] = [];
    let reductions = 0;
    const uses = instructions.flatMap((instruction) => {
      const { op, out } = instruction;
      const count = isArithmetic(op) ? ARITHMETIC[op].length : op === 'grad' ? 2 : 1;
      const operands = instruction.operands.slice(0, count).map(({ kind, index, literal }) => {
        if (kind === REGISTER) return registers[index]!;
        if (kind in TOKEN_KINDS) return this.#value(TOKEN_KINDS[kind]!, [], index);
        if (!Number.isNaN(literal) && !isOfPosition({ op })) return this.#value('literal', [], literal);
        const uniform = `${kind} ${index}`;
        return this.#value('uniform', [], [...this.#uniforms.add(uniform)].indexOf(uniform));
      });
      if (isOfPosition({ op })) {
        this.#positions.push(`${op} ${operands[0]!.key}`);
        registers[out] = this.#value(op, operands, this.#positions.indexOf(this.#positions.at(-1)!));
      } else if (isArithmetic(op)) registers[out] = this.#operation(op, operands);
      else return [this.#value(op, operands, op.startsWith('row_') ? reductions++ : out)];
      return [];
    });
    // The loss is often a metric, too.
    const loss = uses.find(({ op }) => op === 'loss');
    const twin = uses.find(({ op, operands }) => op === 'metric' && operands[0] === loss?.operands[0]);
    if (!twin) return uses;
    const both = this.#value('loss_and_metric', twin.operands, twin.number);
    return uses.filter((use) => use !== loss).map((use) => (use === twin ? both : use));
  }

  // Returns the result of an operation as generated code writes it: with conditions instead of the numbers 1 and 0.
  #operation(op: string, values: readonly Value[]): Value {
    const [a, b, c, d] = values as [Value, Value, Value, Value];
    if (op === 'mul' && isCondition(a) && isCondition(b)) return this.#value('and', values);
    if (op === 'sub' && isLiteral(a, 1) && isCondition(b)) return this.#value('not', [b]);
    const comparison = /^select_(lt|le|eq)$/.exec(op)?.[1];
    if (comparison === undefined) return this.#value(op, values);
    if (op === 'select_lt' && a === c && b === d) return this.#value('at_most', [b, a]);
    if (op === 'select_lt' && a === d && b === c)
      return this.#value(isCondition(a) && isCondition(b) ? 'or' : 'at_least', [a, b]);
    const isChoice = op === 'select_lt' && isLiteral(a, 0) && isCondition(b);
    const condition = isChoice ? b : this.#value(comparison, [a, b]);
    if (!isChoice && isCondition(c) && isLiteral(d, 0)) return this.#value('and', [condition, c]);
    return this.#value('select', [condition, c, d]);
  }

  #value(op: string, operands: readonly Value[], number = 0): Value {
    const text = [op, number, ...operands.map(({ key }) => key)].join();
    const key = createHash('sha1').update(text).digest('hex');
    const value = this.#values.get(key) ?? { op, operands, number, key };
    this.#values.set(key, value);
    return value;
  }
}
