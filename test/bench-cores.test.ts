/** Tests the measurement of two busy cores, whose calls are text for a worker and so escape the type checker. */
import assert from 'node:assert/strict';
import { timeCores } from '../bench/lib/cores.js';

describe('the measurement of two busy cores', () => {
  it('computes calls on both', async () => {
    assert.ok((await timeCores(2)) > 0);
  });
});
