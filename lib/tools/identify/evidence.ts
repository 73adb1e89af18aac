// How well candidates reproduce what a trainer logged.
import { LossError } from '../../base/errors.js';

/** Numbers that a trainer logged, by name: loss, pg_loss, kl_loss, entropy_loss, grad_norm, or a metric of a loss. */
export type LoggedNumbers = Readonly<Record<string, number | string>>;

/** A logged number, and how exactly it is known. */
export interface Logged {
  readonly name: string;
  /** The name, and what is left of it without one or more of its prefixes, such as pg_loss of actor/pg_loss. */
  readonly names: readonly string[];
  readonly value: number;
  /** Half a unit of its last digit. */
  readonly rounding: number;
}

/** How well a candidate meets one logged number. */
export interface Meeting {
  /** The candidate's number; null if the loss has no such metric. */
  readonly value: number | null;
  readonly logged: number;
  /** |value − logged| relative to |logged|; null without a value. */
  readonly error: number | null;
  /** To how many digits they agree, at most the 7 of float32; 0 without a value. */
  readonly digits: number;
}

const FLOAT_DIGITS = 7;
/** How many digits count. Trainers compute in float32 or less, so they seldom agree with others to more. */
export const MOST_DIGITS = 5;
// The digits to which this package agrees with float64 at least. More of them are no evidence.
const EXACT_DIGITS = 6;
// Losses are sums of terms of about 1, so a loss near 0 is not known better than to this.
const FLOOR = 1e-3;

/**
 * Reads logged numbers.
 * @throws LossError `ERR_INVALID_OPTION` if there is none, or one is not a finite number.
 */
export function readLogged(numbers: LoggedNumbers): Logged[] {
  const logged = Object.entries(numbers).map(([name, text]) => {
    const value = typeof text === 'string' && text.trim() === '' ? Number.NaN : Number(text);
    if (!Number.isFinite(value))
      throw new LossError('ERR_INVALID_OPTION', {
        option: 'logged',
        expected: `a finite number for ${name}`,
        received: String(text),
      });
    const words = name.split('/');
    const names = words.map((_, i) => words.slice(i).join('/'));
    return { name, names, value, rounding: Number.isInteger(text) ? 0 : roundingOf(String(text)) };
  });
  if (logged.length === 0)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'logged',
      expected: 'at least one logged number, such as loss=0.0336',
      received: 'none',
    });
  return logged;
}

// Returns half a unit of the last digit of a number's text, such as 0.00005 for 0.0336.
function roundingOf(text: string): number {
  const [digits, exponent = '0'] = text.trim().toLowerCase().split('e');
  const decimals = digits!.split('.')[1]?.length ?? 0;
  return decimals === 0 && Number(digits) === 0 ? 0 : 0.5 * 10 ** (Number(exponent) - decimals);
}

/** Returns how well a value meets a logged number. */
export function meet(logged: Logged, value: number | undefined): Meeting {
  if (value === undefined) return { value: null, logged: logged.value, error: null, digits: 0 };
  const error = Math.abs(value - logged.value) / scaleOf(logged);
  return { value, logged: logged.value, error, digits: digitsOf(logged, value) };
}

/** Returns to how many digits a value agrees with a logged number; see {@link Meeting}. */
function digitsOf(logged: Logged, value: number | undefined): number {
  if (value === undefined) return 0;
  const distance = Math.max(Math.abs(value - logged.value) - logged.rounding, 0);
  return Math.min(FLOAT_DIGITS, Math.max(0, -Math.log10(distance / scaleOf(logged))));
}

function scaleOf({ value }: Logged): number {
  return Math.max(Math.abs(value), FLOOR);
}

/** What a candidate's rank depends on: how many logged numbers it meets, and then to how many digits. */
export interface Score {
  matches: number;
  digits: number;
}

/** Returns the digits to which a number is met that has this relative error, the largest that counts as met. */
export function leastDigits(tolerance: number): number {
  return -Math.log10(tolerance);
}

/** Adds to a score how well a value meets a logged number. @param least the digits to which a number is met. */
export function count(logged: Logged, value: number | undefined, least: number, score: Score): void {
  const digits = digitsOf(logged, value);
  if (digits >= least) score.matches++;
  score.digits += counted(digits);
}

/** Orders scores, the best first. */
export function compareScores(a: Score, b: Score): number {
  return b.matches - a.matches || b.digits - a.digits;
}

/** Returns whether the logged numbers cannot tell two candidates apart: both meet each of them equally well. */
export function areEqual(a: readonly Meeting[], b: readonly Meeting[]): boolean {
  return a.every(
    (meeting, i) => Math.abs(counted(meeting.digits) - counted(b[i]!.digits)) <= DIGITS_OF_ROUNDING,
  );
}

function counted(digits: number): number {
  return Math.min(digits, MOST_DIGITS);
}

/** Returns whether the first candidate meets all logged numbers as well as the second, and one to clearly more digits. */
export function surpasses(a: readonly Meeting[], b: readonly Meeting[]): boolean {
  const isExact = ({ digits }: Meeting) => digits >= EXACT_DIGITS;
  return (
    a.every((meeting, i) => isExact(meeting) || meeting.digits >= b[i]!.digits) &&
    a.some(({ digits }, i) => !isExact(b[i]!) && digits - b[i]!.digits > DIGITS_OF_ROUNDING)
  );
}

// Rounding errors of float32 change an error by up to about this many digits.
const DIGITS_OF_ROUNDING = 0.7;
