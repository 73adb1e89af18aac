// Writes values as JSON. JSON has no numbers for NaN, Infinity and -Infinity, so they become strings, which readers
// cannot mistake for an absent value.

/** Returns "NaN", "Infinity" or "-Infinity" for such a number, and any other value unchanged. */
export function finiteOrText<T>(value: T): T | string {
  return typeof value === 'number' && !Number.isFinite(value) ? String(value) : value;
}

/** Formats a value as JSON on one line, with all digits of each number. */
export function jsonText(value: unknown): string {
  return JSON.stringify(value, (_key, item) => finiteOrText(item));
}
