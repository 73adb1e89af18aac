// The limits on what a reader holds in memory. A small file can claim or unpack to rows of any size, so readers check
// sizes before they allocate lists.
import { constants } from 'node:buffer';
import type { DetailsAtPlace, RowLimits } from './source.js';

/** The default of `ReadOptions.maxRowTokens`: 1,048,576 tokens. */
export const MAX_ROW_TOKENS = 2 ** 20;

/**
 * The default of `ReadOptions.maxRows`: 1,048,576 rows. A computation in parts takes up to 300 bytes per row for the
 * ids, rewards and advantages of all rows.
 */
export const MAX_ROWS = 2 ** 20;

/** Returns the details of the error to throw for files that have too many rows. */
export function tooManyRows(maxRows: number): DetailsAtPlace {
  return {
    expected: `at most ${maxRows} rows`,
    received: 'more',
    hint: (spell) => `If memory suffices, raise ${spell('maxRows')}`,
  };
}

/**
 * Returns the details of the error to throw for a row that has too many tokens.
 * @param received the number of tokens, or a description such as 'more'.
 */
export function tooManyTokens({ maxRowTokens }: RowLimits, received: number | string): DetailsAtPlace {
  return {
    expected: `at most ${maxRowTokens} tokens in a row`,
    received: String(received),
    hint: (spell) => `If the row is correct, raise ${spell('maxRowTokens')}`,
  };
}

/** Returns the maximum length of a row of a text file, in bytes. */
export function maxRowBytes({ maxRowTokens }: RowLimits): number {
  return Math.min(Math.max(MIN_ROW_BYTES, BYTES_PER_TOKEN * maxRowTokens), constants.MAX_STRING_LENGTH);
}

// A token takes about 20 bytes in each column. A row also has text, whose length does not depend on maxRowTokens.
const BYTES_PER_TOKEN = 128;
const MIN_ROW_BYTES = 2 ** 26;

/**
 * Returns the maximum size of a text in a cell of a table, in bytes. A list of as many numbers as a row may have tokens
 * fits into it as JSON text.
 */
export function maxTextBytes({ maxRowTokens }: RowLimits): number {
  return Math.min(Math.max(2 ** 20, BYTES_PER_NUMBER * maxRowTokens), constants.MAX_STRING_LENGTH);
}

const BYTES_PER_NUMBER = 32;

/** Returns the details of the error to throw for a text of too many bytes. */
export function textTooLong(limits: RowLimits, bytes: number): DetailsAtPlace {
  return { expected: `a text of at most ${maxTextBytes(limits)} bytes`, received: String(bytes) };
}
