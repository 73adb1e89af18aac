// Times the package on this machine and prints tables: every function's forward and gradient through compute(), whole
// objectives and advantage functions, eager PyTorch beside PPO where a python3 with torch is there, small calls, and how long the event loop is kept
// waiting. All contenders take turns within one run; medians are quoted, with the spread beside them.
//
//   npm run bench [-- --rows 1024 --columns 4096 --rounds 15]
import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { cpus } from 'node:os';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import Table from 'cli-table3';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type Batch,
  devices,
  ENTROPY_LOSS_FN,
  KL_FN,
  POLICY_LOSS_FN,
} from '../lib/index.js';

const { values: flags } = parseArgs({
  options: {
    rows: { type: 'string', default: '1024' },
    columns: { type: 'string', default: '4096' },
    rounds: { type: 'string', default: '15' },
  },
});
const rounds = Number(flags.rounds);

function makeBatch(rows: number, columns: number): Batch {
  const tokens = rows * columns;
  // A fixed sequence, so that every run times the same work.
  let state = 1;
  const random = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  const column = (value: (i: number) => number) => Float32Array.from({ length: tokens }, (_, i) => value(i));
  const old = column(() => -3 * random());
  return {
    shape: [rows, columns],
    logprob: column((i) => old[i]! + 0.4 * (random() - 0.5)),
    oldLogprob: old,
    refLogprob: column((i) => old[i]! + 0.4 * (random() - 0.5)),
    advantages: column(() => 4 * random() - 2),
    entropy: column(() => 2 * random()),
    actionMask: new Uint8Array(tokens).fill(1),
    expertMask: Uint8Array.from({ length: rows }, (_, b) => b % 2),
    step: 1,
    rewards: Float64Array.from({ length: rows }, random),
    groupIds: Int32Array.from({ length: rows }, (_, b) => b >> 3),
    runIds: Int32Array.from({ length: rows }, (_, b) => b >> 1),
    rewardBaselines: new Float64Array(rows),
    tokenLevelRewards: column(() => random() - 0.5),
    values: column(() => random() - 0.5),
    teacherLogprob: column((i) => old[i]! + 0.4 * (random() - 0.5)),
  };
}

interface Contender {
  name: string;
  run: () => Promise<number>; // seconds
  times: number[];
}

function contender(name: string, run: () => Promise<unknown>): Contender {
  const timed = async () => {
    const start = performance.now();
    await run();
    return (performance.now() - start) / 1000;
  };
  return { name, run: timed, times: [] };
}

// In turns, after one round that is not counted.
async function race(contenders: readonly Contender[], count: number): Promise<void> {
  for (let round = 0; round <= count; round++)
    for (const c of contenders) {
      const seconds = await c.run();
      if (round > 0) c.times.push(seconds);
    }
}

function quantile(times: readonly number[], q: number): number {
  const sorted = times.toSorted((a, b) => a - b);
  return sorted[Math.round((sorted.length - 1) * q)]!;
}

const median = (times: readonly number[]) => quantile(times, 0.5);

// A process of eager PyTorch that answers each request with the seconds of one pass; undefined without torch.
function startTorch(
  rows: number,
  columns: number,
): { contender: Contender; process: ChildProcessWithoutNullStreams } | undefined {
  const python = ['python3', '/usr/bin/python3'].find(
    (path) => spawnSync(path, ['-c', 'import torch'], { stdio: 'ignore' }).status === 0,
  );
  if (!python) return undefined;
  const process = spawn(python, [fileURLToPath(new URL('peers/torch_ppo.py', import.meta.url))]);
  process.stderr.resume();
  const lines = createInterface({ input: process.stdout });
  const run = async () => {
    const answer = once(lines, 'line');
    process.stdin.write(`${JSON.stringify({ rows, columns, threads: cpus().length })}\n`);
    return Number((await answer)[0]);
  };
  return { contender: { name: 'eager PyTorch', run, times: [] }, process };
}

function print(title: string, head: string[], rows: (string | number)[][]): void {
  const table = new Table({
    head,
    style: { head: [], border: [] },
    colAligns: head.map((_, i) => (i === 0 ? 'left' : 'right')),
  });
  table.push(...rows);
  console.log(`\n${title}\n${table}`);
}

function printRace(title: string, contenders: readonly Contender[], tokens: number): void {
  const base = median(contenders[0]!.times);
  print(
    title,
    ['function', 'ms', 'min – max', 'Mtoken/s', `time / ${contenders[0]!.name}`],
    contenders.map(({ name, times }) => [
      name,
      (median(times) * 1e3).toFixed(2),
      `${(quantile(times, 0) * 1e3).toFixed(2)} – ${(quantile(times, 1) * 1e3).toFixed(2)}`,
      (tokens / median(times) / 1e6).toFixed(0),
      (median(times) / base).toFixed(2),
    ]),
  );
}

async function functions(batch: Batch, tokens: number): Promise<void> {
  const grad = new Float32Array(tokens);
  const contenders = [contender('ppo', () => POLICY_LOSS_FN.create('ppo').compute(batch, { grad }))];
  for (const name of POLICY_LOSS_FN.names()) {
    if (name === 'ppo') continue;
    const fn = POLICY_LOSS_FN.create(name);
    contenders.push(contender(name, () => fn.compute(batch, { grad })));
  }
  for (const name of KL_FN.names()) {
    const fn = KL_FN.create(name);
    contenders.push(contender(`kl ${name}`, () => fn.calculateKlLoss(batch, { grad })));
  }
  for (const name of ENTROPY_LOSS_FN.names()) {
    const fn = ENTROPY_LOSS_FN.create(name, { entropy_coef: 0.01 });
    contenders.push(contender(`entropy ${name}`, () => fn.compute(batch, { grad })));
  }
  await race(contenders, rounds);
  printRace(
    'Forward and gradient through compute(), gradient into an array of the caller',
    contenders,
    tokens,
  );
}

// GRPO's policy loss alone, its whole objective, and every advantage function.
async function algorithms(batch: Batch, tokens: number): Promise<void> {
  const grad = new Float32Array(tokens);
  const gradEntropy = new Float32Array(tokens);
  const { advantages: _, ...rewarded } = batch;
  const policyLoss = POLICY_LOSS_FN.create('ppo');
  const grpo = ALGORITHM_TYPE.get('grpo');
  const plain = grpo.objective();
  const withEntropy = grpo.objective({ entropy_loss_fn_args: { entropy_coef: 0.01 } });
  const contenders = [
    contender('ppo loss', () => policyLoss.compute(batch, { grad })),
    contender('grpo objective', () => plain.compute(batch, { grad })),
    contender('… from rewards', () => plain.compute(rewarded, { grad })),
    contender('… with entropy gradient', () => withEntropy.compute(batch, { grad, gradEntropy })),
  ];
  for (const name of ADVANTAGE_FN.names()) {
    const fn = ADVANTAGE_FN.create(name);
    contenders.push(contender(`advantages ${name}`, () => fn.compute(batch)));
  }
  await race(contenders, rounds);
  printRace("GRPO's objective, and advantages into new arrays", contenders, tokens);
}

async function besidePyTorch(batch: Batch, rows: number, columns: number): Promise<void> {
  const torch = startTorch(rows, columns);
  if (!torch) {
    console.log('\nNo python3 with torch here: nothing to stand beside.');
    return;
  }
  const fn = POLICY_LOSS_FN.create('ppo');
  const grad = new Float32Array(rows * columns);
  const ours = contender('policy-loss, gradient into an array', () => fn.compute(batch, { grad }));
  const fresh = contender('policy-loss, new gradient each call', () => fn.compute(batch, { grad: true }));
  await race([ours, fresh, torch.contender], Math.min(rounds, 7));
  torch.process.kill();
  const base = median(torch.contender.times);
  print(
    `PPO, forward and gradient, ${rows}×${columns}`,
    ['contender', 'ms', 'Mtoken/s', 'times PyTorch'],
    [ours, fresh, torch.contender].map(({ name, times }) => [
      name,
      (median(times) * 1e3).toFixed(2),
      ((rows * columns) / median(times) / 1e6).toFixed(0),
      (base / median(times)).toFixed(1),
    ]),
  );
}

// What compute() costs the thread that calls it: until it gives its promise, and how late timers come meanwhile.
async function eventLoop(batch: Batch, grad: boolean | Float32Array): Promise<string[]> {
  const fn = POLICY_LOSS_FN.create('ppo');
  await fn.compute(batch, { grad });
  const calling: number[] = [];
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  for (let i = 0; i < 5 * rounds; i++) {
    const start = performance.now();
    const result = fn.compute(batch, { grad });
    calling.push(performance.now() - start);
    await result;
    await new Promise((resolve) => setTimeout(resolve, 3));
  }
  delay.disable();
  return [
    median(calling).toFixed(2),
    quantile(calling, 1).toFixed(2),
    (delay.percentile(50) / 1e6 - 1).toFixed(2),
    (delay.max / 1e6 - 1).toFixed(2),
  ];
}

function smallCalls(): void {
  const batch = makeBatch(8, 512);
  const fn = POLICY_LOSS_FN.create('ppo');
  const grad = new Float32Array(8 * 512);
  const times: number[] = [];
  for (let round = 0; round < 200; round++) {
    const start = performance.now();
    for (let i = 0; i < 50; i++) fn.computeSync(batch, { grad });
    if (round >= 20) times.push((performance.now() - start) / 50);
  }
  print(
    'PPO, forward and gradient, 8×512 through computeSync()',
    ['µs a call', 'Mtoken/s'],
    [[(median(times) * 1e3).toFixed(2), ((8 * 512) / median(times) / 1e3).toFixed(0)]],
  );
}

const rows = Number(flags.rows);
const columns = Number(flags.columns);
const [cpu] = devices();
console.log(
  `${cpus()[0]?.model.trim()}, ${cpu?.cores} cores, ${cpu?.isa}; ${rows}×${columns} float32, medians of ${rounds}`,
);
const batch = makeBatch(rows, columns);
await functions(batch, rows * columns);
await algorithms(batch, rows * columns);
await besidePyTorch(batch, rows, columns);
print(
  'How long the event loop was kept while compute() ran, in ms',
  ['gradient', 'call, median', 'call, max', 'timer late, median', 'timer late, max'],
  [
    ['into an array of the caller', ...(await eventLoop(batch, new Float32Array(rows * columns)))],
    ['new each call', ...(await eventLoop(batch, true))],
  ],
);
smallCalls();
