// Runs every test, including the long ones: npm run test:all [-- --changed] [--install]
//
// --changed   runs only the steps that the latest changes need; see changes.mjs
// --install   installs the Debian packages that these steps need and this machine lacks
//
// `npm test` runs first and alone. The other steps then run two at a time, because most of them keep one core busy.
// Their output is printed when they end. What mocha says of failed tests is printed again at the end, or the last lines
// of a step that fails without it. The final line counts the tests of all suites.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { changedPaths } from './changes.mjs';
import { stepsFor } from './steps.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const AT_ONCE = 2;
const SHOWN_LINES = 120;

const { values: flags } = parseArgs({
  options: { changed: { type: 'boolean' }, install: { type: 'boolean' } },
});
const found = (name) =>
  name.startsWith('/')
    ? existsSync(name)
    : process.env.PATH.split(delimiter).some((folder) => existsSync(join(folder, name)));

const steps = stepsFor(flags.changed ? changedPaths(ROOT) : undefined).filter(
  ({ program }) => program === undefined || found(program),
);
const titleOf = ({ script, args = [] }) => [script, ...args].join(' ');
console.log(`Steps: ${steps.map(titleOf).join(', ')}`);
if (flags.install) install(steps);

const counts = { passing: 0, failing: 0, pending: 0 };
const failures = [];
const [first, ...others] = steps;
await run(first, true);
await runTogether(others);

console.log(failures.join('\n'));
console.log(`${counts.passing} passed, ${counts.failing} failed, ${counts.pending} skipped`);
process.exitCode = failures.length > 0 ? 1 : 0;

/** Installs the Debian packages that the steps need and this machine lacks. */
function install(of) {
  const packages = of.flatMap((step) =>
    Object.entries(step.packages ?? {}).flatMap(([name, all]) => (found(name) ? [] : all)),
  );
  if (packages.length === 0) return;
  const apt = (...args) =>
    execFileSync('apt-get', args, {
      stdio: ['ignore', 'ignore', 'inherit'],
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    });
  apt('update', '-qq');
  apt('install', '-y', '-qq', ...new Set(packages));
}

/**
 * Runs the steps in order, at most AT_ONCE at a time. Steps that read prebuilt binaries wait while the step `prebuild`
 * runs.
 */
async function runTogether(of) {
  const waiting = [...of];
  const running = new Map();
  const prebuilding = () => [...running.keys()].some(({ script }) => script === 'prebuild');
  while (waiting.length > 0 || running.size > 0) {
    const next = waiting.findIndex(({ prebuilds }) => !prebuilds || !prebuilding());
    if (next >= 0 && running.size < AT_ONCE) {
      const [step] = waiting.splice(next, 1);
      running.set(
        step,
        run(step, false).finally(() => running.delete(step)),
      );
    } else {
      await Promise.race(running.values());
    }
  }
}

/**
 * Runs one step and adds its tests to `counts`. A step that fails without reporting a failed test counts as one failed
 * test. If `live`, prints the step's output at once.
 */
async function run(step, live) {
  const { script, args = [] } = step;
  const begin = performance.now();
  const child = spawn('npm', ['run', script, '--', ...args], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text) => {
      output += text;
      if (live) process.stdout.write(text);
    });
  const code = await new Promise((resolve) => {
    child.on('error', () => resolve(1)).on('close', resolve);
  });
  const seconds = Math.round((performance.now() - begin) / 1000);
  if (!live) process.stdout.write(output);
  console.log(`== ${titleOf(step)}: ${code === 0 ? 'passed' : 'failed'} in ${seconds} s ==`);
  const before = counts.failing;
  for (const [, count, kind] of output.matchAll(/^ *(\d+) (passing|failing|pending)\b/gm))
    counts[kind] += Number(count);
  if (code === 0) return;
  if (counts.failing === before) counts.failing++;
  failures.push(`== ${titleOf(step)} failed: ==`, ...failureLines(output.trimEnd().split('\n')));
}

/** Returns the lines from each `N failing` on, after which mocha describes the failed tests, or else the last lines. */
function failureLines(lines) {
  const begins = lines.flatMap((line, index) => (/^ *\d+ failing\b/.test(line) ? [index] : []));
  return begins.length > 0
    ? begins.flatMap((begin) => lines.slice(begin, begin + SHOWN_LINES))
    : lines.slice(-SHOWN_LINES);
}
