// Ends its own process while calls are running. The arguments say how to end it, and how many milliseconds to wait
// first.
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { ADVANTAGE_FN, KL_FN, POLICY_LOSS_FN } from '../../../lib/index.js';
import { flatBatch } from '../support.js';

const [how, wait] = process.argv.slice(2) as [string, string];
const batch = {
  ...flatBatch(64, 20_000),
  refLogprob: new Float32Array(64 * 20_000),
  rewards: new Float64Array(64),
};
const groupIds = new Int32Array(64);
const work = [
  ...Array.from({ length: 20 }, () => POLICY_LOSS_FN.create('ppo').compute(batch, { grad: true })),
  KL_FN.create('k3').calculateKl(batch),
  ADVANTAGE_FN.create('grpo').compute({ ...batch, groupIds }),
];
if (Number(wait) > 0) await sleep(Number(wait));
switch (how) {
  case 'exit':
    process.exit(7);
    break;
  case 'throw':
    throw new Error('thrown by the scenario');
  case 'kill':
    process.kill(process.pid, 'SIGTERM');
    break;
  case 'worker':
    new Worker('process.exit(3)', { eval: true }).on('exit', () => process.exit(7));
    break;
  case 'end':
    // Nothing awaits these calls, but Node finishes them before the process ends.
    process.exitCode = 7;
    Promise.all(work).then((results) => console.log(`${results.length} done`));
}
