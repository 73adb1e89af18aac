// Times the package on a CUDA device and prints tables: the token pass of every policy loss and KL estimator against
// the device's own copy bandwidth, PyTorch eager and compiled doing the same beside it, small calls, and batches that
// come from the host. All contenders take turns within one run; medians are quoted, with the extremes beside them, and
// all numbers go to bench/results/<device>.json. Without a CUDA device it refuses; an emulated one is never timed.
//
//   npm run bench:gpu [-- --tokens 67108864 --rounds 7 --only ppo,k3 --no-compile --out DIR --python PATH]
//   npm run bench:gpu -- --smoke    every step at tiny sizes, on an emulated device too, without a number printed
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import Table from 'cli-table3';
import type { NativeBatch, NativeCall, NativeFunctionSpec, NativeResident } from '../binding.js';
import { native } from '../lib/core/native.js';
import { type Batch, type CudaDevice, devices, KL_FN, POLICY_LOSS_FN, upload } from '../lib/index.js';
import { generator } from '../test/support/random.js';
import { findPython, TorchProcess } from './peers/torch-process.js';

const { values: flags } = parseArgs({
  options: {
    tokens: { type: 'string', default: String(2 ** 26) },
    rounds: { type: 'string', default: '7' },
    only: { type: 'string' },
    'no-compile': { type: 'boolean', default: false },
    out: { type: 'string', default: fileURLToPath(new URL('results', import.meta.url)) },
    python: { type: 'string' },
    smoke: { type: 'boolean', default: false },
  },
});
const smoke = flags.smoke;
const COLUMNS = smoke ? 96 : 4096;
const ROWS = smoke ? 8 : 2 * Math.round(Number(flags.tokens) / COLUMNS / 2);
const TOKENS = ROWS * COLUMNS;
if (!(TOKENS > 0)) fail(`--tokens: expected at least ${2 * COLUMNS}, not ${flags.tokens}`);
const ROUNDS = smoke ? 1 : Number(flags.rounds);
const CALLS = smoke ? 1 : 5; // of each contender in its turn
const SMALL = smoke ? { rows: 4, columns: 32, calls: 2 } : { rows: 8, columns: 512, calls: 50 };
const COPY_BYTES = smoke ? 2 ** 12 : 2 ** 29;

// What the native module is told of each function, and which float32 columns its token pass reads. The values are the
// defaults of the public classes and of the PyTorch versions, as checkAgreement() shows.
const RATIO = ['logprob', 'oldLogprob', 'advantages'] as const;
const CLIP = { clip_range_low: 0.2, clip_range_high: 0.2, clip_ratio_c: 3 };
const MIX = {
  ...CLIP,
  use_dynamic_bsz: false,
  ppo_mini_batch_size: 1,
  ppo_micro_batch_size_per_gpu: 1,
  ngpus_trainer: 1,
  train_batch_size_usual: 1,
  train_batch_size_expert: 1,
  cutoff_prob: 1,
};
const CISPO = {
  clip_range_low: 1,
  clip_range_high: 0.28,
  enable_mask_clip: false,
  mask_clip_range_low: 1,
  mask_clip_range_high: 0.28,
};
const REC = {
  epsilon_low: 0.2,
  epsilon_high: 0.2,
  epsilon_low_prime: 0.6,
  epsilon_high_prime: 2,
  clip_mode: 'none',
  weight: 'none',
  regularizer: 'none',
  regularizer_coef: 0,
  temp: 1,
};
type Options = Record<string, number | boolean | string>;
const POLICY: Record<string, [columns: readonly string[], options: Options, aggregation?: string]> = {
  ppo: [RATIO, CLIP],
  gspo: [RATIO, { clip_range_low: 0.0003, clip_range_high: 0.0004 }, 'seq-mean-token-mean'],
  cispo: [RATIO, CISPO],
  topr: [RATIO, { advantage_threshold: 0 }],
  sapo: [RATIO, { tau_pos: 1, tau_neg: 1.05, differentiate_gate: false }],
  sppo: [RATIO, { epsilon: 0.3 }],
  rec: [RATIO, REC],
  importance_sampling: [RATIO, {}],
  opmd: [['logprob', 'advantages'], { tau: 1 }],
  dpo: [['logprob', 'refLogprob'], { beta: 0.1, label_smoothing: 0, pairwise: true }],
  sft: [['logprob'], {}],
  sft_is: [['logprob'], {}],
  sft_phi: [['logprob'], { cutoff_prob: 1 }],
  mix: [RATIO, MIX],
  mix_chord: [RATIO, MIX],
};
const REFERENCE = ['logprob', 'refLogprob'] as const;
const KL: Record<string, readonly string[]> = {
  k1: REFERENCE,
  k2: REFERENCE,
  k3: REFERENCE,
  low_var_kl: REFERENCE,
  abs: REFERENCE,
  corrected_k3: [...REFERENCE, 'oldLogprob'],
};
const COEFFICIENTS = { mu: 0.1, klCoef: 0.001, entropyCoef: undefined };

interface Timed {
  family: 'policy' | 'kl';
  name: string;
  spec: NativeFunctionSpec;
  columns: readonly string[];
  /** What its token pass must move, each byte once: the columns, the mask, the gradient. */
  bytesPerToken: number;
}

function functionsToTime(): Timed[] {
  const all: Timed[] = [];
  const add = (family: Timed['family'], name: string, columns: readonly string[], spec: NativeFunctionSpec) =>
    all.push({ family, name, spec, columns, bytesPerToken: 4 * columns.length + 1 + 4 });
  for (const [name, [columns, options, aggregation = 'token-mean']] of Object.entries(POLICY))
    add('policy', name, columns, { policyLoss: { name, options, aggregation } });
  for (const [name, columns] of Object.entries(KL))
    add('kl', name, columns, { kl: { name, aggregation: 'token-mean' } });
  // A function that is registered and not listed here would go unmeasured unseen. The KL estimator 'none' has no pass.
  const listed = [...Object.keys(POLICY), ...Object.keys(KL), 'none'].sort().join();
  const registered = [...POLICY_LOSS_FN.names(), ...KL_FN.names()].sort().join();
  if (listed !== registered) fail(`this file lists ${listed}, and the registries ${registered}`);
  const only = flags.only?.split(',');
  const unknown = only?.filter((name) => !all.some((fn) => fn.name === name));
  if (unknown?.length) fail(`--only: no function named ${unknown.join(', ')}`);
  return only ? all.filter((fn) => only.includes(fn.name)) : all;
}

function fail(why: string): never {
  console.error(`bench: ${why}`);
  process.exit(1);
}

function findDevice(): CudaDevice {
  const [, first] = devices();
  if (!first) return fail('no list of CUDA devices');
  if (!first.available)
    return fail(`there is no CUDA device, so nothing is measured: ${first.reason.message}`);
  if (isEmulated(first) && !smoke)
    fail(`${first.name} is emulated (${first.description}), so nothing is measured; --smoke runs it`);
  return first;
}

const isEmulated = (device: CudaDevice) => /emulat/i.test(device.description);

// ---- Inputs

// A fixed sequence, so that every run times the same work. Random values, as zeros are kinder to a device than data
// are; one token in sixteen masked, so that no stretch of a column can be left unread; every second row an expert's.
function makeBatch(rows: number, columns: number) {
  const tokens = rows * columns;
  const random = generator(1).uniform;
  const column = (value: (i: number) => number) => {
    const out = new Float32Array(tokens);
    for (let i = 0; i < tokens; i++) out[i] = value(i);
    return out;
  };
  const oldLogprob = column(() => -3 * random());
  const near = () => column((i) => oldLogprob[i]! + 0.4 * (random() - 0.5));
  const actionMask = new Uint8Array(tokens);
  for (let i = 0; i < tokens; i++) actionMask[i] = random() < 1 / 16 ? 0 : 1;
  return {
    shape: [rows, columns] as const,
    logprob: near(),
    oldLogprob,
    refLogprob: near(),
    advantages: column(() => 4 * random() - 2),
    actionMask,
    expertMask: Uint8Array.from({ length: rows }, (_, b) => b % 2),
    step: 1,
  };
}

type Inputs = ReturnType<typeof makeBatch>;

function nativeBatch(batch: Inputs, columns?: readonly string[]): NativeBatch {
  const has = (name: string) => !columns || columns.includes(name);
  const { logprob, oldLogprob, refLogprob, advantages } = batch;
  return {
    rows: batch.shape[0],
    columns: batch.shape[1],
    offsets: undefined,
    data: [
      has('logprob') ? logprob : undefined,
      has('oldLogprob') ? oldLogprob : undefined,
      has('refLogprob') ? refLogprob : undefined,
      has('advantages') ? advantages : undefined,
      undefined,
    ],
    dtypes: [0, 0, 0, 0, 0],
    mask: batch.actionMask,
    expert: batch.expertMask,
  };
}

async function toDevice(batch: NativeBatch): Promise<NativeResident> {
  const resident = await native.upload(0, batch, undefined);
  if (resident === -1) fail('an upload was aborted');
  return resident;
}

// ---- Contenders

/** What one contender measured, in whatever unit its table says. */
interface Sample {
  median: number;
  least: number;
  most: number;
  samples: number;
}

function summary(values: readonly number[]): Sample {
  // An emulated device has no clock: 0 milliseconds, bytes at an infinite rate.
  if (values.length === 0 || values.some((x) => !(smoke ? x >= 0 : x > 0 && x < Infinity)))
    fail('a measurement is not a number');
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  const median = (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle) - 1]!) / 2;
  // Of an even number of values the two in the middle; of an odd one floor and ceil - 1 are the same index.
  return { median, least: sorted[0]!, most: sorted.at(-1)!, samples: sorted.length };
}

// What a contender does in its turn: some measurements, one value each.
type Turn = () => number[] | Promise<number[]>;

// The contenders in turns, in the order they are given in.
async function race(turns: Record<string, Turn>): Promise<Record<string, Sample>> {
  const values: Record<string, number[]> = {};
  for (let round = 0; round < ROUNDS; round++)
    for (const [name, turn] of Object.entries(turns)) {
      values[name] ??= [];
      values[name].push(...(await turn()));
    }
  return Object.fromEntries(Object.entries(values).map(([name, list]) => [name, summary(list)]));
}

// One call on the device, its gradient left there: milliseconds of all passes, and of the token pass alone.
function deviceCall(spec: NativeFunctionSpec, input: NativeResident) {
  const fn = native.createFunction(spec);
  const timing = new Float64Array(2);
  const call: NativeCall = {
    values: new Float64Array(native.valueNames(fn).length),
    grad: undefined,
    gradEntropy: undefined,
    ...COEFFICIENTS,
    abort: undefined,
    gradStays: true,
  };
  const timed = { ...call, timing };
  return {
    untimed: () => native.evaluateSync(fn, input, call),
    timed: () => {
      native.evaluateSync(fn, input, timed);
      return { all: timing[0]!, tokenPass: timing[1]! };
    },
  };
}

function milliseconds(work: () => unknown): number {
  const start = performance.now();
  work();
  return performance.now() - start;
}

const repeat = <T>(count: number, work: () => T): T[] => Array.from({ length: count }, work);

// ---- PyTorch, in a process of its own that answers a line with a line

interface About {
  torch: string;
  device: string;
  cuda: string | null;
  compileProblem: string | null;
}

class Peer extends TorchProcess {
  /** Milliseconds of each of so many calls of what was prepared: on the device, or until the host has the result. */
  async time(op: 'time' | 'latency', calls: number): Promise<number[]> {
    return (await this.ask<{ milliseconds: number[] }>({ op, calls })).milliseconds;
  }

  /** Bytes per second. */
  async rate(op: 'copy' | 'host_to_device'): Promise<number> {
    return (await this.ask<{ bytesPerSecond: number }>({ op, bytes: COPY_BYTES })).bytesPerSecond;
  }
}

async function startPeer(device: CudaDevice): Promise<{ peer: Peer; about: About } | undefined> {
  const onCpu = isEmulated(device);
  const wanted = onCpu ? 'import torch' : 'import torch; assert torch.cuda.is_available()';
  const python = flags.python ? findPython(wanted, [flags.python]) : findPython(wanted);
  if (!python) {
    console.log(`No python3 with torch${onCpu ? '' : ' that sees the device'}: nothing to stand beside.`);
    return undefined;
  }
  const peer = new Peer(python, 'torch_gpu.py', [onCpu ? 'cpu' : 'cuda:0']);
  const about = await peer.ask<About>({ op: 'about' });
  if (flags['no-compile']) about.compileProblem = 'not asked for (--no-compile)';
  if (about.compileProblem) console.log(`torch.compile is not measured: ${about.compileProblem}`);
  return { peer, about };
}

// ---- What is measured

// That everybody computes the same: the public class on the CPU, the table above on the device, PyTorch in float64.
async function checkAgreement(fns: readonly Timed[], peer: Peer | undefined): Promise<void> {
  const [rows, columns] = smoke ? [4, 32] : [16, 128];
  const batch = makeBatch(rows, columns);
  const resident = await toDevice(nativeBatch(batch));
  for (const { family, name, spec } of fns) {
    const expected =
      family === 'policy'
        ? POLICY_LOSS_FN.create(name).computeSync(batch as Batch, { grad: true })
        : KL_FN.create(name).calculateKlLossSync(batch as Batch, { grad: true });
    const fn = native.createFunction(spec);
    const names = native.valueNames(fn);
    const values = new Float64Array(names.length);
    const grad = new Float32Array(rows * columns);
    native.evaluateSync(fn, resident, {
      values,
      grad,
      gradEntropy: undefined,
      ...COEFFICIENTS,
      abort: undefined,
    });
    const metrics = Object.fromEntries(names.slice(1).map((metric, i) => [metric, values[i + 1]!]));
    const same = (who: string, loss: number, theirs: Record<string, number>, g: ArrayLike<number>) => {
      const apart = (x: number, y: number) => !(Math.abs(x - y) <= 1e-3 * Math.max(Math.abs(y), 0.05));
      let difference = 0;
      let norm = 0;
      for (let i = 0; i < expected.grad!.length; i++) {
        difference += (g[i]! - expected.grad![i]!) ** 2;
        norm += expected.grad![i]! ** 2;
      }
      const wrong = Object.entries(expected.metrics).filter(([key, y]) =>
        apart(theirs[key] ?? Number.NaN, y),
      );
      if (apart(loss, expected.loss)) wrong.unshift(['loss', expected.loss]);
      if (!(Math.sqrt(difference) <= 1e-3 * Math.sqrt(norm))) wrong.push(['grad', Math.sqrt(norm)]);
      if (wrong.length > 0)
        fail(`${who} computes another ${name} than the CPU: ${wrong.map(([key]) => key).join(', ')}`);
    };
    same('the device', values[0]!, metrics, grad);
    if (!peer) continue;
    const answer = await peer.ask<{ loss: number; metrics: Record<string, number>; grad: number[] }>({
      op: 'evaluate',
      family,
      name,
      args: {},
      shape: batch.shape,
      inputs: {
        logprob: [...batch.logprob],
        old_logprob: [...batch.oldLogprob],
        ref_logprob: [...batch.refLogprob],
        advantages: [...batch.advantages],
        action_mask: [...batch.actionMask],
        expert_mask: [...batch.expertMask],
        step: [batch.step],
      },
    });
    same('PyTorch', answer.loss, answer.metrics, answer.grad);
  }
  native.release(resident);
}

interface FunctionResult {
  family: string;
  columns: readonly string[];
  bytesPerToken: number;
  tokenPassMs: Sample;
  allPassesMs: Sample;
  eagerMs?: Sample;
  compiledMs?: Sample;
  notMeasured?: string[];
}

async function timeFunction(
  timed: Timed,
  resident: NativeResident,
  torch: { peer: Peer; about: About } | undefined,
  copies: number[],
): Promise<FunctionResult> {
  const { family, name, spec, columns, bytesPerToken } = timed;
  const call = deviceCall(spec, resident);
  const tokenPass: number[] = [];
  const allPasses: number[] = [];
  const ours = () => {
    call.untimed();
    for (const times of repeat(CALLS, () => call.timed())) {
      tokenPass.push(times.tokenPass);
      allPasses.push(times.all);
    }
    copies.push(native.copyBandwidth(0, COPY_BYTES));
  };
  call.untimed(); // What fails here is ours, and not PyTorch's.
  const theirs: Partial<Record<'eagerMs' | 'compiledMs', Sample>> = {};
  const problems: string[] = [];
  // PyTorch's two forms one after the other, each in turns with ours: at once they would need twice the memory.
  for (const form of ['eager', 'compiled'] as const) {
    if (!torch || (form === 'compiled' && torch.about.compileProblem)) continue;
    try {
      const compiled = form === 'compiled';
      await torch.peer.ask({ op: 'prepare', family, name, rows: ROWS, columns: COLUMNS, compiled });
      const times: number[] = [];
      for (let round = 0; round < ROUNDS; round++) {
        ours();
        times.push(...(await torch.peer.time('time', CALLS)));
      }
      theirs[`${form}Ms`] = summary(times);
    } catch (error) {
      problems.push(`${form}: ${(error as Error).message}`);
    }
  }
  if (tokenPass.length === 0) for (let round = 0; round < ROUNDS; round++) ours();
  return {
    family,
    columns,
    bytesPerToken,
    tokenPassMs: summary(tokenPass),
    allPassesMs: summary(allPasses),
    ...theirs,
    ...(problems.length > 0 && { notMeasured: problems }),
  };
}

// From the call until the result is in the host's memory, on this thread's clock; milliseconds.
async function timeSmallCalls(torch: { peer: Peer; about: About } | undefined) {
  const { rows, columns, calls } = SMALL;
  const host = makeBatch(rows, columns);
  const resident = await toDevice(nativeBatch(host));
  using uploaded = await upload(host as Batch, 'cuda:0');
  const ppo = POLICY_LOSS_FN.create('ppo');
  const grad = new Float32Array(rows * columns);
  const call = deviceCall(
    { policyLoss: { name: 'ppo', options: CLIP, aggregation: 'token-mean' } },
    resident,
  );
  const each = (work: () => unknown): Turn => {
    for (let i = 0; i < calls; i++) work();
    return () => repeat(calls, () => milliseconds(work));
  };
  const turns: Record<string, Turn> = {
    'loss, metrics; gradient on the device': each(() => call.untimed()),
    'computeSync(), loss and metrics': each(() => ppo.computeSync(uploaded)),
    'computeSync(), gradient to the host': each(() => ppo.computeSync(uploaded, { grad })),
    'compute(), loss and metrics': async () => {
      const times: number[] = [];
      for (let i = 0; i < calls; i++) {
        const start = performance.now();
        await ppo.compute(uploaded);
        times.push(performance.now() - start);
      }
      return times;
    },
    'its passes on the device': () => repeat(calls, () => call.timed().all),
  };
  const results = await race(turns);
  for (const compiled of [false, true]) {
    if (!torch || (compiled && torch.about.compileProblem)) continue;
    try {
      await torch.peer.ask({ op: 'prepare', family: 'policy', name: 'ppo', rows, columns, compiled });
      const name = compiled ? 'torch.compile' : 'eager PyTorch';
      Object.assign(results, await race({ [name]: () => torch.peer.time('latency', calls) }));
    } catch (error) {
      console.log(`PyTorch's small call is not measured: ${(error as Error).message}`);
    }
  }
  native.release(resident);
  return results;
}

const PINNED = 'pinned memory to the device (PyTorch)';

// A batch of the host's to the device: bytes per second on this thread's clock, the call included.
async function timeHostBatch(batch: Inputs, peer: Peer | undefined) {
  const input = nativeBatch(batch, RATIO);
  const bytes = TOKENS * (4 * RATIO.length + 1);
  const fn = native.createFunction({
    policyLoss: { name: 'ppo', options: CLIP, aggregation: 'token-mean' },
  });
  const values = new Float64Array(native.valueNames(fn).length);
  const grad = new Float32Array(TOKENS);
  const evaluate = (withGrad: boolean) =>
    native.evaluateSync(
      fn,
      input,
      {
        values,
        grad: withGrad ? grad : undefined,
        gradEntropy: undefined,
        ...COEFFICIENTS,
        abort: undefined,
      },
      0,
    );
  const rate = (work: () => unknown): number => bytes / (milliseconds(work) * 1e-3);
  const turns: Record<string, Turn> = {
    'PPO of a host batch': () => [rate(() => evaluate(false))],
    'PPO of a host batch, gradient back to the host': () => [rate(() => evaluate(true))],
    'upload()': async () => {
      const start = performance.now();
      const resident = await toDevice(input);
      const seconds = (performance.now() - start) / 1000;
      native.release(resident);
      return [bytes / seconds];
    },
    ...(peer && { [PINNED]: async () => [await peer.rate('host_to_device')] }),
  };
  for (const turn of Object.values(turns)) await turn(); // Staging and pools come into being.
  return { bytes, bytesPerSecond: await race(turns) };
}

// ---- Tables

const aligned = (head: string[], rows: (string | number)[][]) => {
  const table = new Table({
    head,
    style: { head: [], border: [] },
    colAligns: head.map((_, i) => (i === 0 ? 'left' : 'right')),
  });
  table.push(...rows);
  return table.toString();
};

function print(title: string, head: string[], rows: (string | number)[][]): void {
  if (!smoke) console.log(`\n${title}\n${aligned(head, rows)}`);
}

const range = ({ least, most }: Sample, digits: number) =>
  `${least.toFixed(digits)} – ${most.toFixed(digits)}`;

function printFunctions(functions: Record<string, FunctionResult>, copy: Sample): void {
  print(
    `Token pass, forward and gradient, ${TOKENS} tokens on the device; its copy bandwidth is ` +
      `${(copy.median / 1e9).toFixed(0)} GB/s (${range({ ...copy, least: copy.least / 1e9, most: copy.most / 1e9 }, 0)})`,
    ['function', 'bytes/token', 'token pass, ms', 'min – max', 'GB/s', '% of copy', 'all passes, ms'],
    Object.entries(functions).map(([name, f]) => {
      const bytesPerSecond = (f.bytesPerToken * TOKENS) / (f.tokenPassMs.median * 1e-3);
      return [
        name,
        f.bytesPerToken,
        f.tokenPassMs.median.toFixed(3),
        range(f.tokenPassMs, 3),
        (bytesPerSecond / 1e9).toFixed(0),
        ((100 * bytesPerSecond) / copy.median).toFixed(1),
        f.allPassesMs.median.toFixed(3),
      ];
    }),
  );
  const times = (f: FunctionResult, theirs: Sample | undefined) =>
    theirs
      ? [theirs.median.toFixed(2), (theirs.median / f.allPassesMs.median).toFixed(1)]
      : ['not measured', ''];
  print(
    'Beside PyTorch: all passes of ours, forward and backward of theirs, on the device',
    ['function', 'ours, ms', 'eager, ms', 'times ours', 'torch.compile, ms', 'times ours'],
    Object.entries(functions).map(([name, f]) => [
      name,
      f.allPassesMs.median.toFixed(3),
      ...times(f, f.eagerMs),
      ...times(f, f.compiledMs),
    ]),
  );
}

// ---- The run

const device = findDevice();
const fns = functionsToTime();
const torch = await startPeer(device);
await checkAgreement(fns, torch?.peer);

const functions: Record<string, FunctionResult> = {};
const report: Record<string, unknown> = {
  device,
  driver: driverVersion(),
  node: process.version,
  torch: torch?.about ?? null,
  date: new Date().toISOString(),
  shape: [ROWS, COLUMNS],
  rounds: ROUNDS,
  callsPerRound: CALLS,
  complete: false,
};

// After each part, so that a run which is cut short leaves what it has measured.
function save(parts: Record<string, unknown>): void {
  Object.assign(report, parts);
  if (smoke) return;
  mkdirSync(flags.out, { recursive: true });
  const name = device.description.toLowerCase().replace(/[^a-z0-9]+/g, '-');
  writeFileSync(join(flags.out, `${name}.json`), `${JSON.stringify(report, null, 2)}\n`);
}

function driverVersion(): string | null {
  try {
    const query = ['--query-gpu=driver_version', '--format=csv,noheader'];
    return execFileSync('nvidia-smi', query, {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim();
  } catch {
    return null;
  }
}

if (!smoke) console.log(`${device.description}, ${device.computeCapability}, Node ${process.version}`);
save({});
const batch = makeBatch(ROWS, COLUMNS);
const resident = await toDevice(nativeBatch(batch));
const copies: number[] = [];
for (const timed of fns) {
  functions[timed.name] = await timeFunction(timed, resident, torch, copies);
  save({ functions, copyBytesPerSecond: summary(copies) });
}
native.release(resident);
printFunctions(functions, summary(copies));
if (torch) save(await race({ torchCopyBytesPerSecond: async () => [await torch.peer.rate('copy')] }));
for (const [name, { notMeasured }] of Object.entries(functions))
  for (const problem of notMeasured ?? []) console.log(`${name} is not measured in PyTorch: ${problem}`);

const smallCalls = await timeSmallCalls(torch);
save({ smallCalls: { shape: [SMALL.rows, SMALL.columns], milliseconds: smallCalls } });
print(
  `PPO, ${SMALL.rows}×${SMALL.columns} on the device, from the call to its result`,
  ['call', 'µs', 'min – max'],
  Object.entries(smallCalls).map(([name, sample]) => {
    const { least, most, median } = sample;
    return [name, (median * 1e3).toFixed(1), range({ ...sample, least: least * 1e3, most: most * 1e3 }, 1)];
  }),
);

const hostBatch = await timeHostBatch(batch, torch?.peer);
save({ hostBatch, complete: true });
const pinned = hostBatch.bytesPerSecond[PINNED];
print(
  `From the host, ${TOKENS} tokens of PPO, ${(hostBatch.bytes / 1e6).toFixed(0)} MB`,
  ['what', 'GB/s', 'min – max', '% of pinned'],
  Object.entries(hostBatch.bytesPerSecond).map(([name, sample]) => [
    name,
    (sample.median / 1e9).toFixed(2),
    range({ ...sample, least: sample.least / 1e9, most: sample.most / 1e9 }, 2),
    pinned ? ((100 * sample.median) / pinned.median).toFixed(0) : '',
  ]),
);
torch?.peer.end();
console.log(
  smoke
    ? `Every step ran for ${fns.length} functions${torch ? ', PyTorch beside them' : ''}; nothing was measured.`
    : `\nAll numbers are in ${flags.out}.`,
);
