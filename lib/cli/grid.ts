// Grids over options: what `--clip-range 0.1:0.4:0.05` and `--loss-agg-mode token-mean,seq-mean-token-mean` stand for.
import { LossError } from '../index.js';

/** A number as it was written: digits·10^-places. */
interface Decimal {
  digits: bigint;
  places: number;
}

/**
 * The values that a word of a grid stands for, as text: values with commas between them, each of which may be a range
 * start:end:step. Ranges include their end where a step comes to it, and are exact: no rounding adds up along them.
 * @param flag the option that they are for, in messages.
 * @param most how many there may be.
 * @throws LossError `ERR_INVALID_OPTION`
 */
export function valuesOfWord(flag: string, word: string, most: number): string[] {
  const values = word.split(',').flatMap((item) => {
    const ends = item.split(':');
    if (ends.length === 1) return [item.trim()];
    return range(flag, item, ends, most);
  });
  const empty = values.some((value) => value === '');
  if (empty)
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${flag} ${word}: expected values with one comma between two, and one is empty`,
    );
  return values;
}

function range(flag: string, item: string, words: readonly string[], most: number): string[] {
  const numbers = words.map(decimal);
  const [start, end, step] = numbers;
  if (words.length !== 3 || !start || !end || !step)
    throw invalid(flag, item, 'expected start:end:step, three numbers, as in 0.1:0.4:0.05');
  const places = Math.max(start.places, end.places, step.places);
  if (places > 400) throw invalid(flag, item, 'expected numbers of at most 400 places');
  const at = ({ digits, places: own }: Decimal) => digits * 10n ** BigInt(places - own);
  const [first, last, by] = [at(start), at(end), at(step)];
  if (by === 0n) throw invalid(flag, item, 'expected a step other than 0');
  const count = (last - first) / by;
  if (count < 0n || (last - first) * by < 0n)
    throw invalid(flag, item, `expected a step that leads from ${words[0]} to ${words[1]}, not ${words[2]}`);
  if (count >= BigInt(most)) throw invalid(flag, item, `expected at most ${most} values, not ${count + 1n}`);
  return Array.from({ length: Number(count) + 1 }, (_, i) =>
    String(toNumber(first + BigInt(i) * by, places)),
  );
}

function decimal(text: string): Decimal | undefined {
  const [, sign, whole, fraction = '', exponent = '0'] =
    /^\s*([+-]?)(\d*)\.?(\d*)(?:e([+-]?\d{1,3}))?\s*$/i.exec(text) ?? [];
  if (sign === undefined || `${whole}${fraction}` === '') return undefined;
  const digits = BigInt(`${sign === '-' ? '-' : ''}${whole}${fraction}`);
  const places = fraction.length - Number(exponent);
  return places >= 0 ? { digits, places } : { digits: digits * 10n ** BigInt(-places), places: 0 };
}

// By way of text, which is read to the nearest number there is.
function toNumber(digits: bigint, places: number): number {
  return Number(`${digits}e-${places}`);
}

function invalid(flag: string, item: string, says: string): LossError {
  return new LossError('ERR_INVALID_OPTION', `${flag} ${item}: ${says}`);
}

/** All combinations of one value each, the last axis' values following one another. */
export function product<T>(axes: readonly (readonly T[])[]): T[][] {
  return axes.reduce<T[][]>(
    (points, values) => points.flatMap((point) => values.map((value) => [...point, value])),
    [[]],
  );
}
