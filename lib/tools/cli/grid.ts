// The grid of option values that `sweep` computes. An option may have a list of values, such as `--loss-agg-mode
// token-mean,seq-mean-token-mean`, or a range of values, such as `--clip-range 0.1:0.4:0.05`.
import { LossError } from '../../index.js';

/** A decimal number without rounding: digits · 10^(−places). */
interface Decimal {
  digits: bigint;
  places: number;
}

/**
 * Returns the values that an option has in a grid. They are written with commas between them. Each may be a range
 * start:end:step, which includes its end if a step reaches it. The values of a range are computed exactly in decimal,
 * so rounding errors do not accumulate.
 * @param flag the flag of the option, for error messages.
 * @param word the text of the values on the command line.
 * @param most the largest number of values that a range may have.
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
    throw new LossError('ERR_INVALID_OPTION', {
      at: `${flag} ${word}`,
      expected: 'values separated by single commas',
      received: 'an empty value',
    });
  return values;
}

function range(flag: string, item: string, words: readonly string[], most: number): string[] {
  const numbers = words.map(decimal);
  const [start, end, step] = numbers;
  if (words.length !== 3 || !start || !end || !step)
    throw invalid(flag, item, 'start:end:step, three numbers such as 0.1:0.4:0.05');
  const places = Math.max(start.places, end.places, step.places);
  if (places > 400) throw invalid(flag, item, 'numbers with at most 400 decimal places');
  const at = ({ digits, places: own }: Decimal) => digits * 10n ** BigInt(places - own);
  const [first, last, by] = [at(start), at(end), at(step)];
  if (by === 0n) throw invalid(flag, item, 'a step other than 0');
  const count = (last - first) / by;
  if (count < 0n || (last - first) * by < 0n)
    throw invalid(flag, item, `a step that leads from ${words[0]} to ${words[1]}`, words[2]);
  if (count >= BigInt(most)) throw invalid(flag, item, `at most ${most} values`, String(count + 1n));
  return Array.from({ length: Number(count) + 1 }, (_, i) =>
    String(toNumber(first + BigInt(i) * by, places)),
  );
}

function decimal(text: string): Decimal | undefined {
  const [, sign, whole, fraction = '', exponent = '0'] =
    /^\s*([+-]?)(\d*)(?:\.(\d*))?(?:e([+-]?\d{1,3}))?\s*$/i.exec(text) ?? [];
  if (sign === undefined || `${whole}${fraction}` === '') return undefined;
  const digits = BigInt(`${sign === '-' ? '-' : ''}${whole}${fraction}`);
  const places = fraction.length - Number(exponent);
  return places >= 0 ? { digits, places } : { digits: digits * 10n ** BigInt(-places), places: 0 };
}

// The conversion goes through text, because parsing rounds only once, to the nearest float64.
function toNumber(digits: bigint, places: number): number {
  return Number(`${digits}e-${places}`);
}

function invalid(flag: string, item: string, expected: string, received?: string): LossError {
  return new LossError('ERR_INVALID_OPTION', { at: `${flag} ${item}`, expected, received });
}

/**
 * Returns all combinations of one value from each axis. From one combination to the next, the value of the last axis
 * changes fastest.
 */
export function product<T>(axes: readonly (readonly T[])[]): T[][] {
  return axes.reduce<T[][]>(
    (points, values) => points.flatMap((point) => values.map((value) => [...point, value])),
    [[]],
  );
}
