// Plain TypeScript as a peer, written as someone who knows V8 would write it. It uses typed arrays, accumulates sums in
// float64 and allocates nothing. One loop counts the unmasked tokens, and a second one computes the results. It runs on
// one thread.
import type { Inputs } from '../lib/batch.js';
import { syncContender } from '../lib/race.js';
import { type Gradients, gradientsOf, type Outcome, type Work } from '../lib/works.js';
import type { Peer, Prepared } from './peer.js';

const NAME = 'plain TypeScript';

const LOW = 0.8;
const HIGH = 1.2;
const DUAL_CLIP = 3;
const KL_COEF = 0.001;

type Loop = (inputs: Inputs, gradients: Gradients, args: Record<string, number>) => Outcome;

function unmaskedTokens(mask: Uint8Array, begin = 0, end = mask.length): number {
  let count = 0;
  for (let i = begin; i < end; i++) if (mask[i] !== 0) count++;
  return count;
}

function ppo(inputs: Inputs, { grad }: Gradients): Outcome {
  const { logprob, oldLogprob, advantages, actionMask } = inputs;
  const weight = 1 / (unmaskedTokens(actionMask) + 1e-8);
  let loss = 0;
  let clipped = 0;
  let clippedLower = 0;
  let kl = 0;
  for (let i = 0; i < logprob.length; i++) {
    if (actionMask[i] === 0) {
      if (grad) grad[i] = 0;
      continue;
    }
    const a = advantages[i]!;
    const difference = logprob[i]! - oldLogprob[i]!;
    const d = difference < -20 ? -20 : difference > 20 ? 20 : difference;
    const ratio = Math.exp(d);
    const free = -a * ratio;
    const bounded = -a * (ratio < LOW ? LOW : ratio > HIGH ? HIGH : ratio);
    kl -= d;
    let value = free;
    let slope = d === difference ? free : 0;
    if (bounded > free) {
      value = bounded;
      slope = 0;
      clipped++;
    }
    if (a < 0 && value > -a * DUAL_CLIP) {
      value = -a * DUAL_CLIP;
      slope = 0;
      clippedLower++;
    }
    loss += value;
    if (grad) grad[i] = slope * weight;
  }
  loss *= weight;
  const metrics = {
    pg_clipfrac: clipped * weight,
    pg_clipfrac_lower: clippedLower * weight,
    ppo_kl: kl * weight,
    pg_loss: loss,
  };
  return { loss, metrics };
}

function gspo(inputs: Inputs, { grad }: Gradients): Outcome {
  const { logprob, oldLogprob, advantages, actionMask, shape } = inputs;
  const [rows, columns] = shape;
  let loss = 0;
  let clipped = 0;
  let kl = 0;
  let sequenceKl = 0;
  let tokens = 0;
  for (let begin = 0; begin < logprob.length; begin += columns) {
    const end = begin + columns;
    let sum = 0;
    let count = 0;
    for (let i = begin; i < end; i++) {
      if (actionMask[i] === 0) continue;
      sum += logprob[i]! - oldLogprob[i]!;
      count++;
    }
    const mean = sum / (count + 1e-8);
    const ratio = Math.exp(mean);
    const bounded = Math.min(Math.max(ratio, 1 - 0.0003), 1 + 0.0004);
    const weight = 1 / (rows * (count + 1e-8));
    let rowLoss = 0;
    for (let i = begin; i < end; i++) {
      if (actionMask[i] === 0) {
        if (grad) grad[i] = 0;
        continue;
      }
      const value = -advantages[i]! * ratio;
      const other = -advantages[i]! * bounded;
      const isClipped = other > value;
      rowLoss += isClipped ? other : value;
      if (isClipped) clipped++;
      if (grad) grad[i] = isClipped ? 0 : value * weight;
    }
    loss += rowLoss * weight;
    kl -= sum;
    sequenceKl -= mean;
    tokens += count;
  }
  const metrics = {
    pg_clipfrac: clipped / (tokens + 1e-8),
    ppo_kl: kl / (tokens + 1e-8),
    ppo_kl_seq: sequenceKl / rows,
    pg_loss: loss,
  };
  return { loss, metrics };
}

function sft({ logprob, actionMask }: Inputs, { grad }: Gradients): Outcome {
  const weight = 1 / (unmaskedTokens(actionMask) + 1e-8);
  let sum = 0;
  for (let i = 0; i < logprob.length; i++) {
    const masked = actionMask[i] === 0;
    if (!masked) sum -= logprob[i]!;
    if (grad) grad[i] = masked ? 0 : -weight;
  }
  const loss = sum * weight;
  return { loss, metrics: { sft_loss: loss } };
}

function k3({ logprob, refLogprob, actionMask }: Inputs, { grad }: Gradients): Outcome {
  const weight = 1 / (unmaskedTokens(actionMask) + 1e-8);
  let sum = 0;
  for (let i = 0; i < logprob.length; i++) {
    if (actionMask[i] === 0) {
      if (grad) grad[i] = 0;
      continue;
    }
    const d = refLogprob[i]! - logprob[i]!;
    const rest = Math.expm1(d);
    sum += rest - d;
    if (grad) grad[i] = -rest * weight * KL_COEF;
  }
  const kl = sum * weight;
  return { loss: KL_COEF * kl, metrics: { kl_loss: kl, kl_coef: KL_COEF } };
}

// Computes GRPO's objective: first PPO's loop, then a second loop for the KL and entropy terms.
function grpo(inputs: Inputs, gradients: Gradients, { entropy_coef }: Record<string, number>): Outcome {
  const { logprob, refLogprob, entropy, actionMask } = inputs;
  const { grad, gradEntropy } = gradients;
  const policy = ppo(inputs, gradients);
  const weight = 1 / (unmaskedTokens(actionMask) + 1e-8);
  const coef = entropy_coef!;
  let kl = 0;
  let entropySum = 0;
  for (let i = 0; i < logprob.length; i++) {
    if (actionMask[i] === 0) {
      if (gradEntropy) gradEntropy[i] = 0;
      continue;
    }
    const d = refLogprob[i]! - logprob[i]!;
    kl += 0.5 * d * d;
    entropySum += entropy[i]!;
    if (grad) grad[i]! -= d * weight * KL_COEF;
    if (gradEntropy) gradEntropy[i] = -coef * weight;
  }
  const klLoss = kl * weight;
  const entropyLoss = entropySum * weight;
  const metrics = { ...policy.metrics, kl_loss: klLoss, kl_coef: KL_COEF, entropy_loss: entropyLoss };
  return { loss: policy.loss - coef * entropyLoss + KL_COEF * klLoss, metrics };
}

const LOOPS: Record<string, Loop> = { ppo, gspo, sft, 'kl k3': k3, 'grpo objective': grpo };

/** Returns the peer that is written in plain TypeScript. It is always available. */
export async function plain(): Promise<Peer> {
  let inputs: Inputs;
  return {
    name: NAME,
    version: `Node ${process.versions.node}`,
    covers: ({ id }) => LOOPS[id] !== undefined,
    async load(given) {
      inputs = given;
    },
    async prepare(work: Work, gradient: boolean): Promise<Prepared> {
      const loop = LOOPS[work.id]!;
      const gradients = gradient ? gradientsOf(work, inputs.logprob.length) : {};
      const run = () => loop(inputs, gradients, work.args);
      return {
        ...syncContender(NAME, run),
        evaluate: async () => ({ ...run(), ...gradients }),
        release: async () => {},
      };
    },
    async end() {},
  };
}
