/** Tests the measurement of memory that other tests rely on. */
import assert from 'node:assert/strict';
import { runAlone } from './support/alone.js';

describe('the memory of a process of its own', () => {
  it('includes what the process takes, and not what the test takes', () => {
    const held = Buffer.alloc(400e6, 1);
    const little = runAlone<string>('return given[0];', ['word']);
    assert.equal(little.result, 'word');
    assert.ok(little.memory < 200e6, `${little.memory} bytes beside ${held.length}`);
    const more = runAlone<number>('return Buffer.alloc(300e6, 1).length;', []);
    assert.ok(more.memory > 300e6, `${more.memory} bytes`);
  });
});
