/** Helpers that check the error with which a call throws or rejects. */
import assert from 'node:assert/strict';
import { LossError, type LossErrorCode } from '../../lib/index.js';

/**
 * Returns a check for assert.throws() and assert.rejects(). It passes if the error is a LossError with this code, or
 * with one of these codes, and its message matches every pattern.
 */
export function isLossError(code: LossErrorCode | readonly LossErrorCode[], ...patterns: RegExp[]) {
  return (error: unknown): true => {
    assert.ok(error instanceof LossError, `expected a LossError, got ${error}`);
    assert.ok([code].flat().includes(error.code), `${error.code}: ${error.message}`);
    for (const pattern of patterns) assert.match(error.message, pattern);
    return true;
  };
}
