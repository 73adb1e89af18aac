/**
 * Tests a process in which only worker threads load the native module, and in which they are terminated during calls.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const PROCESS = fileURLToPath(new URL('./support/workers-only.mjs', import.meta.url));
const NATIVE =
  process.env.POLICY_LOSS_NATIVE ??
  fileURLToPath(new URL('../build/Release/policy_loss.node', import.meta.url));

describe('worker threads', () => {
  it('can be terminated during calls without an effect on the process', async function () {
    // Only Linux lists the loaded modules in a file.
    if (process.platform !== 'linux') this.skip();
    const { stdout } = await promisify(execFile)(process.execPath, [PROCESS, '30'], {
      env: { ...process.env, POLICY_LOSS_NATIVE: NATIVE },
    });
    // The module stays loaded, because the threads of the pool still run its code.
    assert.equal(stdout.trim(), 'loaded');
  });
});
