/**
 * Tests that worker threads can be terminated during calls, in processes in which only worker threads load the native
 * module.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const NATIVE =
  process.env.POLICY_LOSS_NATIVE ??
  fileURLToPath(new URL('../../build/Release/policy_loss.node', import.meta.url));

/** Runs a program of test/support, and returns what it prints. */
async function printed(program: string, ...given: string[]): Promise<string> {
  const path = fileURLToPath(new URL(`../support/${program}`, import.meta.url));
  const env = { ...process.env, POLICY_LOSS_NATIVE: NATIVE };
  const { stdout } = await promisify(execFile)(process.execPath, [path, ...given], { env, timeout: 50_000 });
  return stdout.trim();
}

describe('worker threads', () => {
  it('can be terminated during calls without an effect on the process', async function () {
    // Only Linux has a file that lists the modules that a process has loaded.
    if (process.platform !== 'linux') this.skip();
    // The module must stay loaded, because the threads of the engine's pool still run its code.
    assert.equal(await printed('workers-only.mjs', '30'), 'loaded');
  });

  it('compute nothing for a call that they can no longer promise', async () => {
    assert.equal(await printed('stopped-worker.mjs'), 'not computed');
  });
});
