// Which values can overflow float32, and which are never 0. Graph compiles a product of one that can overflow and one that
// can be 0 to mul_no_nan, so that an advantage, a weight or a coefficient of 0 gives 0 and not NaN.
import { COLUMNS, WEIGHTS_COLUMN } from '../batch/columns.js';
import { type Leaf, type Node, type Op, ROW_INPUTS } from './node.js';

// Float32 holds the exponentials of numbers up to about this one.
const LARGEST_EXPONENT = 88;

// The operations whose results are bounded, whatever their operands are.
const BOUNDED = new Set<Op | Leaf>([
  ...(['lt', 'le', 'eq', 'sign', 'sigmoid', 'tanh', 'is_at', 'is_up_to', 'is_row', 'draw'] as const),
  ...(['row_arg_min', 'row_arg_max', 'rows_arg_min', 'rows_arg_max', 'group_arg_max', 'token_rank'] as const),
]);

/** Returns whether a value can be infinite because an exponential overflowed. */
export function mayOverflow(op: Op | Leaf, operands: readonly Node[], value: number): boolean {
  const [a, b] = operands as [Node, Node];
  const isBounding = (x: Node, other: Node) => !x.mayOverflow && other.isPositive;
  switch (op) {
    case 'column':
      return value === WEIGHTS_COLUMN;
    case 'exp':
    case 'expm1':
    case 'exp_residual':
      return !isAtMost(a, LARGEST_EXPONENT);
    case 'pow':
      return true;
    case 'min':
      return (a.mayOverflow || b.mayOverflow) && !isBounding(a, b) && !isBounding(b, a);
    case 'clip':
    case 'select':
      return operands.slice(1).some((x) => x.mayOverflow);
    default:
      return !BOUNDED.has(op) && operands.some((x) => x.mayOverflow);
  }
}

// Returns whether a value is at most a positive limit: a log-probability, or one that the expression itself bounds.
function isAtMost({ op, operands, value }: Node, limit: number): boolean {
  const isBound = (x: Node) => x.op === 'constant' && x.value <= limit;
  if (op === 'stop') return isAtMost(operands[0]!, limit);
  if (op === 'column') return COLUMNS[value]?.endsWith('logprob') === true;
  if (op === 'clip') return isBound(operands[2]!);
  return op === 'min' ? operands.some(isBound) : op === 'constant' && value <= limit;
}

/** Returns whether a value is above 0, apart from exponentials that are too small for float32. */
export function isPositive(op: Op | Leaf, operands: readonly Node[], value: number): boolean {
  switch (op) {
    case 'constant':
      return value > 0;
    case 'row_input':
      return ROW_INPUTS[value] !== 'place_in_pair';
    case 'batch_input':
    case 'exp':
      return true;
    case 'max':
      return operands.some((x) => x.isPositive);
    case 'select':
      return operands.slice(1).every((x) => x.isPositive);
    case 'add':
    case 'mul':
    case 'div':
    case 'min':
    case 'clip':
    case 'stop':
    case 'turn_sum':
    case 'rows_sum':
      return operands.every((x) => x.isPositive);
    default:
      return false;
  }
}

/** Returns whether one factor of a product can be 0 while the other is infinite. */
export function canBeZeroTimesInfinity(a: Node, b: Node): boolean {
  return a !== b && ((a.mayOverflow && canBeZero(b)) || (b.mayOverflow && canBeZero(a)));
}

function canBeZero({ op, operands, value, isPositive }: Node): boolean {
  if (op === 'neg') return canBeZero(operands[0]!);
  return op === 'constant' ? value === 0 : !isPositive;
}
