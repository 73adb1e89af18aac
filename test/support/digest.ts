// Prints the digests of every function's results on drawn batches, as JSON. instruction-sets.test.ts runs it once per instruction
// set and compares the output.
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { create } from './advantages.js';
import {
  ADVANTAGE_ARGUMENTS,
  EDGE_LENGTHS,
  fitting,
  laidOut,
  layOut,
  makeBatch,
  makeRewarded,
} from './draw.js';
import { EXPRESSIONS } from './expressions.js';
import { everyFunction } from './functions.js';
import { subject } from './subject.js';
import { syncOf, userLoss } from './user-loss.js';

const digests: Record<string, string> = {};

function record(name: string, numbers: object, arrays: readonly Float32Array[]): void {
  const hash = createHash('sha256').update(JSON.stringify(numbers));
  for (const array of arrays) hash.update(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
  digests[name] = hash.digest('hex');
}

for (const { family, name, args, title } of everyFunction(1)) {
  const laid = laidOut(makeBatch(fitting(name, args, EDGE_LENGTHS)));
  const { loss, metrics, grad } = subject(family, name, args).sync(laid);
  record(title, { loss, metrics }, [grad]);
}
const full = laidOut(makeBatch(EDGE_LENGTHS));
for (const [loss, metric] of fc.sample(fc.tuple(EXPRESSIONS.batch, EXPRESSIONS.batch), {
  seed: 7,
  numRuns: 100,
})) {
  const { fn, text } = userLoss(loss, 'token-mean', { metric });
  const { grad, ...numbers } = syncOf(fn, full);
  record(text, numbers, [grad]);
}
const rewarded = layOut(makeRewarded({ ...EDGE_LENGTHS, groups: 'some', rewards: 'normal', perToken: true }));
for (const [name, drawn] of Object.entries(ADVANTAGE_ARGUMENTS)) {
  const [args] = fc.sample(drawn, { seed: 7, numRuns: 1 });
  const { metrics, advantages, returns } = create(name, args!).computeSync(rewarded);
  record(`advantage ${name}`, metrics, [advantages, returns]);
}
console.log(JSON.stringify(digests));
