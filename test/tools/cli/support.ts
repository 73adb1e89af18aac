/**
 * Helpers for tests of the command line. They run the program, make files for it, and compute results with the library.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type Batch,
  type Objective,
  POLICY_LOSS_FN,
} from '../../../lib/index.js';
import { captured, type Run } from '../../support/captured.js';

export type { Run };

export const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
export const EXAMPLE = join(ROOT, 'examples', 'rollouts.jsonl');
export const TRINITY = join(ROOT, 'examples', 'trinity.yaml');
/** The path of the compiled program, which users install. */
export const PROGRAM = join(ROOT, 'dist', 'tools', 'cli', 'main.js');
const { href } = new URL('../../../dist/tools/cli/program.js', import.meta.url);

/** Runs the compiled program in this process and captures its output. This is ten times faster than a new process. */
export const run = (...words: string[]): Promise<Run> => runInColumns(undefined, ...words);

/** Runs the compiled program in this process, with `folder` as the current folder. */
export async function runIn(folder: string, words: readonly string[]): Promise<Run> {
  const before = process.cwd();
  process.chdir(folder);
  try {
    return await run(...words);
  } finally {
    process.chdir(before);
  }
}

/** Runs the program as {@link run} does, with lines of so many characters. */
export async function runInColumns(columns: number | undefined, ...words: string[]): Promise<Run> {
  const { runProgram }: typeof import('../../../lib/tools/cli/program.js') = await import(href);
  return captured(() => runProgram(words), columns);
}

/** Runs the program with lines that are so long that nothing is wrapped. */
export const runWide = (...words: string[]) => runInColumns(200, ...words);

/** Runs the compiled program in a process of its own, with the repository's root as the current folder. */
export function runProcess(...words: string[]): Promise<Run> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [PROGRAM, ...words], { cwd: ROOT });
    const result: Run = { code: null, stdout: '', stderr: '' };
    for (const stream of ['stdout', 'stderr'] as const)
      child[stream].setEncoding('utf8').on('data', (text: string) => {
        result[stream] += text;
      });
    child.on('error', reject);
    child.on('close', (code) => resolve({ ...result, code }));
  });
}

/** Runs the program with --json and returns the parsed result. Asserts that it succeeds and prints nothing else. */
export async function runJson(...words: string[]) {
  return resultOf(await run(...words, '--json'));
}

/** Returns the parsed result of a run with --json. Asserts that it has succeeded and printed nothing else. */
export function resultOf({ code, stdout, stderr }: Run) {
  assert.equal(stderr, '');
  assert.equal(code, 0);
  return JSON.parse(stdout);
}

/** Runs the program and asserts that it fails, as {@link assertFailed} does. */
export async function fails(code: 1 | 2, words: readonly string[], ...says: RegExp[]): Promise<void> {
  assertFailed(await run(...words), code, ...says);
}

/**
 * Asserts that the program has failed with this exit code. It must have printed a message that matches all patterns, and
 * neither a result nor a stack trace.
 */
export function assertFailed(result: Run, code: 1 | 2, ...says: RegExp[]): void {
  assert.equal(result.code, code, result.stderr);
  assert.equal(result.stdout, '');
  for (const pattern of says) assert.match(result.stderr, pattern);
  assert.doesNotMatch(result.stderr, /\n\s+at /, 'a stack trace');
}

/** Parses CSV text in which no cell contains a quote or a comma. */
export function parseCsv(text: string): Record<string, string>[] {
  const [head, ...lines] = text
    .trimEnd()
    .split('\n')
    .map((line) => line.split(','));
  return lines.map((line) => Object.fromEntries(head!.map((name, i) => [name, line[i]!])));
}

/** Returns a number as the program's tables show it. */
export const sixDigits = (x: number) => String(Number(x.toPrecision(6)));

/** A row of examples/rollouts.jsonl. */
export interface Row {
  task_id: number;
  run_id: number;
  reward: number;
  logprobs: number[];
  old_logprobs: number[];
  ref_logprobs: number[];
  entropy: number[];
  [column: string]: unknown;
}

export const ROWS: Row[] = readFileSync(EXAMPLE, 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line));
export const TOKENS = ROWS.reduce((sum, row) => sum + row.logprobs.length, 0);

/** A temporary folder for the files of a test. */
export class Files {
  readonly directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));

  /** Writes rows to a file of JSON lines and returns its path. A row that is a string is written unchanged. */
  write(name: string, rows: readonly (object | string)[]): string {
    const file = this.path(name);
    writeFileSync(file, rows.map((row) => (typeof row === 'string' ? row : JSON.stringify(row))).join('\n'));
    return file;
  }

  /** Writes a file of bytes and returns its path. */
  writeBytes(name: string, content: Uint8Array): string {
    writeFileSync(this.path(name), content);
    return this.path(name);
  }

  path(name: string): string {
    return join(this.directory, name);
  }

  remove(): void {
    rmSync(this.directory, { recursive: true });
  }
}

/** Makes a batch from rows. Uses no code under test. */
export function batchOf(rows: readonly Row[]) {
  const offsets = [0];
  for (const { logprobs } of rows) offsets.push(offsets.at(-1)! + logprobs.length);
  return {
    cuSeqlens: offsets,
    logprob: rows.flatMap((row) => row.logprobs),
    oldLogprob: rows.flatMap((row) => row.old_logprobs),
    refLogprob: rows.flatMap((row) => row.ref_logprobs),
    entropy: rows.flatMap((row) => row.entropy),
    actionMask: new Uint8Array(offsets.at(-1)!).fill(1),
    rewards: rows.map((row) => row.reward),
    groupIds: rows.map((row) => row.task_id),
    runIds: rows.map((row) => row.run_id),
  };
}

/**
 * Returns the norm that the program prints for the gradient of some rows: the sum of squares of each row is rounded, the
 * sum over the rows only once.
 */
export function norm(values: Float32Array, rows: readonly { logprobs: ArrayLike<number> }[] = ROWS): number {
  let start = 0;
  let total = 0n;
  for (const { logprobs } of rows) {
    const row = values.subarray(start, start + logprobs.length);
    total += scaled(row.reduce((sum, x) => sum + x * x, 0));
    start += row.length;
  }
  return Math.sqrt(Number(total) / 2 ** 400);
}

/** Returns a sum of squares of float32 numbers, multiplied by 2 ** 400. */
function scaled(x: number): bigint {
  if (x === 0) return 0n;
  const bits = new BigUint64Array(Float64Array.of(x).buffer)[0]!;
  return ((bits & (2n ** 52n - 1n)) + 2n ** 52n) << ((bits >> 52n) - 1075n + 400n);
}

/** Computes a loss with the library. The advantages are GRPO's, unless `more` contains others. */
export async function computedLoss(
  name: string,
  args: object = {},
  rows: readonly Row[] = ROWS,
  more: Partial<Batch> = {},
) {
  const batch = batchOf(rows);
  const { advantages } = ADVANTAGE_FN.create('grpo').computeSync(batch);
  const { loss, metrics, grad } = await POLICY_LOSS_FN.create(name, { ...args }).compute(
    { ...batch, advantages, ...more },
    { grad: true },
  );
  return { loss, metrics, grad: grad! };
}

/** Returns the result that `evaluate --loss` must print. The library computes it on GRPO's advantages. */
export async function fromLibrary(
  name: string,
  args: object = {},
  rows: readonly Row[] = ROWS,
  more: Partial<Batch> = {},
) {
  const { loss, metrics, grad } = await computedLoss(name, args, rows, more);
  return { name, loss, metrics, rows: rows.length, tokens: grad.length, gradNorm: norm(grad, rows) };
}

/** Returns the result that `evaluate --algorithm` must print. The library computes it. */
export async function fromObjective(
  objective: Objective,
  rows: readonly Row[] = ROWS,
  more: Partial<Batch> = {},
  seed = 0,
) {
  const batch = batchOf(rows);
  const { loss, metrics, grad, gradEntropy } = await objective.compute(
    { ...batch, ...more },
    { grad: true, seed },
  );
  return {
    name: objective.algorithm,
    loss,
    metrics,
    rows: rows.length,
    tokens: batch.actionMask.length,
    gradNorm: norm(grad!, rows),
    ...('entropy_loss' in metrics && { gradEntropyNorm: norm(gradEntropy!, rows) }),
  };
}

/**
 * Returns the functions and coefficients that `evaluate --algorithm` must print for an algorithm without other options.
 */
export function functionsOf(name: string) {
  const { policy_loss_fn, advantage_fn, kl_loss_fn, entropy_loss_fn } =
    ALGORITHM_TYPE.get(name).defaultConfig();
  return {
    policyLossFn: policy_loss_fn,
    ...(advantage_fn !== undefined && { advantageFn: advantage_fn }),
    klLossFn: kl_loss_fn ?? 'none',
    klCoef: 0.001,
    entropyLossFn: entropy_loss_fn ?? 'none',
    entropyCoef: 0,
  };
}
