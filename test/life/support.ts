/**
 * Helpers of the life tests. They run scenarios in separate processes, make batches with a known loss, and start worker
 * threads.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import type { Batch } from '../../lib/index.js';

/** How a program ended: its exit code or its signal, and its output. */
export interface Ended {
  code: number | null;
  signal: string | null;
  stdout: string;
  stderr: string;
}

const MINUTE = 60_000;

/**
 * Runs a program in `scenarios/` until it ends, and returns how it ended. Kills a program that hangs, so that its
 * result has a signal. `node` contains flags for Node. `shell` is a shell command that runs before the program, in the
 * same process.
 */
export async function play(
  scenario: string,
  words: readonly string[] = [],
  { node = [], shell }: { node?: readonly string[]; shell?: string } = {},
): Promise<Ended> {
  const file = fileURLToPath(new URL(`./scenarios/${scenario}.ts`, import.meta.url));
  const command = [
    process.execPath,
    '--no-warnings',
    '--expose-gc',
    ...node,
    '--import',
    'tsx',
    file,
    ...words,
  ];
  const child = shell
    ? spawn('/bin/sh', ['-c', `${shell} && exec "$@"`, 'sh', ...command])
    : spawn(command[0]!, command.slice(1));
  const ended: Ended = { code: null, signal: null, stdout: '', stderr: '' };
  for (const stream of ['stdout', 'stderr'] as const)
    child[stream].setEncoding('utf8').on('data', (text: string) => {
      ended[stream] += text;
    });
  const watchdog = setTimeout(() => child.kill('SIGKILL'), 5 * MINUTE);
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
  clearTimeout(watchdog);
  return { ...ended, code, signal };
}

/** Runs a scenario, asserts that it ends with code 0, and returns its output. */
export async function playsWell(...given: Parameters<typeof play>): Promise<string> {
  const { code, signal, stdout, stderr } = await play(...given);
  assert.deepEqual({ code, signal }, { code: 0, signal: null }, `${given[0]} ${given[1] ?? ''}: ${stderr}`);
  return stdout;
}

/** Returns a batch in which every log-probability is `value`, so that its SFT loss is −`value`. */
export function flatBatch(
  rows: number,
  columns: number,
  value = -1,
): Batch & { logprob: Float32Array<ArrayBuffer> } {
  return {
    shape: [rows, columns] as const,
    logprob: new Float32Array(rows * columns).fill(value),
    oldLogprob: new Float32Array(rows * columns).fill(value),
    advantages: new Float32Array(rows).fill(1),
    actionMask: new Uint8Array(rows * columns).fill(1),
  };
}

/**
 * Returns a number from /proc/self/status, such as Threads, or VmRSS in KiB. Returns undefined if there is no such
 * file.
 */
export function processStatus(key: string): number | undefined {
  try {
    const line = new RegExp(`^${key}:\\s*(\\d+)`, 'm').exec(readFileSync('/proc/self/status', 'utf8'));
    return line ? Number(line[1]) : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Starts a worker thread that runs a scenario. The worker registers the TypeScript loader tsx, which it does not
 * inherit.
 */
export function startWorker(scenario: string, workerData: unknown): Worker {
  const { href } = new URL(`./scenarios/${scenario}.ts`, import.meta.url);
  const load = `import('tsx/esm/api').then(({ register }) => { register(); return import(${JSON.stringify(href)}); })`;
  return new Worker(load, { eval: true, workerData });
}
