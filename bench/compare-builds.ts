// Compares the speed of two builds of the package on every function: losses, KL and entropy losses, objectives,
// expressions, advantages, and what starts from logits. Prints, for each function in several forms, the time of the second
// build divided by the time of the first, and the median and the largest of these ratios.
//
//   npx tsx bench/compare-builds.ts BEFORE AFTER [--only REGEX] [--shape 1024x4096] [--threads 1] [--rounds 8]
//       [--tolerance 0.03]
//
// BEFORE and AFTER are folders with a checkout and its build in build/Release, or native modules (.node), which then run
// under the TypeScript of this checkout. The default shape does not fit in the caches, so waiting for memory partly hides
// a slower loop; --shape 256x1024 shows the arithmetic, and --shape 8x512 the cost of a call. The exit status is 1 if a
// function is slower by more than the error of the measurement plus the tolerance.
//
// The time of a call depends by several percent on where code and arrays lie in memory, which can favour either build.
// Each build therefore runs in several processes, and every comparison is repeated with the arrays in other places. All
// processes take turns in random order, so other work on the machine slows down both builds equally.
import { parseArgs } from 'node:util';
import { generator } from '../test/support/random.js';
import { BuildProcess, type Case } from './lib/build-process.js';
import { summarise } from './lib/race.js';
import { print } from './lib/tables.js';

/** The processes of each build, and how often a comparison is repeated with the arrays in other places. */
const PROCESSES = 3;
const PLACEMENTS = 4;
/** Half of the 95 % interval of Student's t distribution with PLACEMENTS - 1 degrees of freedom. */
const STUDENT_T = 3.182;
/** The approximate length of a turn in milliseconds. A turn repeats a short call until it takes that long. */
const TURN = 1;

const { values: flags, positionals } = parseArgs({
  options: {
    only: { type: 'string' },
    shape: { type: 'string', default: '1024x4096' },
    threads: { type: 'string', default: '1' },
    rounds: { type: 'string', default: '8' },
    tolerance: { type: 'string', default: '0.03' },
  },
  allowPositionals: true,
});
const [before, after] = positionals;
if (!before || !after || positionals.length > 2) throw new Error('expected two builds: BEFORE AFTER');
const rounds = wholeNumber('--rounds', flags.rounds);
const tolerance = Number(flags.tolerance);
if (!(tolerance > 0)) throw new Error(`--tolerance: expected a fraction above 0, got ${flags.tolerance}`);
const [rows, columns, ...rest] = flags.shape.split('x').map((part) => wholeNumber('--shape', part));
if (!rows || !columns || rest.length > 0)
  throw new Error(`--shape: expected ROWSxCOLUMNS, got ${flags.shape}`);

function wholeNumber(flag: string, text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw new Error(`${flag}: expected a whole number, got ${text}`);
  return value;
}

interface Compared extends Case {
  milliseconds: number;
  /** The second build's time divided by the first build's, and half of its 95 % confidence interval. */
  ratio: number;
  error: number;
}

const random = generator(1).uniform;
const median = (values: readonly number[]) => summarise(values).median;

async function compare(item: Case, first: readonly BuildProcess[], second: readonly BuildProcess[]) {
  const all = [...first, ...second];
  const ratios: number[] = [];
  const times: number[] = [];
  for (let i = 0; i < PLACEMENTS; i++) {
    const typical = await Promise.all(all.map((build) => build.prepare(item)));
    const calls = Math.min(Math.max(Math.round(TURN / median(typical)), 1), 1000);
    const inRounds: number[] = [];
    for (let round = 0; round < rounds; round++) {
      const taken = new Map<BuildProcess, number>();
      for (const build of all.toSorted(() => random() - 0.5)) taken.set(build, await build.time(calls));
      const [old, fresh] = [first, second].map((group) => median(group.map((build) => taken.get(build)!)));
      inRounds.push(fresh! / old!);
      times.push(old!);
    }
    ratios.push(median(inRounds));
  }
  const ratio = median(ratios);
  const variance = ratios.reduce((sum, x) => sum + (x - ratio) ** 2, 0) / (PLACEMENTS - 1);
  const error = STUDENT_T * Math.sqrt(variance / PLACEMENTS);
  return { ...item, milliseconds: median(times), ratio, error };
}

const start = (build: string) =>
  Promise.all(
    Array.from({ length: PROCESSES }, () =>
      BuildProcess.start(build, {
        shape: [rows!, columns!],
        threads: wholeNumber('--threads', flags.threads),
        only: flags.only,
      }),
    ),
  );
const [old, fresh] = [await start(before), await start(after)];
const results: Compared[] = [];
try {
  const known = new Set(old[0]!.cases.map(({ id, form }) => `${id} ${form}`));
  const cases = fresh[0]!.cases.filter(({ id, form }) => known.has(`${id} ${form}`));
  if (cases.length === 0) throw new Error(`--only: no function's name matches ${flags.only}`);
  for (const item of cases) results.push(await compare(item, old, fresh));
} finally {
  for (const build of [...old, ...fresh]) build.end();
}

const isSlower = ({ ratio, error }: Compared) => ratio - 1 - error > tolerance;
print({
  title: `Time of ${after} / time of ${before}, ${flags.shape}, ${flags.threads} threads; above 1 is slower`,
  head: ['function', 'form', 'before, ms', 'after / before', '±, %', 'slower'],
  rows: results.map((result) => [
    result.id,
    result.form,
    result.milliseconds.toPrecision(3),
    result.ratio.toFixed(3),
    (100 * result.error).toFixed(1),
    isSlower(result) ? 'yes' : '',
  ]),
});
const sorted = results.toSorted((a, b) => a.ratio - b.ratio);
const named = ({ id, form, ratio }: Compared) => `${ratio.toFixed(3)} (${id}, ${form})`;
const slower = sorted.filter(isSlower).toReversed();
console.log(
  `\n${results.length} comparisons, after / before: median ${median(results.map(({ ratio }) => ratio)).toFixed(3)}, ` +
    `largest ${named(sorted.at(-1)!)}, smallest ${named(sorted[0]!)}.\n` +
    `Slower by more than the noise and ${100 * tolerance} %: ${slower.map(named).join(', ') || 'none'}`,
);
if (slower.length > 0) process.exitCode = 1;
