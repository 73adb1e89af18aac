// Tests every prebuilt binary that exists with scripts/prebuild/check.ts. Also tests that this check finds the faults of
// an ordinary build, which needs this machine's C++ library.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { PREBUILDS, type Prebuild, type PrebuildName, prebuildPath } from '../../lib/core/prebuilds.js';
import { faultsOf } from '../../scripts/prebuild/check.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

describe('a prebuilt binary', () => {
  for (const name of Object.keys(PREBUILDS) as PrebuildName[]) {
    const { os, arch, libc }: Prebuild = PREBUILDS[name];
    it(`for ${name} needs only its system and the Node-API`, function () {
      const file = ROOT + prebuildPath(os, arch, libc);
      // After some changes, CI builds only the binary that the other tests of this folder need.
      if (!existsSync(file)) return this.skip();
      assert.deepEqual(faultsOf(file, name), []);
    });
  }

  it('differs from an ordinary build', function () {
    const built = `${ROOT}build/Release/policy_loss.node`;
    if (process.platform !== 'linux' || process.arch !== 'x64' || !existsSync(built)) return this.skip();
    const faults = faultsOf(built, 'linux-x64-glibc').join('\n');
    assert.match(faults, /needs libstdc\+\+\.so/);
    assert.match(faults, /imports _Z\S+ from a C\+\+ library/);
    assert.match(faults, /is not stripped/);
    assert.match(faults, /expected the CUDA code cubin 80, /);
    assert.deepEqual(faultsOf(built, 'linux-arm64-glibc'), [
      'linux-arm64-glibc: expected a file of format elf64-littleaarch64, got elf64-x86-64',
    ]);
  });
});
