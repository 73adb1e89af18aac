// Compares the speed of two builds of the native module on every function. Both builds are loaded into one process and
// take turns. The result for a function is the second build's time divided by the first build's. The exit status is 1
// if the second build is slower on any function by more than the error of the measurement plus the tolerance.
//
//   npx tsx bench/compare-builds.ts BEFORE.node AFTER.node [--only REGEX] [--shape 1024x4096] [--threads 1]
//       [--copies 3] [--placements 5] [--rounds 60] [--tolerance 0.03] [--markdown]
//
// The time of a call depends by several percent on where code and arrays lie in memory, which can favour either build.
// Each build is therefore loaded several times (--copies), and every comparison is repeated with the arrays in other
// places (--placements). The reported error is the error of the mean over these repetitions. Each repetition lasts
// until its own error is below half of the tolerance, but at most --rounds rounds.
//
// One thread is the default, because it shows the cost of the code and is least disturbed by other work on the machine.
// The default shape, 1024x4096, does not fit in the caches, so waiting for memory partly hides a slower loop. --shape
// 256x1024 shows the arithmetic, and --shape 8x512 shows the cost of a call.
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import type { NativeBinding } from '../binding.js';
import { comparePaired } from './lib/paired.js';
import { printer, type TableContent } from './lib/tables.js';

const { values: flags, positionals } = parseArgs({
  options: {
    only: { type: 'string' },
    shape: { type: 'string', default: '1024x4096' },
    threads: { type: 'string', default: '1' },
    copies: { type: 'string', default: '3' },
    placements: { type: 'string', default: '5' },
    rounds: { type: 'string', default: '60' },
    tolerance: { type: 'string', default: '0.03' },
    markdown: { type: 'boolean', default: false },
  },
  allowPositionals: true,
});
const [before, after] = positionals;
if (!before || !after || positionals.length > 2)
  throw new Error('expected two native modules: BEFORE.node AFTER.node');
const tolerance = Number(flags.tolerance);
if (!(tolerance > 0)) throw new Error(`--tolerance: expected a fraction above 0, got ${flags.tolerance}`);
const most = wholeNumber('--rounds', flags.rounds);
const precision = { rounds: { least: Math.min(10, most), most }, error: tolerance / 2 };
const copies = wholeNumber('--copies', flags.copies);
const placements = wholeNumber('--placements', flags.placements);
if (placements < 2) throw new Error(`--placements: expected at least 2, got ${placements}`);
const threads = wholeNumber('--threads', flags.threads);
const shape = readShape(flags.shape);
const only = flags.only === undefined ? undefined : new RegExp(flags.only);

// lib/ also loads a native module, which is used to list the functions. This variable names the module, so it must be
// set before lib/ is imported.
process.env.POLICY_LOSS_NATIVE ??= resolve(after);
const { advantageCall, advantageSpec, loadCopy, lossCall, relocated } = await import('./lib/builds.js');
const { inHalf, makeInputs, nativeAdvantageBatch, nativeBatch, withCorners, withTurns } = await import(
  './lib/batch.js'
);
const { gradientsOf, halfGradientsOf, works } = await import('./lib/works.js');
const { ADVANTAGE_FN } = await import('../lib/index.js');

/**
 * One function to measure in one form: 'gradient' (forward and gradient), 'forward' (no gradient), 'bfloat16' (forward
 * and gradient on 16-bit columns), 'bfloat16 gradients' (the same with gradients in 16 bits, too), 'masked' or 'turns'
 * (forward and gradient on a batch with masked tokens, or turns).
 */
interface Case {
  readonly name: string;
  readonly form: string;
  /**
   * Copies the arrays to new places in memory. The returned function takes a build, and returns a function that runs
   * that build on the copies.
   */
  place(): (build: NativeBinding) => () => unknown;
}

function wholeNumber(flag: string, text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw new Error(`${flag}: expected a whole number, got ${text}`);
  return value;
}

function readShape(text: string): [rows: number, columns: number] {
  const [rows, columns, ...rest] = text.split('x').map((part) => wholeNumber('--shape', part));
  if (!rows || !columns || rest.length > 0) throw new Error(`--shape: expected ROWSxCOLUMNS, got ${text}`);
  return [rows, columns];
}

function lossCases(): Case[] {
  const tokens = shape[0] * shape[1];
  const inputs = makeInputs(shape);
  const half = inHalf(inputs, 'bfloat16');
  const corners = withCorners(inputs);
  const turns = withTurns(inputs);
  return works(only)
    .filter(({ computes }) => computes)
    .flatMap((work) =>
      [
        { form: 'gradient', batch: inputs, gradients: () => gradientsOf(work, tokens) },
        { form: 'forward', batch: inputs, gradients: () => ({}) },
        { form: 'bfloat16', batch: half, gradients: () => gradientsOf(work, tokens) },
        {
          form: 'bfloat16 gradients',
          batch: half,
          gradients: () => halfGradientsOf(work, tokens, 'bfloat16'),
        },
        { form: 'masked', batch: corners, gradients: () => gradientsOf(work, tokens) },
        { form: 'turns', batch: turns, gradients: () => gradientsOf(work, tokens) },
      ].map(({ form, batch, gradients }) => ({
        name: work.id,
        form,
        place() {
          const placed = relocated(nativeBatch(batch, work));
          const arrays = gradients();
          return (build) => lossCall(build, work.spec, placed, arrays);
        },
      })),
    );
}

function advantageCases(): Case[] {
  const inputs = makeInputs(shape);
  return ADVANTAGE_FN.names()
    .map((name) => ({ name, id: `advantages ${name}` }))
    .filter(({ id }) => !only || only.test(id))
    .map(({ name, id }) => ({
      name: id,
      form: 'forward',
      place() {
        const { inputs: reads } = ADVANTAGE_FN.create(name).definition;
        const placed = relocated(nativeAdvantageBatch(inputs, reads));
        const advantages = new Float32Array(shape[0] * shape[1]).fill(1);
        const spec = advantageSpec(name);
        return (build) => advantageCall(build, spec, placed, advantages);
      },
    }));
}

interface Result {
  item: Case;
  milliseconds: number;
  ratio: number;
  /**
   * Half the width of the ratio's 95 % confidence interval, estimated from how much the ratios of the placements
   * differ.
   */
  error: number;
}

async function compare(item: Case, first: readonly NativeBinding[], second: readonly NativeBinding[]) {
  const ratios: number[] = [];
  const times: number[] = [];
  for (let i = 0; i < placements; i++) {
    const prepare = item.place();
    const comparison = await comparePaired(first.map(prepare), second.map(prepare), precision);
    ratios.push(comparison.ratio);
    times.push(comparison.milliseconds);
  }
  const ratio = meanOf(ratios);
  const variance = ratios.reduce((sum, x) => sum + (x - ratio) ** 2, 0) / (placements - 1);
  const error = studentT(placements - 1) * Math.sqrt(variance / placements);
  return { item, milliseconds: meanOf(times), ratio, error };
}

const meanOf = (values: readonly number[]) => values.reduce((sum, x) => sum + x, 0) / values.length;

/**
 * Returns the factor by which a standard error is multiplied to get half of a 95 % confidence interval (Student's t
 * distribution). From 10 degrees of freedom on, it is the factor for 10.
 */
function studentT(degreesOfFreedom: number): number {
  return [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262][degreesOfFreedom - 1] ?? 2.228;
}

/** Returns whether the second build is slower than the first by more than the error plus the tolerance. */
const isSlower = ({ ratio, error }: Result) => ratio - 1 - error > tolerance;

function table(results: readonly Result[]): TableContent {
  return {
    title:
      `Time of ${after} / time of ${before}, ${flags.shape}, ${threads} thread${threads > 1 ? 's' : ''}, ` +
      `${copies} copies of each, ${placements} placements; above 1 is slower`,
    head: ['function', 'form', 'before, ms', 'after / before', '±, %', 'slower'],
    rows: results.map((result) => [
      result.item.name,
      result.item.form,
      result.milliseconds.toPrecision(3),
      result.ratio.toFixed(3),
      (100 * result.error).toFixed(1),
      isSlower(result) ? 'yes' : '',
    ]),
  };
}

const load = (path: string) =>
  Array.from({ length: copies }, () => {
    const build = loadCopy(path);
    build.setThreads(threads);
    return build;
  });
const [old, fresh] = [load(before), load(after)];

const results: Result[] = [];
for (const item of [...lossCases(), ...advantageCases()]) results.push(await compare(item, old, fresh));
if (results.length === 0) throw new Error(`--only: no function's name matches ${flags.only}`);
printer(flags.markdown)(table(results));

const ratios = results.map(({ ratio }) => ratio).toSorted((a, b) => a - b);
const slower = results.filter(isSlower);
console.log(
  `\n${results.length} comparisons: after / before from ${ratios[0]!.toFixed(3)} to ${ratios.at(-1)!.toFixed(3)}, ` +
    `median ${ratios[Math.floor(ratios.length / 2)]!.toFixed(3)}; ` +
    `slower by more than the noise and ${100 * tolerance} %: ` +
    (slower.length === 0 ? 'none' : slower.map(({ item }) => `${item.name} (${item.form})`).join(', ')),
);
if (slower.length > 0) process.exitCode = 1;
