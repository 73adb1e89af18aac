// The process that memory.ts starts and measures. It prepares everything, computes each function once, and sends back
// the peak growth of its resident memory in bytes, by function.
//
//   memory-child.ts SHAPE PATTERN
//
// SHAPE is JSON, such as [1024,4096]. PATTERN selects functions; an empty one selects all.
import { readFileSync, writeFileSync } from 'node:fs';
import { makeInputs, type Shape } from './batch.js';
import { works } from './works.js';

/**
 * Returns the process's resident memory in bytes, from /proc/self/status: the current value (VmRSS) or the peak
 * (VmHWM).
 */
function resident(field: 'VmRSS' | 'VmHWM'): number {
  const line = new RegExp(`^${field}:\\s*(\\d+) kB$`, 'm').exec(readFileSync('/proc/self/status', 'latin1'));
  return 1024 * Number(line![1]);
}

/** Makes Linux reset the recorded peak to the memory that is resident now. */
function forgetPeak(): void {
  writeFileSync('/proc/self/clear_refs', '5');
}

const [shapeText, pattern] = process.argv.slice(2) as [string, string];
const shape = JSON.parse(shapeText) as Shape;
const all = works(pattern ? new RegExp(pattern) : undefined);
const tokens = shape[0] * shape[1];
const inputs = makeInputs(shape);
const grad = new Float32Array(tokens).fill(1);
const gradEntropy = new Float32Array(tokens).fill(1);
const few = makeInputs([8, 512]);

const results: Record<string, number> = {};
for (const work of all) {
  const by = (name: 'logprob' | 'entropy') => work.wrt.includes(name);
  const given = { ...(by('logprob') && { grad }), ...(by('entropy') && { gradEntropy }) };
  // Computes a small batch first. This creates compiled code, threads and the function's own memory, which a process
  // needs only once and which must not count.
  for (let i = 0; i < 20; i++) await work.compute(few);
  resident('VmRSS');
  resident('VmHWM');
  forgetPeak();
  const before = resident('VmRSS');
  await work.compute(inputs, given);
  results[work.id] = Math.max(resident('VmHWM') - before, 0);
}
process.send!(results, () => process.disconnect());
