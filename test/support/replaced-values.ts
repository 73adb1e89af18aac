/** Tests of what reads JSON that anybody may have written. */
import assert from 'node:assert/strict';
import { LossError } from '../../lib/index.js';

const VALUES = [null, -1, 1e300, 0.5, 'x', [], {}, [1], 'AAAAAAAA8H8AAAAAAADwfw=='];

/**
 * Replaces each value in a JSON object by others, and of each array the first element. Whatever replaces a value, `read`
 * must succeed or throw a LossError about the file `a.part`.
 * @returns how often it threw one.
 */
export function countRefused(json: Record<string, unknown>, read: () => void): number {
  let refused = 0;
  const visit = (value: unknown, replace: (value: unknown) => void) => {
    for (const other of VALUES) {
      replace(other);
      try {
        read();
      } catch (error) {
        assert.ok(error instanceof LossError, (error as Error).stack);
        assert.match(error.message, /^a\.part: /);
        refused++;
      }
    }
    replace(value);
    if (value === null || typeof value !== 'object') return;
    const keys = Array.isArray(value) ? [0].slice(0, value.length) : Object.keys(value);
    for (const key of keys) {
      const inner = value as Record<string | number, unknown>;
      visit(inner[key], (other) => {
        inner[key] = other;
      });
    }
  };
  for (const [key, value] of Object.entries(json))
    visit(value, (other) => {
      json[key] = other;
    });
  return refused;
}
