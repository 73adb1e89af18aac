// Formats numbers for the page and for the data in it.
import { readable } from '../output.js';
import { withMinus } from './short-number.js';

/** Returns a number with 6 significant digits, as the terminal shows it. */
export function full(x: number): string {
  return withMinus(readable(x));
}

/** Returns a count with thousands separators. */
export function count(n: number): string {
  return Math.round(n).toLocaleString('en');
}

/** Returns a count with its noun: '1 token' or '13 tokens'. */
export function counted(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? '' : 's'}`;
}

/** Returns a share between 0 and 1 as a percentage. */
export function percent(share: number): string {
  const percentage = share * 100;
  if (percentage === 0 || percentage === 100) return `${percentage}%`;
  if (percentage < 0.1) return 'less than 0.1%';
  // Rounding must not turn a share below 100% into 100%.
  return `${percentage > 99.9 ? 99.9 : Number(percentage.toPrecision(3))}%`;
}

/** Rounds a number for JSON to some significant digits; returns null if it is not finite. */
export function rounded(x: number, digits: number): number | null {
  return Number.isFinite(x) ? Number(x.toPrecision(digits)) : null;
}
