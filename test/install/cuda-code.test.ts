// Tests what scripts/prebuild/check.ts finds about the CUDA code of the prebuilt binaries. Copies of the one for Linux x64
// with one changed byte show that each check can fail.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import {
  LEAST_DRIVER,
  PREBUILDS,
  type Prebuild,
  type PrebuildName,
  prebuildPath,
} from '../../lib/core/prebuilds.js';
import type { CudaDevice, NoCudaDevice } from '../../lib/index.js';
import { cudaCodeOf, cudaSectionOf, faultsOf } from '../../scripts/prebuild/check.js';

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
// those that compute from logits.
const WITHOUT_LOCAL_MEMORY =
  /4cuda\d+(token|row|kl|value_sums|distill|program_(rows|pieces|join|tokens)|logits_(sums|rows|gradient))_kernel/;
const cuobjdump = (file: string, ...options: string[]) =>
  execFileSync(CUOBJDUMP, [...options, file], { encoding: 'utf8', maxBuffer: 2 ** 28 });

describe('the CUDA code of a prebuilt binary', () => {
  let place: string;

  beforeEach(() => {
    place = mkdtempSync(join(tmpdir(), 'policy-loss-cuda-code-'));
  });
  afterEach(() => rmSync(place, { recursive: true, force: true }));

  /** Returns the faults of a copy of the binary whose section with CUDA code was changed. */
  function faultsAfter(change: (section: Buffer) => void): string {
    const { offset, size } = cudaSectionOf(BINARY);
    const bytes = readFileSync(BINARY);
    change(bytes.subarray(offset, offset + size));
    const copy = join(place, 'policy-loss.glibc.node');
    writeFileSync(copy, bytes);
    return faultsOf(copy, 'linux-x64-glibc').join('\n');
  }

  for (const [name, { os, arch, libc, cuda }] of Object.entries(PREBUILDS) as [PrebuildName, Prebuild][]) {
    if (!cuda) continue;
    const file = ROOT + prebuildPath(os, arch, libc);
    it(`for ${name} is for every architecture, in each source file`, function () {
      if (!existsSync(file)) return this.skip();
      const found = cudaCodeOf(file);
      assert.equal(found.length, SOURCES);
      for (const codes of found)
        assert.deepEqual(codes.map(({ kind, capability }) => `${kind} ${capability}`).sort(), [
          'cubin 80',
          'cubin 86',
          'cubin 89',
          'cubin 90',
          'ptx 90',
        ]);
      assert.deepEqual(faultsOf(file, name), []);
    });

    it(`for ${name} is what cuobjdump finds`, function () {
      if (!existsSync(file) || !existsSync(CUOBJDUMP)) return this.skip();
      const listed = [...cuobjdump(file, '-lelf', '-lptx').matchAll(/\.sm_(\d+)\.(cubin|ptx)$/gm)].map(
        ([, capability, kind]) => `${kind} ${capability}`,
      );
      const read = cudaCodeOf(file).flatMap((codes) =>
        codes.map(({ kind, capability }) => `${kind} ${capability}`),
      );
      assert.deepEqual(listed.sort(), read.sort());
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

  it('may not be for other architectures', () => {
    // The first entry follows the header of 16 bytes. Its architecture is at offset 28.
    const faults = faultsAfter((section) => section.writeUInt32LE(75, 16 + 28));
    assert.match(
      faults,
      /expected the CUDA code cubin 80, .* ptx 90, got cubin 75, cubin 86, cubin 89, cubin 90, ptx 90/,
    );
  });

  it('may not need a newer ELF ABI', () => {
    // The ABI is byte 8 of the cubin, which begins one byte after the header of 72 bytes.
    const faults = faultsAfter((section) => {
      const abi = 16 + 72 + 1 + 8;
      assert.equal(section[abi], 7);
      section[abi] = 8;
    });
    assert.match(faults, /cubins of ELF ABI 8, expected at most 7, which the driver 525 loads/);
  });

  it('may not need a newer compiler in the driver', () => {
    const faults = faultsAfter((section) => {
      for (let at = 16; ; at += section.readUInt32LE(at + 4) + Number(section.readBigUInt64LE(at + 8)))
        if (section.readUInt16LE(at) === 1) return section.writeUInt16LE(9, at + 26);
    });
    assert.match(faults, /PTX 9\.4, expected at most 8\.7/);
  });

  it('may not be absent', () => {
    const bytes = readFileSync(BINARY);
    const name = bytes.lastIndexOf('.nv_fatbin\0');
    const copy = join(place, 'policy-loss.glibc.node');
    writeFileSync(copy, bytes.fill('x', name, name + 1));
    assert.match(faultsOf(copy, 'linux-x64-glibc').join('\n'), /expected the CUDA code .*, got none/);
  });

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
