// The arithmetic of the loss language on float64 numbers, by which constants are computed in advance.

/** A condition is true if it is neither 0 nor NaN. */
export const isTrue = (x: number) => x !== 0 && !Number.isNaN(x);
const sigmoid = (x: number) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)));

// The product, but 0 where one factor is 0 and the other infinite.
function mulNoNan(x: number, y: number): number {
  const plain = x * y;
  return Number.isNaN(plain) && !Number.isNaN(x + y) ? 0 : plain;
}

// exp(x) − 1 − x cancels near 0, so its series is summed there.
function expResidual(x: number): number {
  if (Math.abs(x) > 0.5) return Math.expm1(x) - x;
  let sum = 0;
  let term = x;
  for (let k = 2; k <= 16; k++) {
    term *= x / k;
    sum += term;
  }
  return sum;
}

/** The operations that compute one number from others, under their names in NativeEngine.programOps. */
export const ARITHMETIC = {
  add: (x: number, y: number) => x + y,
  sub: (x: number, y: number) => x - y,
  mul: (x: number, y: number) => x * y,
  mul_no_nan: mulNoNan,
  div: (x: number, y: number) => x / y,
  min: (x: number, y: number) => Math.min(x, y),
  max: (x: number, y: number) => Math.max(x, y),
  pow: (x: number, y: number) => x ** y,
  lt: (x: number, y: number) => Number(x < y),
  le: (x: number, y: number) => Number(x <= y),
  eq: (x: number, y: number) => Number(x === y),
  neg: (x: number) => -x,
  abs: (x: number) => Math.abs(x),
  sign: (x: number) => Math.sign(x),
  sqrt: (x: number) => Math.sqrt(x),
  floor: (x: number) => Math.floor(x),
  exp: (x: number) => Math.exp(x),
  expm1: (x: number) => Math.expm1(x),
  exp_residual: expResidual,
  exp_with_residual: (x: number) => Math.exp(x),
  log: (x: number) => Math.log(x),
  log1p: (x: number) => Math.log1p(x),
  tanh: (x: number) => Math.tanh(x),
  sigmoid,
  logsigmoid: (x: number) => Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x))),
  select: (condition: number, x: number, y: number) => (isTrue(condition) ? x : y),
  clip: (x: number, low: number, high: number) => Math.min(Math.max(x, low), high),
  select_lt: (a: number, b: number, x: number, y: number) => (a < b ? x : y),
  select_le: (a: number, b: number, x: number, y: number) => (a <= b ? x : y),
  select_eq: (a: number, b: number, x: number, y: number) => (a === b ? x : y),
} satisfies Record<string, (...operands: number[]) => number>;

export type ArithmeticOp = keyof typeof ARITHMETIC;

/** Computes one operation. */
export function compute(op: ArithmeticOp, operands: readonly number[]): number {
  return (ARITHMETIC[op] as (...operands: readonly number[]) => number)(...operands);
}

export function isArithmetic(op: string): op is ArithmeticOp {
  return Object.hasOwn(ARITHMETIC, op);
}
