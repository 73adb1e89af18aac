/**
 * Tests that worker threads can be terminated during calls, in a process in which only worker threads load the native
 * module.
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
    // Only Linux has a file that lists the modules that a process has loaded.
    if (process.platform !== 'linux') this.skip();
    const { stdout } = await promisify(execFile)(process.execPath, [PROCESS, '30'], {
      env: { ...process.env, POLICY_LOSS_NATIVE: NATIVE },
    });
    // The module must stay loaded, because the threads of the engine's pool still run its code.
    assert.equal(stdout.trim(), 'loaded');
  });
});
