// The process that runs the cases of the boundary fuzzer. watch.ts starts it. The process writes each case to a file
// before it runs the case, so that watch.ts knows the case after a crash or a hang. At its end the process prints a
// report as one line of JSON.
import assert from 'node:assert/strict';
import { openSync, writeSync } from 'node:fs';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { type Failure, search } from '../support/fuzzing.js';
import { anyCase, type Case, run } from './cases.js';

/** The report that the process prints at its end. */
export interface Report {
  executions: number;
  /** The number of different functions that were called. */
  functions: number;
  failure?: Failure<Case>;
}

const [seconds, seed, file] = process.argv.slice(2) as [string, string, string];
const place = openSync(file, 'w');
const called = new Set<string>();
let executions = 0;

async function execute(one: Case): Promise<void> {
  executions++;
  called.add(one.target);
  // The length comes first, because the file is overwritten in place and may still contain the end of a longer case.
  const text = JSON.stringify({ executions, ...one });
  writeSync(place, `${String(Buffer.byteLength(text)).padStart(12)}${text}`, 0);
  await run(one);
}

// A call with valid arguments. It must give the same result before and after any number of hostile calls.
const sample = {
  shape: [2, 3] as const,
  logprob: Float32Array.of(-1, -2, -0.5, -0.25, -3, -1.5),
  oldLogprob: Float32Array.of(-1.5, -1, -0.75, -0.25, -2, -1),
  advantages: Float32Array.of(1, -1),
  actionMask: Uint8Array.of(1, 1, 0, 1, 1, 1),
};
const healthy = () => POLICY_LOSS_FN.create('ppo').computeSync(sample, { grad: true });
const before = healthy();

const failure = await search({
  seconds: Number(seconds),
  seed: Number(seed),
  cases: anyCase,
  casesPerRound: 400,
  run: execute,
  afterRound: () => assert.deepEqual(healthy(), before),
});
process.stdout.write(
  `${JSON.stringify({ executions, functions: called.size, ...(failure && { failure }) } satisfies Report)}\n`,
);
