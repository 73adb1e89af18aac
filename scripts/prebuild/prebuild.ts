// Builds the prebuilt binaries into prebuilds/: of all platforms, or of those that are named.
//
//   npm run prebuild [-- linux-x64-glibc darwin-arm64 …]
//   npm run prebuild -- --check        looks at those that are there, and builds none
//
// prebuildify sees to their names and places, cmake-js to the build, and Zig, which is installed here on first use,
// compiles for all of them. Each is checked; see check.ts.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { PREBUILDS, type Prebuild, type PrebuildName, prebuildPath } from '../../lib/core/prebuilds.js';
import { faultsOf } from './check.js';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
// Of the headers that prebuildify asks for; the addon runs on any Node that has its version of the Node-API.
const NODE = '20.20.2';

function fileOf(name: PrebuildName): string {
  const { os, arch, libc }: Prebuild = PREBUILDS[name];
  return join(ROOT, prebuildPath(os, arch, libc));
}

function build(name: PrebuildName): void {
  const { os, arch, libc, cuda }: Prebuild = PREBUILDS[name];
  // A folder for each, as prebuildify takes what lies in build/Release, where a developer's own build is.
  const folder = join(ROOT, 'build', 'prebuild', name);
  rmSync(fileOf(name), { force: true });
  mkdirSync(folder, { recursive: true });
  console.log(`\n${name}`);
  execFileSync(
    join(ROOT, 'node_modules/.bin/prebuildify'),
    [
      ...['--napi', '--name', 'policy-loss', '--target', `node@${NODE}`, '--arch', arch, '--platform', os],
      ...['--cwd', folder, '--out', ROOT, '--node-gyp', join(HERE, 'node-gyp.mjs')],
      // prebuildify's own strip knows the format of the machine that builds alone; the linker has left out symbols.
      ...(libc ? ['--tag-libc', libc] : []),
    ],
    {
      stdio: 'inherit',
      env: {
        ...process.env,
        PATH: `${join(ROOT, 'node_modules/.bin')}:${process.env.PATH}`,
        POLICY_LOSS_SOURCES: ROOT,
        POLICY_LOSS_TOOLCHAIN: join(HERE, 'toolchains', `${name}.cmake`),
        POLICY_LOSS_CMAKE_OPTIONS: `--CDPOLICY_LOSS_CUDA=${cuda ? 'ON' : 'OFF'} --CDPOLICY_LOSS_CUDA_ARCHITECTURES=all`,
      },
    },
  );
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
  if (!(name in PREBUILDS)) fail(`there is no platform ${name}: expected some of ${all.join(', ')}`);
const wanted = positionals.length > 0 ? (positionals as PrebuildName[]) : all;

if (!values.check) {
  // Not by a lock file, which would have to hold the compiler for all other machines too, and not every registry has
  // each of them; versions are exact.
  if (!existsSync(join(HERE, 'node_modules')))
    execFileSync('npm', ['install', '--no-package-lock'], { cwd: HERE, stdio: 'inherit' });
  for (const name of wanted) build(name);
}

console.log('');
const faults: string[] = [];
for (const name of wanted) {
  const file = fileOf(name);
  if (!existsSync(file)) {
    faults.push(`${name}: ${file} is not there`);
    continue;
  }
  console.log(`${name}: ${(statSync(file).size / 1e6).toFixed(2)} MB`);
  faults.push(...faultsOf(file, name));
}
if (faults.length > 0) fail(faults.join('\nprebuild: '));
