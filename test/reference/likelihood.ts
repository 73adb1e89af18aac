/**
 * Losses that use the log-probability itself, not a ratio to the policy that sampled the tokens: opmd, sft, sft_is,
 * sft_phi and dpo.
 */
import { type Loss, option } from './batch.js';

export const opmd: Loss = {
  formula: (x, args) => {
    const loss = x.aggregate(
      x.advantages
        .neg()
        .mul(x.logprob)
        .div(1 + option(args, 'tau', 1)),
      option(args, 'loss_agg_mode', 'token-mean'),
    );
    return { loss, metrics: { opmd_loss: loss } };
  },
  written: (args) => ({ text: '-A*lp/(1 + tau)', options: { tau: option(args, 'tau', 1) } }),
};

export const sft: Loss = {
  formula: (x, args) => {
    const loss = x.aggregate(x.logprob.neg(), option(args, 'loss_agg_mode', 'token-mean'));
    return { loss, metrics: { sft_loss: loss } };
  },
  written: () => ({ text: '-lp' }),
};

export const sftIs: Loss = {
  formula: (x, args) => {
    const { logprob } = x;
    const loss = x.aggregate(
      logprob.neg().mul(logprob.exp().detach()),
      option(args, 'loss_agg_mode', 'token-mean'),
    );
    return { loss, metrics: { sft_is_loss: loss } };
  },
  written: () => ({ text: '-lp*sg(exp(lp))' }),
};

export const sftPhi: Loss = {
  formula: (x, args) => {
    const cutoff = option(args, 'cutoff_prob', 1);
    const { logprob } = x;
    const p = logprob.exp().detach();
    const capped = cutoff < 1 ? logprob.clip(Number.NEGATIVE_INFINITY, Math.log(cutoff)) : logprob;
    const loss = x.aggregate(
      capped.neg().mul(p.mul(p.neg().add(1))),
      option(args, 'loss_agg_mode', 'token-mean'),
    );
    return { loss, metrics: { sft_phi_loss: loss } };
  },
  written: (args) => {
    const cutoff = option(args, 'cutoff_prob', 1);
    const logprob = cutoff < 1 ? 'min(lp, log(cutoff))' : 'lp';
    return { text: `-${logprob}*sg(exp(lp)*(1 - exp(lp)))`, options: { cutoff } };
  },
};

export const dpo: Loss = {
  formula: (x, args) => {
    const beta = option(args, 'beta', 0.1);
    const smoothing = option(args, 'label_smoothing', 0);
    const perRow = x.rowSum(x.logprob.sub(x.refLogprob));
    const rows = x.rows.map((_, row) => row);
    const even = perRow.gather(rows.filter((row) => row % 2 === 0));
    const odd = perRow.gather(rows.filter((row) => row % 2 === 1));
    // In the DPO paper, rows 2i and 2i + 1 are a pair. In Trinity-RFT the whole batch is a single pair: the sum of the
    // even rows and the sum of the odd rows.
    const pairwise = option(args, 'pairwise', true);
    const chosen = pairwise ? even : even.sum();
    const rejected = pairwise ? odd : odd.sum();
    const pairs = chosen.length;

    const h = chosen.sub(rejected).mul(beta);
    const perPair = h
      .logSigmoid()
      .mul(-(1 - smoothing))
      .add(h.neg().logSigmoid().mul(-smoothing));
    const loss = perPair.sum().div(pairs);
    return {
      loss,
      metrics: {
        chosen_reward: chosen.sum().mul(beta / pairs),
        rejected_reward: rejected.sum().mul(beta / pairs),
        accuracy_mean: chosen
          .test((c, i) => c > rejected.value[i]!)
          .sum()
          .div(pairs),
        dpo_loss: loss,
      },
    };
  },
  notWritten: 'compares the rows of a pair',
};
