// Parses the numbers that options take.
import { InvalidArgumentError } from 'commander';

/** Parses a number of things, of which there is at least one. */
export function parseCount(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1)
    throw new InvalidArgumentError('Expected a whole number of at least 1.');
  return value;
}

/** Parses a time in seconds. */
export function parseSeconds(text: string): number {
  const value = Number(text);
  if (!(value > 0 && value <= 86_400))
    throw new InvalidArgumentError('Expected a number of seconds, such as 30.');
  return value;
}
