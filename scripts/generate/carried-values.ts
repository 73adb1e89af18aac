// Divides a token segment in two, so that a loop can compute the exponentials of a step while it computes the rest of the
// step before. The values that the rest needs are carried from one step to the next.
import { isArithmetic } from '../../lib/program/arithmetic.js';

/** An instruction of a token segment. */
export interface Instruction {
  readonly op: string;
  readonly out: number;
  /** The kinds and indices of the operands that the operation has. */
  readonly operands: readonly (readonly [kind: number, index: number])[];
}

// The operations of which each is a long chain of dependent instructions.
const LONG = new Set([
  'exp',
  'expm1',
  'exp_residual',
  'exp_with_residual',
  'log',
  'log1p',
  'tanh',
  'sigmoid',
  'logsigmoid',
  'pow',
]);
// What a long operation costs, if other instructions cost 1.
const LONG_COST = 14;
// A loop that costs at least this per column takes longer to compute than to read from memory and write to it.
const LONG_LOOP_PER_COLUMN = 11;
// Loops that cost less per column than this do not gain from carrying values, even if all is in the cache.
const LEAST_COST_PER_COLUMN = 5.5;
/** The most values that a loop carries. More would not stay in registers. */
export const MOST_CARRIED = 6;

/** How a loop computes a segment. */
export interface Schedule {
  /** Whether the loop takes longer to compute than to read from memory and write to it. */
  readonly isLong: boolean;
  /**
   * The number of the carried value that each instruction computes, or undefined. Values are carried that other
   * instructions read, of long operations that depend on no other long operation, and of the arithmetic on which these
   * depend. None are if the loop would not gain from it.
   */
  readonly carried: readonly (number | undefined)[];
}

/**
 * Returns how a loop computes a segment.
 *
 * @param mostCarried no values are carried if there are more than this
 * @param columns how many numbers the loop reads from memory or writes to it per token
 * @param isRegister whether an operand is a register
 * @param writesRegister whether an instruction writes one
 */
export function scheduleOf(
  segment: readonly Instruction[],
  mostCarried: number,
  columns: number,
  isRegister: (operand: readonly [kind: number, index: number]) => boolean,
  writesRegister: (instruction: Instruction) => boolean,
): Schedule {
  // The values in registers, by the text of the expression that computes them. Equal expressions share a value.
  const values = new Map<string, number>();
  const registers = new Map<number, number>();
  const operandsOf: number[][] = [];
  const ops: string[] = [];
  const reads: number[][] = [];
  const results = segment.map((instruction, i) => {
    const { op, out, operands } = instruction;
    const read = operands.filter(isRegister).map(([, index]) => registers.get(index)!);
    reads[i] = read;
    if (!writesRegister(instruction)) return undefined;
    const named = operands.map((x) => (isRegister(x) ? `value ${registers.get(x[1])}` : x.join(' ')));
    const text = `${op} ${named.join(', ')}`;
    const value = values.get(text) ?? values.size;
    values.set(text, value);
    operandsOf[value] = read;
    ops[value] = op;
    registers.set(out, value);
    return value;
  });

  const early = new Set<number>();
  const addWithOperands = (value: number) => {
    early.add(value);
    operandsOf[value]!.forEach(addWithOperands);
  };
  const followsLong: boolean[] = [];
  for (const [value, operands] of operandsOf.entries()) {
    followsLong[value] = operands.some((x) => followsLong[x] || LONG.has(ops[x]!));
    if (LONG.has(ops[value]!) && !followsLong[value]) addWithOperands(value);
  }
  const readLate = new Set(
    reads.flatMap((of, i) => (results[i] !== undefined && early.has(results[i]) ? [] : of)),
  );
  const isCarried = (op: string, value: number) =>
    early.has(value) && readLate.has(value) && isArithmetic(op);
  const carried = ops.flatMap((op, value) => (isCarried(op, value) ? [value] : []));
  const others = results.filter((value) => value === undefined).length;
  const cost = ops.reduce((sum, op) => sum + (LONG.has(op) ? LONG_COST : 1), others);
  const isLong = cost >= columns * LONG_LOOP_PER_COLUMN;
  const carries = cost >= columns * LEAST_COST_PER_COLUMN && carried.length <= mostCarried;
  return {
    isLong,
    carried: results.map((value) => {
      const number = carries && value !== undefined ? carried.indexOf(value) : -1;
      return number < 0 ? undefined : number;
    }),
  };
}
