/** The losses of supervised fine-tuning and of process rewards, from logits, in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import {
  divergence,
  type Entries,
  entriesOf,
  entropy,
  forwardKl,
  labelLogprob,
  labels,
  logSoftmax,
  product,
} from './distributions.js';

/** The tokens that have a label. */
export function labelled(x: Tokens): Tokens {
  const { actionMask, targets } = x.batch;
  return x.corrected(
    Array.from(actionMask, (flag, at) => (flag && targets![at] !== -100 ? 1 : 0)),
    undefined,
  );
}

/** Divides by num_items_in_batch, or by the number of tokens. */
export const perItem = (x: Tokens, sum: Variable, args: Args): Variable =>
  sum.per(option(args, 'num_items_in_batch', Math.max(x.index.length, 1)));

export const perToken = (x: Tokens, values: Variable): Variable =>
  values.sum().per(Math.max(x.index.length, 1));

/** Whether each token's largest entry is its label. The first one of equal entries counts. */
const hits = (s: Entries): Variable => {
  const best = s.top(1).ids;
  return s.x.tape.leaf(labels(s.x).map((id, token) => (best[token] === id ? 1 : 0)));
};

const nll = (s: Entries): Variable => labelLogprob(s).neg();
/** The loss of dynamic fine-tuning: the NLL times the probability, which is a constant. */
const dft = (s: Entries): Variable => nll(s).mul(labelLogprob(s).detach().exp());

/** (1 − ε)·NLL + ε·(the mean over the vocabulary of −ln p). */
function smoothed(s: Entries, epsilon: number): Variable {
  if (epsilon === 0) return nll(s);
  const share = s.x.index.length / (s.values.length || 1);
  return nll(s)
    .mul(1 - epsilon)
    .sub(s.sum(s.values).mul(epsilon * share));
}

/** Makes a loss that is a sum over labels, divided by num_items_in_batch. */
const summed =
  (ofTokens: (s: Entries, args: Args) => Variable): Formula =>
  (all, args) => {
    const x = labelled(all);
    return { loss: perItem(x, ofTokens(logSoftmax(x), args).sum(), args), metrics: {} };
  };

const trl: Formula = (all, args) => {
  const x = labelled(all);
  const s = logSoftmax(x);
  const isDft = option<string>(args, 'loss_type', 'nll') === 'dft';
  const losses = isDft ? dft(s) : smoothed(s, option(args, 'label_smoothing_factor', 0));
  return {
    loss: perItem(x, losses.sum(), args),
    metrics: { entropy: perToken(x, entropy(s)), mean_token_accuracy: perToken(x, hits(s)) },
  };
};

const liger: Formula = (all, args) => {
  const x = labelled(all);
  const cap = option<number | null>(args, 'softcap', null);
  const logits = entriesOf(x, 'logits').map((z) => (cap === null ? z : z.div(cap).tanh().mul(cap)));
  const s = logits.normalized();
  const zLosses = logits
    .logSumExp()
    .square()
    .mul(option(args, 'lse_square_scale', 0));
  const scale = option(args, 'use_token_scaling', false) ? labelLogprob(s).detach().exp() : x.tape.leaf([1]);
  const reduced = (values: Variable) => {
    const sum = values.mul(scale).sum();
    return option<string>(args, 'reduction', 'mean') === 'sum' ? sum : sum.per(Math.max(x.index.length, 1));
  };
  return {
    loss: reduced(smoothed(s, option(args, 'label_smoothing', 0)).add(zLosses)),
    metrics: { z_loss: reduced(zLosses), token_accuracy: perToken(x, hits(s)) },
  };
};

const asft: Formula = (all, args) => {
  const x = labelled(all);
  const s = logSoftmax(x);
  const kl = divergence(forwardKl, s, logSoftmax(x, 'refLogits'));
  return { loss: perToken(x, dft(s).add(kl.mul(option(args, 'asft_alpha', 0.1)))), metrics: {} };
};

const ofLlamaFactory = summed((s, args) => {
  const h = entropy(s.top(20).normalized()).detach().div(3);
  return nll(s).mul(h.pow(option(args, 'eaft_alpha', 1)));
});

const ofAxolotl = summed((s, args) => {
  const list = s.top(option(args, 'eaft_k', 20)).normalized();
  const p = list.values.exp();
  const h = list.sum(product(p, p.add(1e-10).log())).neg();
  const positive = h.test((value) => value > 0).choose(h, 0);
  return nll(s).mul(positive.detach().pow(option(args, 'eaft_alpha', 1)));
});

const swift: Formula = (all, args) => {
  const x = labelled(all);
  const s = logSoftmax(x);
  const losses = option(args, 'enable_dft_loss', false) ? dft(s) : nll(s);
  const weighted = x.batch.tokenWeights ? product(x.constant('tokenWeights'), losses) : losses;
  return { loss: perItem(x, weighted.sum(), args), metrics: {} };
};

const prm: Formula = (all) => {
  const x = labelled(all);
  const s = logSoftmax(x);
  return { loss: perToken(x, nll(s)), metrics: { accuracy: perToken(x, hits(s)) } };
};

/** Cross-entropy over the vocabulary, or over reward_token_ids, at the tokens that the mask chooses. */
const openrlhf: Formula = (x, args) => {
  const ids = option<number[] | null>(args, 'reward_token_ids', null);
  const over = (at: Tokens) => {
    const all = entriesOf(at, 'logits');
    if (!ids) return all.normalized();
    // In the order of the list, which decides which one of equal logits is chosen.
    const rank = (place: number) => all.tokenOf[place]! * ids.length + ids.indexOf(all.ids[place]!);
    const places = [...all.ids.keys()].filter((place) => ids.includes(all.ids[place]!));
    return all.take(places.toSorted((a, b) => rank(a) - rank(b))).normalized();
  };
  if (x.batch.targetProbs) return soft(x, over(x), ids!);
  const of = labelled(x);
  const s = over(of);
  return {
    loss: perToken(of, nll(s)),
    metrics: { acc: hits(s).sum().per(Math.max(x.index.length, 1)) },
  };
};

function soft(x: Tokens, s: Entries, [first, second]: number[]): Outcome {
  const right = x.index.map((at) => x.batch.targetProbs![at]!);
  const share = s.ids.map((id, i) => (id === first ? right[s.tokenOf[i]!]! : 1 - right[s.tokenOf[i]!]!));
  const losses = s.sum(product(x.tape.leaf(share), s.values)).neg();
  const best = s.top(1).ids;
  const isHit = right.map((p, token) => Number(best[token] === (p >= 0.5 ? first : second)));
  return {
    loss: perToken(x, losses),
    metrics: { acc: perToken(x, x.tape.leaf(isHit)) },
  };
}

export const sftFormulas: Record<string, Formula> = {
  'llamafactory/dft': summed(dft),
  'axolotl/dft': summed(dft),
  'trl/sft': trl,
  'llamafactory/asft': asft,
  'llamafactory/eaft': ofLlamaFactory,
  'axolotl/eaft': ofAxolotl,
  'hf/label_smoothing': summed((s, args) => smoothed(s, option(args, 'label_smoothing_factor', 0))),
  'liger/cross_entropy': liger,
  'swift/sft': swift,
  'trl/prm': prm,
  'openrlhf/prm': openrlhf,
};
