// Runs every test, including the long ones: npm run test:all [-- --changed] [--install]
//
// --changed   leaves out steps that the latest changes cannot break
// --install   installs the Debian packages that a step needs and this machine lacks
//
// `npm test` runs first and alone. The other steps then run two at a time, because most of them keep one core busy.
// Their output is printed when they end. What mocha says of failed tests is printed again at the end, or the last lines
// of a step that fails without it. The final line counts the tests of all suites.
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const SHOWN_LINES = 120;
const HOURS = 24;

const { values: flags } = parseArgs({
  options: { changed: { type: 'boolean' }, install: { type: 'boolean' } },
});

const changed = flags.changed ? changedPaths() : undefined;
const touched = (pattern) => !changed || changed.some((path) => pattern.test(path));
// A change to texts or benchmarks needs only `npm test`. One to native code, the build or the package needs every step.
const code = touched(/^(?!(bench|docs)\/|[^/]*\.md$)/);
const native = touched(
  /^(native|scripts|test\/(native|device|fuzz|golden)|\.ci)\/|^(CMakeLists\.txt|binding\.d\.ts|package.*\.json|tsconfig.*\.json)$/,
);
const guide = touched(/^CONTRIBUTING\.md$/);

// With CUDA code for every GPU, the binary for arm64 takes four times as long to compile as without any, so its tests
// take a draft with a part of it. Linux on x64 with musl has the code of its glibc binary and the library of its arm64
// binary.
const BINARIES = 'linux-x64-glibc linux-arm64-musl darwin-arm64 win32-x64 --draft=linux-arm64-glibc';
const CLANG = { ready: 'scripts/sanitize/has-clang.sh', packages: 'clang-19 libclang-rt-19-dev' };
const LLVM = {
  ready: 'command -v llvm-readobj && command -v aarch64-linux-gnu-g++',
  packages: 'llvm g++-aarch64-linux-gnu',
};
const QEMU = {
  ready:
    'command -v qemu-aarch64 && ls /usr/aarch64-linux-gnu/lib/libc.so.6 /usr/aarch64-linux-gnu/lib/libstdc++.so.6',
  packages: 'qemu-user libc6-arm64-cross libstdc++6-arm64-cross',
};
const WINE = { ready: 'ls /usr/lib/wine/wine64', packages: 'wine64' };

/**
 * A step is an npm script with its arguments. It runs if `on` is true. `ready` is a shell command that succeeds if the
 * machine has what the step needs, and `packages` are the Debian packages that bring it. The steps that read prebuilt
 * binaries come last, and wait for them. A step whose threads `takeTurns` goes before the others: it would take four times as
 * long if each turn waited for a core.
 */
const STEPS = [
  {
    run: 'test',
    on: true,
    ready: 'command -v chromium',
    packages: 'chromium',
  },
  { run: `prebuild ${native ? BINARIES : 'linux-x64-glibc'}`, on: code, ...LLVM },
  { run: 'test:kernels', on: native, takeTurns: true },
  { run: 'test:asan', on: native, ...CLANG },
  { run: 'test:isa', on: native },
  { run: 'test:walk-through:kernel', on: native || guide },
  { run: 'test:tsan', on: native, ...CLANG },
  { run: 'test:spills', on: native && succeeds('command -v nvcc') },
  { run: 'test:instructions', on: native },
  { run: 'fuzz 60 engine', on: native, ...CLANG },
  { run: 'fuzz 60 boundary', on: code },
  { run: 'fuzz:files --minutes 1', on: code },
  { run: 'test:life', on: code },
  { run: 'test:long', on: code || guide, ready: 'command -v redis-server', packages: 'redis-server' },
  { run: 'test:examples', on: code },
  { run: 'docs', on: code },
  { run: 'test:runtimes', on: code },
  { run: 'test:arm64', on: native, ...QEMU, readsPrebuilds: true },
  { run: 'test:windows', on: native, ...WINE, readsPrebuilds: true },
  { run: 'test:install', on: code, readsPrebuilds: true },
].filter(({ on }) => on);

/**
 * Returns the paths that differ between a base commit and the working folder, including untracked files. The base is the
 * newest ancestor of HEAD that is at least a day older than HEAD, or the commit in the environment variable CI_BASE.
 * Returns undefined, which stands for any path, if there is no such commit or no difference.
 */
function changedPaths() {
  const git = (...args) =>
    execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  try {
    const yesterday = Number(git('log', '-1', '--format=%ct')) - HOURS * 3600;
    const base = process.env.CI_BASE || git('log', '-1', '--format=%H', `--until=${yesterday}`);
    const tracked = git('diff', '--name-only', '--no-renames', base, '--');
    const paths = `${tracked}\n${git('ls-files', '--others', '--exclude-standard')}`
      .split('\n')
      .filter(Boolean);
    return base && paths.length > 0 ? paths : undefined;
  } catch {
    return undefined;
  }
}

function succeeds(command) {
  return spawnSync('sh', ['-c', command], { cwd: ROOT, stdio: 'ignore' }).status === 0;
}

function install() {
  const missing = STEPS.filter(({ ready }) => ready && !succeeds(ready)).map(({ packages }) => packages);
  if (missing.length === 0) return;
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
  const command = `apt-get update -qq && apt-get install -y -qq ${missing.join(' ')}`;
  execFileSync('sh', ['-c', command], { env, stdio: ['ignore', 'ignore', 'inherit'] });
}

const counts = { passing: 0, failing: 0, pending: 0 };
const failures = [];

/**
 * Runs one step and adds its tests to `counts`. A step that fails without reporting a failed test counts as one failed
 * test. If `live`, prints the step's output at once.
 */
async function run({ run: step, takeTurns }, live) {
  const begin = performance.now();
  const [script, ...args] = step.split(' ');
  const child = spawn('nice', ['-n', takeTurns ? '0' : '10', 'npm', 'run', script, '--', ...args], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text) => {
      output += text;
      if (live) process.stdout.write(text);
    });
  const status = await new Promise((resolve) => {
    child.on('error', () => resolve(1)).on('close', resolve);
  });
  if (!live) process.stdout.write(output);
  const seconds = Math.round((performance.now() - begin) / 1000);
  console.log(`== ${step}: ${status === 0 ? 'passed' : 'failed'} in ${seconds} s ==`);
  const before = counts.failing;
  for (const [, count, kind] of output.matchAll(/^ *(\d+) (passing|failing|pending)\b/gm))
    counts[kind] += Number(count);
  if (status === 0) return;
  if (counts.failing === before) counts.failing++;
  failures.push(`== ${step} failed: ==`, ...failureLines(output.trimEnd().split('\n')));
}

/** Returns the lines from each `N failing` on, after which mocha describes the failed tests, or else the last lines. */
function failureLines(lines) {
  const begins = lines.flatMap((line, index) => (/^ *\d+ failing\b/.test(line) ? [index] : []));
  return begins.length > 0
    ? begins.flatMap((begin) => lines.slice(begin, begin + SHOWN_LINES))
    : lines.slice(-SHOWN_LINES);
}

console.log(`Steps: ${STEPS.map(({ run: name }) => name).join(', ')}`);
if (flags.install) install();
const [first, ...waiting] = STEPS;
await run(first, true);
let prebuilds;
async function runWaiting() {
  for (let step = waiting.shift(); step; step = waiting.shift()) {
    if (step.readsPrebuilds) await prebuilds;
    const ended = run(step, false);
    if (step.run.startsWith('prebuild')) prebuilds = ended;
    await ended;
  }
}
await Promise.all([runWaiting(), runWaiting()]);

console.log(failures.join('\n'));
console.log(`${counts.passing} passed, ${counts.failing} failed, ${counts.pending} skipped`);
process.exitCode = failures.length > 0 ? 1 : 0;
