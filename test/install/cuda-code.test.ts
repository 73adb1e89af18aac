// Tests the CUDA code of the prebuilt binaries that exist. `npm run prebuild` has already checked each with
// scripts/prebuild/check.ts.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import {
  LEAST_DRIVER,
  PREBUILDS,
  type Prebuild,
  type PrebuildName,
  prebuildPath,
} from '../../lib/base/prebuilds.js';
import type { CudaDevice, NoCudaDevice } from '../../lib/index.js';
import { cudaCodeOf, faultsOf } from '../../scripts/prebuild/check.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const BINARY = ROOT + prebuildPath('linux', 'x64', 'glibc');
// The number of files nvcc compiles: the variable `kernels` of native/cuda/CMakeLists.txt.
const SOURCES = /set\(kernels (.*)\)/
  .exec(readFileSync(join(ROOT, 'native/cuda/CMakeLists.txt'), 'utf8'))![1]!
  .split(' ').length;
// Fetched by `npm run prebuild`.
const CUOBJDUMP = join(
  process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'),
  'policy-loss/cuda-12.4/bin/cuobjdump',
);
// The kernels that read their tokens through a feed (native/cuda/feed.cuh), those that interpret user-defined losses, and
// those that compute from logits or hidden states.
const WITHOUT_LOCAL_MEMORY =
  /4cuda\d+(token|row|kl|value_sums|distill|program_(rows|pieces|join|tokens)|logits_(sums|rows|gradient)|product)_kernel/;
const cuobjdump = (file: string, ...options: string[]) =>
  execFileSync(CUOBJDUMP, [...options, file], { encoding: 'utf8', maxBuffer: 2 ** 28 });

describe('the CUDA code of a prebuilt binary', () => {
  for (const [name, { os, arch, libc, cuda }] of Object.entries(PREBUILDS) as [PrebuildName, Prebuild][]) {
    if (!cuda) continue;
    const file = ROOT + prebuildPath(os, arch, libc);
    it(`for ${name} is for every architecture, in each source file`, function () {
      if (!existsSync(file)) return this.skip();
      assert.equal(cudaCodeOf(file).length, SOURCES);
      assert.deepEqual(faultsOf(file, name), []);
    });

    // The same limits as in test/native/check-spills.sh, for the architectures of prebuilt binaries.
    it(`for ${name} spills no registers, and declares little enough shared memory`, function () {
      if (!existsSync(file) || !existsSync(CUOBJDUMP)) return this.skip();
      const perArchitecture = new Map<string, number>();
      let architecture = '';
      for (const [, arch, name, stack, shared, local] of cuobjdump(file, '-res-usage').matchAll(
        /^arch = (\S+)|Function (\S+):\s+REG:\d+ STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)/gm,
      )) {
        if (arch) architecture = arch;
        if (!name || !WITHOUT_LOCAL_MEMORY.test(name)) continue;
        perArchitecture.set(architecture, (perArchitecture.get(architecture) ?? 0) + 1);
        // From capability 9.0 on, the number includes the memory that the driver reserves for each block.
        const declared = Number(shared) - (architecture === 'sm_90' ? 1024 : 0);
        assert.deepEqual([stack, local], ['0', '0'], `${architecture}: ${name}: expected no local memory`);
        assert.ok(declared <= 8704, `${architecture}: ${name}: expected at most 8704 bytes, got ${declared}`);
      }
      assert.deepEqual([...perArchitecture.keys()].sort(), ['sm_80', 'sm_86', 'sm_89', 'sm_90']);
      assert.ok([...perArchitecture.values()].every((kernels) => kernels > 35));
    });
  }

  it(`needs the driver ${LEAST_DRIVER}, and the binary says so`, function () {
    if (process.platform !== 'linux' || process.arch !== 'x64') return this.skip();
    const program = `
      const { devices } = await import(${JSON.stringify(pathToFileURL(join(ROOT, 'lib/index.ts')).href)});
      console.log(JSON.stringify(devices()[1]));
    `;
    const output = execFileSync(
      process.execPath,
      ['--import', 'tsx', '--input-type=module', '--eval', program],
      { cwd: ROOT, encoding: 'utf8', env: { ...process.env, POLICY_LOSS_NATIVE: BINARY } },
    );
    const device = JSON.parse(output) as CudaDevice | NoCudaDevice;
    assert.equal((device.available ? device : device.reason).requiredDriver, LEAST_DRIVER);
  });
});
