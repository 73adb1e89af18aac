// Times what starts from logits: log-probabilities and entropies, their gradient, and PPO with an entropy bonus in one
// call, in turns with loops that move the same memory and with PyTorch.
import { ALGORITHM_TYPE, logprobs, logprobsBackward } from '../../lib/index.js';
import type { Torch } from '../peers/torch.js';
import { BFLOAT16_TOLERANCE, checkAgreement } from './agreement.js';
import { toBfloat16 } from './batch.js';
import { benchNative } from './native.js';
import { contender, race } from './race.js';
import { type FunctionTimes, OF_LOGITS, OURS } from './report.js';

const SHAPE = [512, 50_257] as const;
const [ROWS, VOCABULARY] = SHAPE;
const DTYPES = ['float32', 'bfloat16'] as const;
type DType = (typeof DTYPES)[number];
const ENTROPY_COEF = 0.01;

export async function timeLogits(
  torch: Torch | undefined,
  threads: number,
  rounds: number,
): Promise<FunctionTimes[]> {
  const found: FunctionTimes[] = [];
  for (const dtype of DTYPES) found.push(await timeOne(dtype, torch, threads, rounds));
  return found;
}

async function timeOne(
  dtype: DType,
  torch: Torch | undefined,
  threads: number,
  rounds: number,
): Promise<FunctionTimes> {
  const data = drawn(dtype);
  const wrapped = <D>(values: D) => (dtype === 'float32' ? values : { data: values, dtype }) as Float32Array;
  const logits = wrapped(data);
  const targets = Int32Array.from({ length: ROWS }, (_, row) => (row * 7919) % VOCABULARY);
  const options = { shape: SHAPE, targets };
  const { logprob, logsumexp, entropy } = await logprobs(logits, { ...options, entropy: true });
  const backward = {
    ...options,
    ...{ logsumexp, entropy: entropy!, out: logits },
    gradLogprob: Float64Array.from({ length: ROWS }, (_, row) => Math.sin(row) / ROWS),
    gradEntropy: new Float64Array(ROWS).fill(-ENTROPY_COEF / ROWS),
  };
  const objective = ALGORITHM_TYPE.get('grpo').objective({
    kl_loss_fn: 'none',
    entropy_loss_fn_args: { entropy_coef: ENTROPY_COEF },
  });
  const batch = {
    shape: [ROWS / 64, 64] as const,
    ...{ logits, targets },
    oldLogprob: logprob.map((x, row) => x + 0.1 * Math.sin(row)),
    advantages: Float32Array.from({ length: ROWS }, (_, row) => Math.cos(row)),
    actionMask: new Uint8Array(ROWS).fill(1),
  };

  const id = `PPO from logits, ${dtype}`;
  const loss = {
    id,
    family: 'logits',
    name: 'ppo',
    args: { entropy_coef: ENTROPY_COEF },
    wrt: ['logits'],
  } as const;
  if (torch) {
    const ofRows = { ...batch, expertMask: new Uint8Array(ROWS) };
    await torch.loadTensors(
      {
        logits: { values: data, shape: SHAPE },
        targets: { values: targets, shape: [ROWS] },
        old_logprob: { values: ofRows.oldLogprob, shape: [ROWS] },
        advantages: { values: ofRows.advantages, shape: [ROWS] },
        action_mask: { values: ofRows.actionMask, shape: [ROWS] },
        expert_mask: { values: ofRows.expertMask, shape: [ROWS] },
      },
      0,
      threads,
    );
  }
  const { prepared, problems } = torch
    ? await torch.prepare(loss, data.length)
    : { prepared: [], problems: {} };
  const gradient = new Float32Array(data.length);
  const { loss: expected } = await objective.fromLogits(batch, { gradLogits: gradient });
  const results = { loss: expected, metrics: {}, gradients: [gradient] };
  const tolerance = dtype === 'bfloat16' ? BFLOAT16_TOLERANCE : undefined;
  for (const { name, evaluate } of prepared)
    checkAgreement(`${name}, ${id}`, await evaluate(), results, tolerance);

  // The gradients replace the logits, so later calls read them. No step takes longer for other numbers.
  const times = await race(
    [
      contender(OURS, () => objective.fromLogits(batch, { gradLogits: logits })),
      contender(OF_LOGITS.forward, () => logprobs(logits, { ...options, entropy: true })),
      contender(OF_LOGITS.backward, () => logprobsBackward(logits, backward)),
      contender(OF_LOGITS.read, () => benchNative.memoryTraffic({ array: data, writes: false, later: true })),
      contender(OF_LOGITS.rewrite, () =>
        benchNative.memoryTraffic({ array: data, writes: true, later: true }),
      ),
      ...prepared,
    ],
    rounds,
  );
  await torch?.release();
  return { id, shape: SHAPE, times, problems };
}

function drawn(dtype: DType): Float32Array | Uint16Array {
  const values = Float32Array.from(
    { length: ROWS * VOCABULARY },
    (_, i) => 3 * Math.sin(i * 12.9898) + Math.cos(i * 0.01),
  );
  return dtype === 'float32' ? values : toBfloat16(values);
}
