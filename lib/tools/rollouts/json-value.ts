// Parses JSON text from files. The size of a value is checked before it is parsed, because parsing creates all of its
// lists at once.
import { sizeOfJson } from './json-size.js';
import { tooManyTokens } from './limits.js';
import { errorAt, type Place, type RowLimits } from './source.js';

/** Where JSON text comes from and what it should hold, for error messages, and how large it may be. */
export interface JsonContext {
  place: Place;
  /** The name of the column that holds the text. */
  key?: string | undefined;
  /** The kind of value that the text should hold. */
  expected: string;
  limits: RowLimits;
}

/**
 * Parses JSON text. Reads NaN and Infinity too, which Python writes, except in values with text. In a list, NaN becomes
 * null.
 * @throws LossError `ERR_INVALID_INPUT` if the text is not valid JSON, or if its lists and objects have more than
 * `limits.maxRowTokens` elements in total.
 */
export function parseJson(json: string, { place, key, expected, limits }: JsonContext): unknown {
  const { maxRowTokens } = limits;
  // Each element takes at least two characters: itself and a comma or bracket.
  if (json.length > 2 * maxRowTokens) {
    const { elements } = sizeOfJson(Buffer.from(json));
    if (elements > maxRowTokens)
      throw errorAt(place, 'ERR_INVALID_INPUT', { key, ...tooManyTokens(limits, elements) });
  }
  try {
    return JSON.parse(json);
  } catch (error) {
    const number = nonFiniteIn(json);
    if (number !== undefined) return number;
    throw errorAt(
      place,
      'ERR_INVALID_INPUT',
      {
        key,
        expected,
        received: `text that does not parse (${(error as Error).message})`,
        hint: arrayHint(json, place),
      },
      error,
    );
  }
}

/**
 * Parses a number, or lists of numbers, of which some are not finite, as Python writes them. In a list, NaN becomes null.
 * Returns undefined for other text.
 */
function nonFiniteIn(json: string): unknown {
  // Text can contain any word.
  if (json.includes('"')) return undefined;
  if (/^\s*-?nan\s*$/i.test(json)) return Number.NaN;
  // JSON has no word for Infinity, but numbers that are as large.
  const finite = json
    .replace(/(?<![\w.])-?(?:NaN|nan)(?!\w)/g, 'null')
    .replace(/(?<![\w.])(?:Infinity|inf)(?!\w)/g, '1e999');
  try {
    return JSON.parse(finite);
  } catch {
    return undefined;
  }
}

/**
 * Returns a hint for the error message if line 1 begins like an array. The file is then probably a single JSON array
 * instead of JSON lines.
 */
export function arrayHint(json: string, { line }: Place): string | undefined {
  if (line !== 1 || !json.startsWith('[')) return undefined;
  return "If the file is one JSON array, `jq -c '.[]'` converts it to lines";
}

/**
 * Returns the exact value of a JSON number that identifies something: a number if a float64 holds the value exactly,
 * otherwise text. Equal values give equal results, however they are written.
 * @param literal a valid JSON number.
 */
export function exactNumber(literal: string): number | string {
  const number = Number(literal);
  const isSafe = Math.abs(number) <= Number.MAX_SAFE_INTEGER;
  if (isSafe && String(number) === literal) return number;
  const decimal = decimalOf(literal);
  return isSafe && decimalOf(String(number)) === decimal ? number : decimal;
}

/** Writes a number in a form that depends only on its value: an integer as its digits, if they are not too many. */
function decimalOf(literal: string): string {
  if (literal.length > MAX_DIGITS) return literal;
  const [, sign, whole, fraction = '', exponent = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/i.exec(
    literal,
  )!;
  const padded = `${whole}${fraction}`.replace(/^0+/, '');
  const digits = padded.replace(/0+$/, '');
  if (digits === '') return '0';
  const power = Number(exponent) - fraction.length + (padded.length - digits.length);
  const isInteger = power >= 0 && digits.length + power <= MAX_DIGITS;
  return `${sign}${digits}${isInteger ? '0'.repeat(power) : `e${power}`}`;
}

// A float64 has at most 309 digits before its decimal point. A longer number identifies something only as it is written.
const MAX_DIGITS = 400;
