// Numbers as a page shows them.
import { readable } from '../output.js';

/** With 6 significant digits, as on the terminal. */
export function full(x: number): string {
  return withMinus(readable(x));
}

/** With 3 significant digits. */
export function short(x: number): string {
  const size = Math.abs(x);
  if (!Number.isFinite(x) || x === 0) return withMinus(String(x));
  return withMinus(
    size < 1e-3 || size >= 1e6 ? x.toExponential(2).replace('e+', 'e') : String(Number(x.toPrecision(3))),
  );
}

/** How many there are of something. */
export function count(n: number): string {
  return Math.round(n).toLocaleString('en');
}

/** 'a token' or '13 tokens'. */
export function counted(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? '' : 's'}`;
}

/** A share as a percentage. */
export function percent(share: number): string {
  const percentage = share * 100;
  if (percentage === 0 || percentage === 100) return `${percentage}%`;
  if (percentage < 0.1) return 'less than 0.1%';
  // All but all is not all.
  return `${percentage > 99.9 ? 99.9 : Number(percentage.toPrecision(3))}%`;
}

/** For JSON: so many significant digits, null where it is not finite. */
export function rounded(x: number, digits: number): number | null {
  return Number.isFinite(x) ? Number(x.toPrecision(digits)) : null;
}

function withMinus(text: string): string {
  return text.replaceAll('-', '−');
}
