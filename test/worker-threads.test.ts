/** The native module where only worker threads load it and where they are terminated in the midst of calls. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const PROCESS = fileURLToPath(new URL('./support/workers-only.mjs', import.meta.url));
const NATIVE =
  process.env.POLICY_LOSS_NATIVE ??
  fileURLToPath(new URL('../build/Release/policy_loss.node', import.meta.url));

describe('worker threads', () => {
  it('end in the midst of calls, and the process goes on', async function () {
    // Elsewhere there is no file that lists what is loaded.
    if (process.platform !== 'linux') this.skip();
    const { stdout } = await promisify(execFile)(process.execPath, [PROCESS, '30'], {
      env: { ...process.env, POLICY_LOSS_NATIVE: NATIVE },
    });
    // The pool's threads are still there, and so must be what they run.
    assert.equal(stdout.trim(), 'loaded');
  });
});
