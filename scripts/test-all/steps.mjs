// Defines the steps of `npm run test:all`, and chooses the steps that a change needs.

const DRAFT = '--draft=linux-arm64-glibc';

/**
 * A step runs one npm script. The longest steps come first, so that only short ones are left near the end.
 *
 * - `script`, `args`: the script's name and its arguments.
 * - `covers`: path prefixes. A change to a path with one of these prefixes makes the step necessary.
 * - `prebuilds`: the prebuilt binaries that the step reads, as in ALWAYS_BUILT. The step `prebuild` builds them first.
 * - `packages`: for each program or file that the step needs, the Debian packages that install it.
 * - `program`: a program that the step needs. If it is not installed, the step is left out.
 */
export const STEPS = [
  { script: 'test', covers: [''], packages: { chromium: ['chromium'], 'redis-server': ['redis-server'] } },
  {
    script: 'prebuild',
    covers: ['scripts/cuda/', 'scripts/prebuild/'],
    packages: { 'llvm-readobj': ['llvm'], 'aarch64-linux-gnu-g++': ['g++-aarch64-linux-gnu'] },
  },
  {
    script: 'test:arm64',
    covers: [
      'scripts/arm64/',
      'scripts/cuda/',
      'scripts/prebuild/',
      'test/golden/',
      'test/reference/',
      'test/support/',
    ],
    prebuilds: [DRAFT],
    packages: {
      'qemu-aarch64': ['qemu-user'],
      '/usr/aarch64-linux-gnu/lib/libc.so.6': ['libc6-arm64-cross'],
      '/usr/aarch64-linux-gnu/lib/libstdc++.so.6': ['libstdc++6-arm64-cross'],
    },
  },
  {
    script: 'test:install',
    covers: ['lib/', 'scripts/cuda/', 'scripts/prebuild/', 'test/install/'],
    prebuilds: ['linux-x64-glibc'],
  },
  { script: 'test:interleaved', covers: ['test/device/', 'test/native/'] },
  { script: 'test:asan', covers: ['scripts/sanitize/', 'scripts/soak/', 'test/native/'], packages: clang() },
  {
    script: 'test:isa',
    covers: ['test/every-isa.mjs', 'test/golden/', 'test/native/', 'test/reference/', 'test/support/'],
  },
  {
    script: 'test:walk-through',
    covers: [
      'CONTRIBUTING.md',
      'lib/core/',
      'lib/functions/',
      'test/reference/',
      'test/support/',
      'test/walk-through/',
    ],
  },
  { script: 'test:tsan', covers: ['scripts/sanitize/', 'scripts/soak/', 'test/native/'], packages: clang() },
  { script: 'test:spills', covers: ['test/native/'], program: 'nvcc' },
  { script: 'test:instructions', covers: ['scripts/cuda/'] },
  { script: 'fuzz', args: ['60', 'engine'], covers: ['test/fuzz/'], packages: clang() },
  { script: 'fuzz', args: ['60', 'boundary'], covers: ['lib/', 'test/fuzz-boundary/'] },
  { script: 'fuzz:files', args: ['--minutes', '1'], covers: ['lib/', 'test/fuzz-files/'] },
  { script: 'test:life', covers: ['lib/', 'test/life/', 'test/fuzz-boundary/'] },
  {
    script: 'test:examples',
    covers: ['examples/models/', 'lib/core/', 'lib/logits/', 'lib/tfjs/', 'test/examples/'],
  },
  { script: 'docs', covers: ['lib/', 'scripts/docs/'] },
];

/**
 * Path prefixes. If a path with one of them has changed, every step is needed, because the change can affect every
 * binary, the package's contents or the choice of steps.
 */
export const NEED_EVERYTHING = [
  'native/',
  'CMakeLists.txt',
  'binding.d.ts',
  'package.json',
  'package-lock.json',
  'tsconfig.json',
  'tsconfig.build.json',
  'scripts/test-all/',
  '.ci/',
];

/** Path prefixes. If a path with one of them has changed, the step `prebuild` builds the binaries of all platforms. */
export const NEED_ALL_BINARIES = ['scripts/cuda/', 'scripts/prebuild/toolchains/'];

/**
 * The binaries that the step `prebuild` builds after other changes, with the name of a draft after `--draft=`. Each
 * operating system, C library and processor is among them. Linux on x64 with musl has the code of its glibc binary and
 * the library of its arm64 binary. The CUDA code for arm64 is that for x64, and takes four times as long to compile as
 * all other code for arm64, so a draft with a part of it must do.
 */
export const ALWAYS_BUILT = ['linux-x64-glibc', 'linux-arm64-musl', 'darwin-arm64', 'win32-x64', DRAFT];

function clang() {
  return { 'clang++-19': ['clang-19', 'libclang-rt-19-dev'] };
}

/**
 * Returns the steps that a change needs, in the order of STEPS. If these steps read prebuilt binaries, the step
 * `prebuild` is among them, and its arguments name the binaries to build.
 *
 * @param {readonly string[] | undefined} changed paths from the repository's root; if undefined, every step is returned
 */
export function stepsFor(changed) {
  const touches = (prefixes) => changed.some((path) => prefixes.some((prefix) => path.startsWith(prefix)));
  const needsAll = changed === undefined || touches(NEED_EVERYTHING);
  const needed = needsAll
    ? STEPS
    : STEPS.filter(({ script, covers }) => script === 'test' || touches(covers));
  const prebuild = STEPS.find(({ script }) => script === 'prebuild');
  if (changed === undefined || touches(NEED_ALL_BINARIES)) return needed;
  const binaries = [
    ...(needed.includes(prebuild) ? ALWAYS_BUILT : []),
    ...needed.flatMap((step) => step.prebuilds ?? []),
  ];
  if (binaries.length === 0) return needed;
  const building = { ...prebuild, args: [...new Set(binaries)] };
  return STEPS.flatMap((step) => (step === prebuild ? [building] : needed.includes(step) ? [step] : []));
}
