// Compares the speed of two builds of the native module on every function, in one process and in turns: the time of the
// second build divided by the time of the first. Exits with status 1 if a function is slower by more than the noise and
// the tolerance together.
//
//   npx tsx bench/compare-builds.ts BEFORE.node AFTER.node [--only REGEX] [--shape 1024x4096] [--threads 1]
//       [--copies 3] [--rounds 200] [--tolerance 0.03] [--markdown]
//
// Each build is loaded several times (--copies), since a copy's place in memory can change the time of a short call by
// several percent. Every comparison lasts until its error is below a third of the tolerance, or for --rounds rounds.
// One thread is the default, because it shows the cost of the code and other work on the machine disturbs it least.
// 1024x4096 does not fit in the caches, so memory hides part of a slower loop; --shape 256x1024 shows the arithmetic,
// and --shape 8x512 the cost of a call.
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import type { NativeBinding } from '../binding.js';
import { type Comparison, comparePaired } from './lib/paired.js';
import { printer, type TableContent } from './lib/tables.js';

const { values: flags, positionals } = parseArgs({
  options: {
    only: { type: 'string' },
    shape: { type: 'string', default: '1024x4096' },
    threads: { type: 'string', default: '1' },
    copies: { type: 'string', default: '3' },
    rounds: { type: 'string', default: '200' },
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
const precision = { rounds: { least: Math.min(40, most), most }, error: tolerance / 3 };
const copies = wholeNumber('--copies', flags.copies);
const threads = wholeNumber('--threads', flags.threads);
const shape = readShape(flags.shape);
const only = flags.only === undefined ? undefined : new RegExp(flags.only);

// lib/ needs a native module too, to list the functions. The variable must be set before lib/ is loaded.
process.env.POLICY_LOSS_NATIVE ??= resolve(after);
const { advantageCall, advantageSpec, loadCopy, lossCall } = await import('./lib/builds.js');
const { inHalf, makeInputs, nativeAdvantageBatch, nativeBatch } = await import('./lib/batch.js');
const { gradientsOf, works } = await import('./lib/works.js');
const { ADVANTAGE_FN } = await import('../lib/index.js');

/** One function in one form (gradient, forward, bfloat16) that is measured. */
interface Case {
  readonly name: string;
  readonly form: string;
  prepare(build: NativeBinding): () => unknown;
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
  const inputs = makeInputs(shape);
  const half = inHalf(inputs, 'bfloat16');
  const tokens = shape[0] * shape[1];
  return works(only)
    .filter(({ computes }) => computes)
    .flatMap((work) => {
      const { id, spec, columns, expertMask } = work;
      const batch = nativeBatch(inputs, columns, expertMask);
      const halfBatch = nativeBatch(half, columns, expertMask);
      const gradients = gradientsOf(work, tokens);
      return [
        { name: id, form: 'gradient', prepare: (build) => lossCall(build, spec, batch, gradients) },
        { name: id, form: 'forward', prepare: (build) => lossCall(build, spec, batch, {}) },
        { name: id, form: 'bfloat16', prepare: (build) => lossCall(build, spec, halfBatch, gradients) },
      ] satisfies Case[];
    });
}

function advantageCases(): Case[] {
  const inputs = makeInputs(shape);
  const advantages = new Float32Array(shape[0] * shape[1]);
  return ADVANTAGE_FN.names()
    .map((name) => ({ name, id: `advantages ${name}` }))
    .filter(({ id }) => !only || only.test(id))
    .map(({ name, id }) => {
      const spec = advantageSpec(name);
      const batch = nativeAdvantageBatch(inputs, ADVANTAGE_FN.create(name).definition.inputs);
      return { name: id, form: 'forward', prepare: (build) => advantageCall(build, spec, batch, advantages) };
    });
}

/**
 * Returns how much slower the second build is, beyond noise and tolerance, as a fraction. Negative if it is not slower.
 */
function excess({ ratio, error, withinGroup }: Comparison): number {
  return ratio - 1 - error - withinGroup - tolerance;
}

interface Result {
  item: Case;
  comparison: Comparison;
}

function table(results: readonly Result[]): TableContent {
  const percent = (x: number) => (100 * x).toFixed(1);
  return {
    title:
      `Time of ${after} / time of ${before}, ${flags.shape}, ${threads} thread${threads > 1 ? 's' : ''}, ` +
      `${copies} copies of each; above 1 is slower`,
    head: [
      'function',
      'form',
      'before, ms',
      'after / before',
      '±, %',
      'between copies, %',
      'rounds',
      'slower',
    ],
    rows: results.map(({ item, comparison }) => [
      item.name,
      item.form,
      comparison.milliseconds.toPrecision(3),
      comparison.ratio.toFixed(3),
      percent(comparison.error),
      percent(comparison.withinGroup),
      String(comparison.rounds),
      excess(comparison) > 0 ? 'yes' : '',
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
for (const item of [...lossCases(), ...advantageCases()]) {
  const prepared = (builds: readonly NativeBinding[]) => builds.map((build) => item.prepare(build));
  results.push({ item, comparison: await comparePaired(prepared(old), prepared(fresh), precision) });
}
if (results.length === 0)
  throw new Error(`--only: expected a pattern that matches a function, got ${flags.only}`);
printer(flags.markdown)(table(results));

const ratios = results.map(({ comparison }) => comparison.ratio).toSorted((a, b) => a - b);
const slower = results.filter(({ comparison }) => excess(comparison) > 0);
console.log(
  `\n${results.length} comparisons: after / before from ${ratios[0]!.toFixed(3)} to ${ratios.at(-1)!.toFixed(3)}, ` +
    `median ${ratios[Math.floor(ratios.length / 2)]!.toFixed(3)}; ` +
    `slower by more than the noise and ${100 * tolerance} %: ` +
    (slower.length === 0 ? 'none' : slower.map(({ item }) => `${item.name} (${item.form})`).join(', ')),
);
if (slower.length > 0) process.exitCode = 1;
