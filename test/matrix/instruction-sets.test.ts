/**
 * Tests that all instruction sets with fused multiply-adds give the same bits: AVX2 and AVX-512 on this machine. Each
 * needs its own process, because the native module chooses the instruction set when it is loaded.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const DIGEST = fileURLToPath(new URL('./digest.ts', import.meta.url));

/** Returns the digests that an instruction set gives, or undefined if this machine lacks it. */
async function digestsOn(isa: string): Promise<Record<string, string> | undefined> {
  const env = { ...process.env, POLICY_LOSS_ISA: isa };
  try {
    const { stdout } = await promisify(execFile)(process.execPath, ['--import', 'tsx', DIGEST], { env });
    return JSON.parse(stdout);
  } catch (error) {
    if (/POLICY_LOSS_ISA names an instruction set/.test(String(error))) return undefined;
    throw error;
  }
}

describe('instruction sets with fused multiply-adds', () => {
  it('give the same bits', async function () {
    const [avx2, avx512] = await Promise.all([digestsOn('avx2'), digestsOn('avx512')]);
    if (!avx2 || !avx512) return this.skip();
    assert.ok(Object.keys(avx2).length > 40);
    assert.deepEqual(avx512, avx2);
  });
});
