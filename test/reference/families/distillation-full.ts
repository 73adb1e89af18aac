/** The losses of distillation from a teacher's whole distribution, in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import {
  divergence,
  type Entries,
  entriesOf,
  entropy,
  forwardKl,
  jsd,
  labelLogprob,
  logSoftmax,
  product,
  reverseKl,
  teacherList,
  width,
} from './distributions.js';
import { labelled, perItem, perToken } from './sft.js';

const whole = (x: Tokens): Tokens => (x.batch.targets ? labelled(x) : x);

/** Makes the loss of TRL: a JSD of both logits at a temperature. */
const generalized =
  (beta: number, temperature: number): Formula =>
  (all, args) => {
    const x = whole(all);
    const t = option(args, 'temperature', temperature);
    const of = jsd(option(args, 'beta', beta));
    const losses = divergence(of, logSoftmax(x, 'logits', t), logSoftmax(x, 'teacherLogits', t));
    return { loss: perItem(x, losses.sum(), args), metrics: {} };
  };

const transformed = (x: Tokens, args: Args, who: 'student' | 'teacher'): Entries => {
  const scale = option(args, `${who}_logit_scale`, 1);
  const cap = option<number | null>(args, `${who}_final_logit_softcapping`, null);
  return entriesOf(x, who === 'student' ? 'logits' : 'teacherLogits')
    .map((z) => z.mul(scale))
    .map((z) => (cap === null ? z : z.div(cap).tanh().mul(cap)))
    .map((z) => z.div(option(args, 'temperature', 1)))
    .normalized();
};

const trainer: Formula = (x, args) => {
  const student = transformed(x, args, 'student');
  const losses = divergence(jsd(option(args, 'beta', 1)), student, transformed(x, args, 'teacher'));
  return {
    loss: perItem(x, losses.sum(), args),
    metrics: { entropy: perToken(x, entropy(student)) },
  };
};

/** KL(student‖teacher), the mean over all positions, masked ones too. */
const minillm: Formula = (some, args) => {
  const x = some.corrected(new Uint8Array(some.batch.actionMask.length).fill(1), undefined);
  const t = option(args, 'kd_temperature', 1);
  const losses = divergence(reverseKl, logSoftmax(x, 'logits', t), logSoftmax(x, 'teacherLogits', t));
  return { loss: perToken(x, losses), metrics: {} };
};

/** −Σ q·ln p, without the teacher's entropy. An entry that the student excludes adds nothing. */
const softCrossEntropy = (s: Entries, t: Entries): Variable =>
  t.sum(product(t.values.exp(), finite(s.at(t)))).neg();
const finite = (values: Variable): Variable => values.test(Number.isFinite).choose(values, 0);

const nll = (x: Tokens): Variable => labelLogprob(logSoftmax(x)).neg();

const openrlhf: Formula = (all, args) => {
  const x = labelled(all);
  const distilled = perToken(x, softCrossEntropy(logSoftmax(x), logSoftmax(x, 'teacherLogits')));
  const labels = perToken(x, nll(x));
  const coefficient = option(args, 'kd_coef', 0.4);
  return {
    loss: labels.mul(1 - coefficient).add(distilled.mul(coefficient)),
    metrics: { gpt_loss: labels, distil_loss: distilled },
  };
};

const skyrl: Formula = (x, args) => {
  const k = option<number | null>(args, 'mtp_loss_topk', null);
  const teacher = entriesOf(x, 'teacherLogits');
  const t = (k === null ? teacher : teacher.top(k)).normalized();
  const student = entriesOf(x, 'logits');
  const s = t.with(student.at(t)).normalized();
  const total = option(args, 'global_normalization_factor', x.index.length);
  return { loss: softCrossEntropy(s, t).sum().per(Math.max(total, 1)), metrics: {} };
};

/** Pads the shorter of two distributions with the other's logits. */
function padded(some: Entries, others: Entries): Entries {
  const isLonger = others.values.length > some.values.length;
  return isLonger ? others.with(some.at(others, Number.NaN)).map((z) => fill(z, others.values)) : some;
}
const fill = (z: Variable, by: Variable): Variable => z.test(Number.isNaN).choose(by, z);

const swift: Formula = (all, args) => {
  const x = whole(all);
  const temperature = option(args, 'temperature', 0.9);
  const cooled = (of: Entries) => of.map((z) => z.div(temperature)).normalized();
  const student = entriesOf(x, 'logits');
  const k = option<number | null>(args, 'gkd_logits_topk', null);
  const of = jsd(option(args, 'beta', 0.5));
  let losses: Variable;
  let counted = x.index.length;
  if (x.batch.teacherTopkIds || k !== null) {
    const list = x.batch.teacherTopkIds ? teacherList(x) : entriesOf(x, 'teacherLogits').top(k!);
    counted = new Set(list.tokenOf).size;
    losses = divergence(of, cooled(list.with(student.at(list))), cooled(list));
  } else {
    const teacher = entriesOf(x, 'teacherLogits');
    losses = divergence(of, cooled(padded(student, teacher)), cooled(padded(teacher, student)));
  }
  // Tokens of which the teacher says nothing do not count.
  const distilled = losses.sum().per(Math.max(counted, 1));
  const coefficient =
    option<string>(args, 'data_source', 'dataset') === 'student' ? 0 : option(args, 'sft_alpha', 0);
  if (coefficient === 0) return { loss: distilled, metrics: {} };
  return { loss: distilled.add(perToken(x, nll(x)).mul(coefficient)), metrics: {} };
};

/** The divergences of ROLL, one number per token. */
function rollDivergence(s: Entries, t: Entries, args: Args): Variable {
  const lambda = option(args, 'skew_lambda', 0.1);
  const [p, q] = [s.values.exp(), t.values.exp()];
  const mixed = (of: Variable, other: Variable) =>
    of
      .mul(1 - lambda)
      .add(other.mul(lambda))
      .log();
  const log = (probability: Variable) => probability.add(1e-9).log();
  switch (option<string>(args, 'kd_objective', 'forward_kl')) {
    case 'reverse_kl':
      return divergence(reverseKl, s, t);
    case 'skewed_forward_kl':
      return t.sum(product(q, t.values.sub(mixed(p, q))));
    case 'skewed_reverse_kl':
      return t.sum(product(p, s.values.sub(mixed(q, p))));
    case 'js_divergence': {
      const middle = log(p.add(q).div(2));
      const terms = product(q, log(q).sub(middle)).add(product(p, log(p).sub(middle)));
      return t.sum(terms).div(2);
    }
    case 'adaptive_kl':
      return adaptive(s, t, option(args, 'adaptive_kl_alpha', 0.5));
    default:
      return divergence(forwardKl, s, t);
  }
}

/** Mixes both divergences by how far apart the teacher's likely and unlikely entries are. */
function adaptive(s: Entries, t: Entries, alpha: number): Variable {
  const order = t.sorted();
  let [token, sum] = [-1, 0];
  const isTail = order.values.value.map((value, i) => {
    if (order.tokenOf[i] !== token) [token, sum] = [order.tokenOf[i]!, 0];
    sum += Math.exp(value);
    return sum <= alpha ? 1 : 0;
  });
  const tail = s.x.tape.leaf(isTail);
  const apart = s.at(order).exp().sub(order.values.exp()).abs().detach();
  const ofTail = order.sum(apart.mul(tail));
  const ofHead = order.sum(apart).sub(ofTail);
  const total = ofTail.add(ofHead);
  const share = total.test((d) => d > 0).choose(ofHead.div(total), 0.5);
  const reverse = divergence(reverseKl, s, t);
  return divergence(forwardKl, s, t).sub(reverse).mul(share).add(reverse);
}

const roll: Formula = (all, args) => {
  const x = labelled(all);
  const total = option(args, 'batch_num_tokens', Math.max(x.index.length, 1));
  const distilled = rollDistilled(
    all.batch.distillMask ? all.corrected(all.batch.distillMask, undefined) : all,
    args,
  ).per(total);
  const labels = nll(x).sum().per(total);
  const weight = option(args, 'distill_loss_weight', 0.5);
  const loss = labels.mul(1 - weight).add(distilled.mul(weight));
  return {
    loss,
    metrics: {
      'train/loss': loss,
      'train/train_distill_loss': distilled,
      'train/train_student_loss': labels,
    },
  };
};

function rollDistilled(x: Tokens, args: Args): Variable {
  const temperature = option(args, 'kd_temperature', 1);
  const size = option(args, 'target_vocab_size', width(x, 'teacherLogits'));
  const k = option<number>(args, 'logits_topk', 64);
  const teacher = entriesOf(x, 'teacherLogits').filter((_, id) => id < size);
  const list = k === 0 ? teacher : teacher.top(k);
  const t = list.map((z) => z.div(temperature * option(args, 'teacher_temperature', 1))).normalized();
  const s = list.with(entriesOf(x, 'logits').at(list).div(temperature)).normalized();
  return rollDivergence(s, t, args).sum();
}

/** The student's logits; a shorter vocabulary is padded with 0. */
const likeTeacher = (x: Tokens): Entries => {
  const student = entriesOf(x, 'logits');
  const teacher = entriesOf(x, 'teacherLogits');
  return teacher.values.length > student.values.length ? teacher.with(student.at(teacher, 0)) : student;
};

/** Makes a loss of Liger: a soft and a hard loss. */
const liger =
  (soft: (x: Tokens, args: Args) => Variable): Formula =>
  (all, args) => {
    const x = labelled(all);
    const [softLoss, hardLoss] = [perToken(x, soft(x, args)), perToken(x, nll(x))];
    const weighted = (of: Variable, name: string) => of.mul(option(args, name, 0.5));
    return {
      loss: weighted(hardLoss, 'weight_hard_loss').add(weighted(softLoss, 'weight_soft_loss')),
      metrics: { soft_loss: softLoss, hard_loss: hardLoss },
    };
  };

const ligerJsd = liger((x, args) => {
  const t = option(args, 'temperature', 1);
  const student = likeTeacher(x)
    .map((z) => z.div(t))
    .normalized();
  return divergence(jsd(option(args, 'beta', 0.5)), student, logSoftmax(x, 'teacherLogits', t));
});

const ligerCosine = liger((x, args) => {
  const [student, teacher] = [likeTeacher(x), entriesOf(x, 'teacherLogits')];
  const length = (of: Entries) => of.sum(of.values.square()).sqrt();
  const dot = teacher.sum(student.values.mul(teacher.values));
  const cosine = dot.div(length(student).mul(length(teacher)));
  return cosine
    .neg()
    .add(1)
    .mul(option(args, 'beta', 0.5));
});

/** Reduces numbers of tokens as PyTorch's KL divergence does. */
function reduced(x: Tokens, losses: Variable, entries: Entries, args: Args): Variable {
  const divisors: Record<string, number> = {
    batchmean: x.index.length,
    mean: entries.values.length,
    sum: 1,
  };
  return losses.sum().per(divisors[option(args, 'reduction', 'batchmean')] || 1);
}

const variation = (p: Variable, q: Variable): Variable => p.sub(q).abs().div(2);

const tvd: Formula = (x, args) => {
  const [p, q] = [entriesOf(x, 'probs'), entriesOf(x, 'teacherProbs')];
  return { loss: reduced(x, p.sum(variation(p.values, q.values)), p, args), metrics: {} };
};

const klDiv: Formula = (x, args) => {
  const s = logSoftmax(x, 'logits', option(args, 'temperature', 1));
  const q = entriesOf(x, 'teacherProbs');
  const log = q.values.max(option(args, 'eps', 1e-10)).log();
  return { loss: reduced(x, s.sum(product(q.values, log.sub(s.values))), s, args), metrics: {} };
};

const ceTvd: Formula = (all, args) => {
  const x = labelled(all);
  const [s, t] = [logSoftmax(x), logSoftmax(x, 'teacherLogits')];
  const [ce, distance] = [perToken(x, nll(x)), perToken(x, s.sum(variation(s.values.exp(), t.values.exp())))];
  return {
    loss: ce.mul(option(args, 'ce_weight', 1)).add(distance.mul(option(args, 'tvd_weight', 1))),
    metrics: { ce, tvd: distance },
  };
};

export const fullFormulas: Record<string, Formula> = {
  'trl/gkd': generalized(0.5, 1),
  'trl/gold': generalized(0.5, 0.9),
  'trl/distillation': trainer,
  'trl/minillm': minillm,
  'openrlhf/kd': openrlhf,
  'skyrl/draft_soft_ce': skyrl,
  'swift/gkd': swift,
  'roll/distill': roll,
  'liger/jsd': ligerJsd,
  'liger/cosine': ligerCosine,
  'liger/tvd': tvd,
  'liger/kl_div': klDiv,
  'liger/ce_tvd': ceTvd,
};
