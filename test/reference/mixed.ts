/** Losses on batches in which the policy wrote some rows and an expert wrote the others: mix and mix_chord. */
import type { Variable } from './autograd.js';
import { type Args, type Loss, type Outcome, option, rowsOfKind, type Tokens } from './batch.js';
import { ppo } from './clipped.js';
import { sft, sftPhi } from './likelihood.js';

function mixture(x: Tokens, args: Args, mu: number, expert: Loss): Outcome {
  const miniBatch = option(args, 'ppo_mini_batch_size', 1);
  const gpus = option(args, 'ngpus_trainer', 1);
  const scale = option(args, 'use_dynamic_bsz', false)
    ? Math.floor(miniBatch / gpus) / x.batch.rows
    : Math.floor(miniBatch / option(args, 'ppo_micro_batch_size_per_gpu', 1));
  const mode = option(args, 'loss_agg_mode', 'token-mean');

  const kinds = [
    {
      prefix: 'usual',
      rows: rowsOfKind(x.batch, false),
      share: 1 - mu,
      expected: Math.floor(option(args, 'train_batch_size_usual', gpus) / gpus),
      formula: ppo.formula,
      mode: option(args, 'grpo_loss_agg_mode', mode),
    },
    {
      prefix: 'expert',
      rows: rowsOfKind(x.batch, true),
      share: mu,
      expected: Math.floor(option(args, 'train_batch_size_expert', gpus) / gpus),
      formula: expert.formula,
      mode: option(args, 'sft_loss_agg_mode', mode),
    },
  ];
  let loss = x.tape.leaf([0]);
  const metrics: Record<string, Variable | number> = {};
  for (const kind of kinds) {
    if (kind.rows.length === 0) continue;
    const weight = (kind.rows.length * scale) / kind.expected;
    const part = kind.formula(x.of(kind.rows), { ...args, loss_agg_mode: kind.mode });
    loss = loss.add(part.loss.mul(kind.share * weight));
    for (const [name, value] of Object.entries(part.metrics)) {
      metrics[`${kind.prefix}/${name}`] = typeof value === 'number' ? value * weight : value.mul(weight);
    }
  }
  return { loss, metrics: { ...metrics, loss } };
}

export const mix: Loss = {
  formula: (x, args) => mixture(x, args, option(args, 'mu', 0.1), sft),
  notWritten: 'reads expert_mask, and weights the experts’ rows by the sizes of batches',
};

function muSchedule(step: number, warmup: number, decay: number, peak: number, valley: number): number {
  if (step < warmup) return (step / warmup) * peak;
  if (step >= warmup + decay) return valley;
  return (peak - valley) * 0.5 * (1 + Math.cos((Math.PI * (step - warmup)) / decay)) + valley;
}

export const mixChord: Loss = {
  formula: (x, args) => {
    const mu = muSchedule(
      x.batch.step![0]!,
      option(args, 'mu_warmup_steps', 0),
      option(args, 'mu_decay_steps', 0),
      option(args, 'mu_peak', 0.1),
      option(args, 'mu_valley', 0.1),
    );
    // mix_chord has no argument cutoff_prob, so the loss on the expert's rows uses the default.
    const expert = option(args, 'enable_phi_function', true) ? sftPhi : sft;
    const { loss, metrics } = mixture(x, args, mu, expert);
    return { loss, metrics: { ...metrics, mu } };
  },
  notWritten: 'reads expert_mask and the step of the training',
};
