// Builds prebuilt binaries into prebuilds/, for all platforms or only for the named ones.
//
//   npm run prebuild [-- linux-x64-glibc darwin-arm64 …]
//   npm run prebuild -- --check        checks the existing binaries without building any
//   npm run prebuild -- --draft linux-arm64-glibc
//
// A draft has CUDA code for only one architecture, which takes a quarter of the time. It is for tests, so it is written
// to build/draft/prebuilds instead.
//
// prebuildify names the files, cmake-js runs the build, and Zig compiles for every platform. On first use, Zig is
// installed into the folder of this script, and the CUDA toolkit into a cache (scripts/cuda/toolkit.sh). check.ts checks
// each binary.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { PREBUILDS, type Prebuild, type PrebuildName, prebuildPath } from '../../lib/base/prebuilds.js';
import { CUDA_CODE, DRAFT_CUDA_CODE, faultsOf } from './check.js';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const DRAFTS = join(ROOT, 'build', 'draft');
// The Node version for which prebuildify builds. The binary also runs on every other Node version that supports the
// same version of the Node-API.
const NODE = '20.20.2';

interface Binary {
  readonly name: PrebuildName;
  readonly isDraft: boolean;
}

function fileOf({ name, isDraft }: Binary): string {
  const { os, arch, libc }: Prebuild = PREBUILDS[name];
  return join(isDraft ? DRAFTS : ROOT, prebuildPath(os, arch, libc));
}

function build(binary: Binary): void {
  const { name, isDraft } = binary;
  const { os, arch, libc, cuda }: Prebuild = PREBUILDS[name];
  // Each platform has a build folder of its own. In the repository's root, prebuildify would take the binary in
  // build/Release, which may be a developer's build.
  const folder = join(ROOT, 'build', isDraft ? 'prebuild-draft' : 'prebuild', name);
  rmSync(fileOf(binary), { force: true });
  mkdirSync(folder, { recursive: true });
  console.log(`\n${name}`);
  execFileSync(
    join(ROOT, 'node_modules/.bin/prebuildify'),
    [
      ...['--napi', '--name', 'policy-loss', '--target', `node@${NODE}`, '--arch', arch, '--platform', os],
      ...['--cwd', folder, '--out', isDraft ? DRAFTS : ROOT, '--node-gyp', join(HERE, 'node-gyp.mjs')],
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
        POLICY_LOSS_CMAKE_OPTIONS: (cuda ? cudaOptions(arch, isDraft) : ['--CDPOLICY_LOSS_CUDA=OFF']).join(
          ' ',
        ),
      },
    },
  );
}

// Returns the options for cmake-js that select the CUDA toolkit. An old toolkit is used on purpose, because a binary of
// a new one needs a new driver.
function cudaOptions(arch: Prebuild['arch'], isDraft: boolean): string[] {
  const toolkit = execFileSync(join(ROOT, 'scripts/cuda/toolkit.sh'), arch === 'arm64' ? ['--arm64'] : [], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  }).trim();
  return [
    '--CDPOLICY_LOSS_CUDA=ON',
    `--CDPOLICY_LOSS_CUDA_ARCHITECTURES=${isDraft ? '80-real' : 'all'}`,
    `--CDCMAKE_CUDA_COMPILER=${toolkit}/bin/nvcc`,
  ];
}

function fail(why: string): never {
  console.error(`prebuild: ${why}`);
  process.exit(1);
}

function readNames(names: readonly string[]): PrebuildName[] {
  for (const name of names)
    if (!(name in PREBUILDS)) fail(`platform: expected ${ALL.join(', ')}, got ${name}`);
  return names as PrebuildName[];
}

const ALL = Object.keys(PREBUILDS) as PrebuildName[];
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { check: { type: 'boolean' }, draft: { type: 'string', multiple: true, default: [] } },
});
const drafts = readNames(values.draft);
const names = positionals.length > 0 || drafts.length > 0 ? readNames(positionals) : ALL;
const wanted: Binary[] = [
  ...names.map((name) => ({ name, isDraft: false })),
  ...drafts.map((name) => ({ name, isDraft: true })),
];

if (!values.check) {
  // There is no lock file. It would list Zig's packages for all systems, and some npm registries lack some of these
  // packages. The versions in package.json are exact instead.
  if (!existsSync(join(HERE, 'node_modules')))
    execFileSync('npm', ['install', '--no-package-lock'], { cwd: HERE, stdio: 'inherit' });
  for (const binary of wanted) build(binary);
}

console.log('');
const faults: string[] = [];
for (const binary of wanted) {
  const file = fileOf(binary);
  const { name, isDraft } = binary;
  if (!existsSync(file)) {
    faults.push(`${name}: ${file} does not exist`);
    continue;
  }
  console.log(`${name}${isDraft ? ', draft' : ''}: ${(statSync(file).size / 1e6).toFixed(2)} MB`);
  faults.push(...faultsOf(file, name, isDraft ? DRAFT_CUDA_CODE : CUDA_CODE));
}
if (faults.length > 0) fail(faults.join('\nprebuild: '));
