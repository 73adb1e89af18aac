// Times what starts from logits: log-probabilities and entropies, their gradient, and PPO with an entropy bonus in one
// call. The floors read the logits once, or read and write them once, on the same threads.
import { ALGORITHM_TYPE, logprobs, logprobsBackward } from '../../lib/index.js';
import type { Peer } from '../peers/peer.js';
import { TorchPeer } from '../peers/torch.js';
import { benchNative } from './native.js';
import { contender, race } from './race.js';
import type { LogitsTimes, Times } from './report.js';
import { digits, ratio, spread, type TableContent } from './tables.js';

/** Rows and vocabulary: few long rows, as of models with large vocabularies, and many shorter ones. */
const SHAPES = [
  [512, 151_936],
  [4096, 32_000],
] as const;
const DTYPES = ['float32', 'bfloat16'] as const;

export const READ = 'reading once';
export const REWRITE = 'reading and writing once';
export const FORWARD = 'logprobs()';
export const BACKWARD = 'logprobsBackward() in place';
export const FUSED = 'PPO from logits, with gradient in place';
const PYTORCH = 'eager PyTorch';

/** Times all shapes and dtypes. */
export async function timeLogits(peers: readonly Peer[], rounds: number): Promise<LogitsTimes[]> {
  const torch = peers.find((peer) => peer instanceof TorchPeer);
  const found: LogitsTimes[] = [];
  for (const shape of SHAPES)
    for (const dtype of DTYPES)
      found.push({ shape, dtype, times: await timeOne(shape, dtype, torch, rounds) });
  return found;
}

async function timeOne(
  shape: readonly [number, number],
  dtype: (typeof DTYPES)[number],
  torch: TorchPeer | undefined,
  rounds: number,
): Promise<Times> {
  const [rows, vocabulary] = shape;
  const data = drawn(rows * vocabulary, dtype);
  const logits = data instanceof Float32Array ? data : ({ data, dtype: 'bfloat16' } as const);
  const targets = Int32Array.from({ length: rows }, (_, row) => (row * 7919) % vocabulary);
  const options = { shape, targets } as const;
  const { logprob, logsumexp, entropy } = await logprobs(logits, { ...options, entropy: true });
  const gradLogprob = Float64Array.from({ length: rows }, (_, row) => Math.sin(row) / rows);
  const gradEntropy = new Float64Array(rows).fill(-0.01 / rows);
  const backward = { ...options, gradLogprob, gradEntropy, logsumexp, entropy: entropy! };
  const objective = ALGORITHM_TYPE.get('grpo').objective({
    kl_loss_fn: 'none',
    entropy_loss_fn_args: { entropy_coef: 0.01 },
  });
  const batch = {
    shape: [rows / 64, 64] as const,
    logits,
    targets,
    oldLogprob: logprob.map((x, row) => x + 0.1 * Math.sin(row)),
    advantages: Float32Array.from({ length: rows }, (_, row) => Math.cos(row)),
    actionMask: new Uint8Array(rows).fill(1),
  };
  // The gradients replace the logits, so later calls read them. No step takes longer for other numbers.
  return race(
    [
      contender(READ, () => benchNative.memoryTraffic({ array: data, writes: false, later: true })),
      contender(REWRITE, () => benchNative.memoryTraffic({ array: data, writes: true, later: true })),
      contender(FORWARD, () => logprobs(logits, { ...options, entropy: true })),
      contender(BACKWARD, () => logprobsBackward(logits, { ...backward, out: logits })),
      contender(FUSED, () => objective.fromLogits(batch, { gradLogits: logits })),
      ...(torch ? [torch.session.fromLogits(PYTORCH, shape, dtype)] : []),
    ],
    rounds,
  );
}

function drawn(count: number, dtype: (typeof DTYPES)[number]): Float32Array | Uint16Array {
  const number = (i: number) => 3 * Math.sin(i * 12.9898) + Math.cos(i * 0.01);
  if (dtype === 'float32') return Float32Array.from({ length: count }, (_, i) => number(i));
  const one = new Float32Array(1);
  const bits = new Uint32Array(one.buffer);
  return Uint16Array.from({ length: count }, (_, i) => {
    one[0] = number(i);
    return bits[0]! >>> 16;
  });
}

/** The share of a floor's speed that a step reaches. */
export function shareOf({ times }: LogitsTimes, step: string): number {
  return times[step === FORWARD ? READ : REWRITE]!.median / times[step]!.median;
}

export function logitsTable(all: readonly LogitsTimes[]): TableContent {
  return {
    title: 'From logits; the floors read the logits once, or read and write them once',
    head: ['rows × vocabulary', 'dtype', 'call', 'ms', 'min – max', 'of the floor', `× ${PYTORCH}`],
    rows: all.flatMap((each) =>
      [FORWARD, BACKWARD, FUSED].map((step) => [
        each.shape.join('×'),
        each.dtype,
        step,
        digits(each.times[step]!.median),
        spread(each.times[step]!),
        digits(shareOf(each, step)),
        step === FUSED ? ratio(each.times[PYTORCH], each.times[step]) : '',
      ]),
    ),
  };
}

/** How many times as fast as eager PyTorch PPO from logits is, or undefined if it was not measured. */
export function overPyTorch({ times }: LogitsTimes): number | undefined {
  const torch = times[PYTORCH];
  return torch && torch.median / times[FUSED]!.median;
}
