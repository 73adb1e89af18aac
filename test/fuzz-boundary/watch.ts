/**
 * Runs the boundary fuzzer in a process of its own and watches it. If the process crashes or hangs, the case that it
 * was running has failed.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describeFailure } from '../support/fuzzing.js';
import type { Report } from './child.js';

/**
 * The time in milliseconds after which a case counts as hanging. A call with a few tokens takes less, even on a slow
 * and busy machine.
 */
const HANG_MS = 60_000;
const LOOK_MS = 500;

export interface Outcome {
  executions: number;
  functions: number;
  /** What failed, with the case as JSON. Undefined if every case passed. */
  fault?: string;
}

export async function fuzz(seconds: number, seed: number): Promise<Outcome> {
  const folder = mkdtempSync(join(tmpdir(), 'policy-loss-fuzz-'));
  try {
    return await watch(seconds, seed, join(folder, 'case'));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function watch(seconds: number, seed: number, file: string): Promise<Outcome> {
  const child = spawn(
    process.execPath,
    [
      '--no-warnings',
      '--max-old-space-size=2048',
      '--import',
      'tsx',
      fileURLToPath(new URL('./child.ts', import.meta.url)),
      String(seconds),
      String(seed),
      file,
    ],
    { stdio: ['ignore', 'pipe', 'pipe'] },
  );
  let said = '';
  let complaint = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    complaint += text;
  });
  let hung = false;
  let at = '';
  let since = performance.now();
  const look = setInterval(() => {
    const now = caseAt(file);
    if (now !== at) [at, since] = [now, performance.now()];
    else if (performance.now() - since > HANG_MS) {
      hung = true;
      child.kill('SIGKILL');
    }
  }, LOOK_MS);
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
  clearInterval(look);
  if (code === 0) {
    const { failure, ...report } = JSON.parse(said) as Report;
    if (!failure) return report;
    return { ...report, fault: describeFailure(failure) };
  }
  const last = caseAt(file);
  const how = hung ? `hung for ${HANG_MS / 1000} s` : `ended by ${signal ?? `code ${code}`}`;
  const { executions = 0 } = last === '' ? {} : (JSON.parse(last) as { executions: number });
  return { executions, functions: 0, fault: `${how}\ncase: ${last}\n${complaint}` };
}

// Returns the current case as JSON, or '' if the file does not contain one yet.
function caseAt(file: string): string {
  try {
    const text = readFileSync(file, 'utf8');
    return text.slice(12, 12 + Number(text.slice(0, 12)));
  } catch {
    return '';
  }
}
