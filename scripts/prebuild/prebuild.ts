// Builds prebuilt binaries into prebuilds/, for all platforms or only for the named ones.
//
//   npm run prebuild [-- linux-x64-glibc darwin-arm64 …]
//   npm run prebuild -- --check        checks the existing binaries without building any
//
// prebuildify names the files, cmake-js runs the build, and Zig compiles for every platform. On first use, Zig is
// installed into the folder of this script, and the CUDA toolkit into a cache (scripts/cuda/toolkit.sh). check.ts checks
// each binary.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { PREBUILDS, type Prebuild, type PrebuildName, prebuildPath } from '../../lib/core/prebuilds.js';
import { faultsOf } from './check.js';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
// The Node version for which prebuildify builds. The binary also runs on every other Node version that supports the
// same version of the Node-API.
const NODE = '20.20.2';

function fileOf(name: PrebuildName): string {
  const { os, arch, libc }: Prebuild = PREBUILDS[name];
  return join(ROOT, prebuildPath(os, arch, libc));
}

function build(name: PrebuildName): void {
  const { os, arch, libc, cuda }: Prebuild = PREBUILDS[name];
  // Each platform has a build folder of its own. In the repository's root, prebuildify would take the binary in
  // build/Release, which may be a developer's build.
  const folder = join(ROOT, 'build', 'prebuild', name);
  rmSync(fileOf(name), { force: true });
  mkdirSync(folder, { recursive: true });
  console.log(`\n${name}`);
  execFileSync(
    join(ROOT, 'node_modules/.bin/prebuildify'),
    [
      ...['--napi', '--name', 'policy-loss', '--target', `node@${NODE}`, '--arch', arch, '--platform', os],
      ...['--cwd', folder, '--out', ROOT, '--node-gyp', join(HERE, 'node-gyp.mjs')],
      // prebuildify's option --strip is not used, because it supports only this machine's format. The linker leaves out
      // the symbols instead.
      ...(libc ? ['--tag-libc', libc] : []),
    ],
    {
      stdio: 'inherit',
      env: {
        ...process.env,
        PATH: `${join(ROOT, 'node_modules/.bin')}:${process.env.PATH}`,
        POLICY_LOSS_SOURCES: ROOT,
        POLICY_LOSS_TOOLCHAIN: join(HERE, 'toolchains', `${name}.cmake`),
        POLICY_LOSS_CMAKE_OPTIONS: (cuda ? cudaOptions(arch) : ['--CDPOLICY_LOSS_CUDA=OFF']).join(' '),
      },
    },
  );
}

// Returns the options for cmake-js that select the CUDA toolkit. An old toolkit is used on purpose, because a binary of
// a new one needs a new driver.
function cudaOptions(arch: Prebuild['arch']): string[] {
  const toolkit = execFileSync(join(ROOT, 'scripts/cuda/toolkit.sh'), arch === 'arm64' ? ['--arm64'] : [], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  }).trim();
  return [
    '--CDPOLICY_LOSS_CUDA=ON',
    '--CDPOLICY_LOSS_CUDA_ARCHITECTURES=all',
    `--CDCMAKE_CUDA_COMPILER=${toolkit}/bin/nvcc`,
  ];
}

function fail(why: string): never {
  console.error(`prebuild: ${why}`);
  process.exit(1);
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { check: { type: 'boolean' } },
});
const all = Object.keys(PREBUILDS) as PrebuildName[];
for (const name of positionals)
  if (!(name in PREBUILDS)) fail(`platform: expected ${all.join(', ')}, got ${name}`);
const wanted = positionals.length > 0 ? (positionals as PrebuildName[]) : all;

if (!values.check) {
  // There is no lock file. It would list Zig's packages for all systems, and some npm registries lack some of these
  // packages. The versions in package.json are exact instead.
  if (!existsSync(join(HERE, 'node_modules')))
    execFileSync('npm', ['install', '--no-package-lock'], { cwd: HERE, stdio: 'inherit' });
  for (const name of wanted) build(name);
}

console.log('');
const faults: string[] = [];
for (const name of wanted) {
  const file = fileOf(name);
  if (!existsSync(file)) {
    faults.push(`${name}: ${file} does not exist`);
    continue;
  }
  console.log(`${name}: ${(statSync(file).size / 1e6).toFixed(2)} MB`);
  faults.push(...faultsOf(file, name));
}
if (faults.length > 0) fail(faults.join('\nprebuild: '));
