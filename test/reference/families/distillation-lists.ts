/** The losses of distillation from the teacher's likeliest tokens, in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, Tokens } from '../batch.js';
import { extreme, plainMean, prefixed } from '../frameworks/shared.js';
import { aggregate } from '../frameworks/verl-aggregate.js';
import { vanilla } from '../frameworks/verl-losses.js';
import {
  divergence,
  Entries,
  entropy,
  forwardKl,
  jsd,
  labelLogprob,
  labels,
  listDivergence,
  listEntropy,
  logSoftmax,
  product,
  reverseKl,
  scattered,
  teacherList,
  width,
} from './distributions.js';
import { labelled, perItem, perToken } from './sft.js';

/** verl's forward KL over the teacher's list, with a floor of both log-probabilities. */
function verlList(x: Tokens, args: Args) {
  const [least, isMegatron] = [
    'log_prob_min_clamp' in args ? (args.log_prob_min_clamp as number | null) : -10,
    args.strategy === 'megatron',
  ];
  const above = (values: Variable) =>
    least === null ? values : values.test((v) => (isMegatron ? v > least : v >= least)).choose(values, least);
  const [s, list] = [logSoftmax(x), teacherList(x)];
  const student = list.with(s.at(list));
  const [bounded, t] = [student.map(above), list.map(above)];
  const terms = product(t.values.exp(), t.values.sub(bounded.values));
  const sum = t.sum(terms);
  const divergences = sum.test((d) => d > 0).choose(sum, 0);
  const mass = (of: Entries) => of.sum(of.values.exp());

  const own = s.top(width(x, 'teacherTopkIds'));
  const isShared = own.with(own.values.test(() => true)).at(list, 0);
  const shared = list.sum(isShared);
  const hasShared = shared.test((n) => n > 0);
  const advantages = list.sum(product(isShared, terms)).div(shared.max(1));
  const range = (name: string, of: Variable) => ({
    [name]: plainMean(of),
    [`${name}_min`]: extreme(of, -1),
    [`${name}_max`]: extreme(of, 1),
  });
  return {
    divergences,
    metrics: {
      ...range('student_mass', mass(isMegatron ? bounded : student)),
      ...range('teacher_mass', mass(isMegatron ? t : list)),
      overlap_ratio: plainMean(shared).div(width(x, 'teacherTopkIds') || 1),
      overlap_token_advantage: advantages
        .sum()
        .div(-Math.max([...hasShared.value].filter(Boolean).length, 1)),
      loss_min: extreme(divergences, -1),
      loss_max: extreme(divergences, 1),
    },
  };
}

/** The batch as a policy loss sees it. */
function asPolicy(x: Tokens, args: Args, advantages?: Variable) {
  const columns = advantages ? [['advantages', scattered(x, advantages)] as const] : [];
  const leaves = new Map([['logprob', scattered(x, labelLogprob(logSoftmax(x)))] as const, ...columns]);
  const batch = advantages ? { ...x.batch, advantages: advantages.value } : x.batch;
  return vanilla(new Tokens(x.tape, batch, x.rows, leaves), args);
}

const verl: Formula = (x, args) => {
  const { divergences, metrics } = verlList(x, args);
  const most = 'loss_max_clamp' in args ? (args.loss_max_clamp as number | null) : 10;
  const limited = most === null ? divergences : divergences.clip(-most, most);
  const isReward = option(args, 'use_policy_gradient', false);
  const policy = isReward ? asPolicy(x, { ...args, clip_ratio_c: 3 }, limited.detach().neg()) : undefined;
  const distilled = policy?.loss ?? aggregate(x, limited, args);
  const { pg_loss: _, ...ofPolicy } = policy?.metrics ?? {};
  const all = prefixed('distillation/', { ...metrics, ...ofPolicy, loss: distilled });
  if (!option(args, 'use_task_rewards', false)) return { loss: distilled, metrics: all };
  const task = asPolicy(x, args);
  return {
    loss: task.loss.add(distilled.mul(option(args, 'distillation_loss_coef', 1))),
    metrics: { ...all, ...prefixed('actor/', { ...task.metrics, pg_loss: task.loss }) },
  };
};

/** Returns the student's terms outside the list, where the teacher's log-probability is −100. */
function outside(s: Entries, t: Entries): Variable {
  const inside = s.at(t);
  const terms = (values: Variable) => product(values.exp(), values);
  const rest = t.sum(inside.exp()).neg().add(1);
  return s
    .sum(terms(s.values))
    .sub(t.sum(terms(inside)))
    .add(rest.mul(100));
}

const nemo: Formula = (all, args) => {
  const { sampleMask } = all.batch;
  const x = all.of(all.rows.filter((b) => (sampleMask?.[b] ?? 1) !== 0));
  const [t, s] = [teacherList(x).normalized(), logSoftmax(x)];
  const isZeroOutside = option(args, 'zero_outside_topk', false);
  const student = t.with(s.at(t));
  const own = isZeroOutside ? student : student.normalized();
  const reverse = divergence(reverseKl, own, t);
  const terms = {
    forward: divergence(forwardKl, own, t),
    reverse: isZeroOutside ? reverse.add(outside(s, t)) : reverse,
  };
  const kind = option<'forward' | 'reverse' | 'mixed'>(args, 'kl_type', 'mixed');
  const share = option(args, 'mixed_kl_weight', 0.5);
  const losses = kind === 'mixed' ? terms.forward.mul(share).add(terms.reverse.mul(1 - share)) : terms[kind];
  const loss = losses.sum().per(option(args, 'global_valid_toks', x.index.length) + 1e-8);
  return { loss, metrics: { loss, num_valid_samples: x.index.length > 0 ? all.rows.length : 0 } };
};

/** An entry per token: its label. */
function labelEntries(x: Tokens, values: Variable): Entries {
  const ids = labels(x);
  return new Entries(x, [...ids.keys()], ids, values);
}

/** Joins the entries of two lists, without those of the second that are in the first. */
function joined(first: Entries, second: Entries): Entries {
  const isIn = first.with(first.values.test(() => true)).at(second, 0);
  const places = [...second.ids.keys()].filter((i) => !isIn.value[i]);
  const { x } = first;
  return new Entries(
    x,
    [...first.tokenOf, ...places.map((i) => second.tokenOf[i]!)],
    [...first.ids, ...places.map((i) => second.ids[i]!)],
    x.tape.leaf([...first.values.value, ...places.map((i) => second.values.value[i]!)]),
  );
}

/** The entries over which the losses of TRL's servers compare: the teacher's list, the sampled token, or its best too. */
const supportOf = (beta: number, list: Entries, best: Entries, sampled: Entries): Entries =>
  beta === 0 ? list : beta === 1 ? sampled : joined(best, sampled);

const server: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 1);
  const list = teacherList(x).top(option(args, 'loss_top_k', 1));
  const sampled = () =>
    labelEntries(x, x.tape.leaf(x.index.map((at) => x.batch.teacherLogprob![at]!))).filter(
      (value) => value > Number.NEGATIVE_INFINITY,
    );
  const support = beta === 0 ? list : supportOf(beta, list, list.top(1), sampled());
  const s = logSoftmax(x, 'logits', option(args, 'temperature', 1));
  const losses = listDivergence(jsd(beta), s, support, option(args, 'loss_add_tail', true));
  return { loss: perToken(x, losses), metrics: {} };
};

const asynchronous: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0);
  const list = teacherList(x);
  const ids = labels(x);
  const sampled = list.filter((_, id, token) => id === ids[token]);
  const support = supportOf(beta, list, list.top(1), sampled);
  const tail = option(args, 'add_tail_bucket', true);
  const s = logSoftmax(x, 'logits', option(args, 'teacher_temperature', 1));
  const losses = listDivergence(jsd(beta), s, support, tail);
  const tokens = new Set(support.tokenOf);
  const isSupported = x.tape.leaf(x.index.map((_, token) => (tokens.has(token) ? 1 : 0)));
  const ofSupported = (values: Variable) => values.mul(isSupported).sum().per(Math.max(tokens.size, 1));
  return {
    loss: losses.sum().per(option(args, 'global_n_tokens', Math.max(x.index.length, 1))),
    metrics: {
      jsd: ofSupported(losses),
      entropy: ofSupported(entropy(s)),
      teacher_entropy: ofSupported(listEntropy(support, tail)),
    },
  };
};

const iwOpd: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 1);
  const temperature = option(args, 'temperature', 1);
  const [s, t] = [logSoftmax(x, 'logits', temperature), logSoftmax(x, 'teacherLogits', temperature)];
  const k = option(args, 'loss_top_k', 1);
  const tail = option(args, 'loss_add_tail', true);
  const isFull = k <= 0 || k >= width(x, 'logits');
  const of = jsd(beta);
  const losses = isFull ? divergence(of, s, t) : listDivergence(of, s, chosen(), tail);
  return { loss: perItem(x, losses.sum(), args), metrics: {} };

  function chosen(): Entries {
    const ofTeacher = (list: Entries) => list.with(t.at(list));
    if (beta === 0) return t.top(k);
    if (k > 1) return beta === 1 ? ofTeacher(s.top(k)) : joined(t.top(k), ofTeacher(s.top(k)));
    const isArgmax = (args.reverse_kl_top_1_mode ?? args.reverse_kl_top1_mode) === 'argmax';
    const own = ofTeacher(isArgmax ? s.top(1) : labelEntries(x, x.tape.leaf(x.index.map(() => 0))));
    return supportOf(beta, own, t.top(1), own);
  }
};

const axolotl: Formula = (all, args) => {
  const x = labelled(all);
  const temperature = args.kd_temperature as number;
  const isFused = option(args, 'fused', true);
  const s = logSoftmax(x, 'logits', temperature);
  const t = teacherList(x);
  const listed = t.with(s.at(t));
  const student = isFused && option(args, 'kd_normalize_topk', false) ? listed.normalized() : listed;
  const losses = divergence(isFused ? jsd(option(args, 'kd_beta', 0)) : forwardKl, student, t).sum();
  const divided = (sum: Variable, count: number) =>
    sum.per(option(args, 'num_items_in_batch', Math.max(count, 1)));
  if (!isFused) return { loss: divided(losses, t.values.length), metrics: {} };
  // The value is multiplied by the square of the temperature, and the gradient is not.
  const distilled = losses.add(losses.detach().mul(temperature ** 2 - 1)).mul(args.kd_alpha as number);
  const ce = labelLogprob(logSoftmax(x))
    .sum()
    .mul(-(args.kd_ce_alpha as number));
  return { loss: divided(distilled.add(ce), x.index.length), metrics: {} };
};

/** The tokens of each row after the first ones that its mask chooses. */
function withoutFirst(x: Tokens, count: number): Tokens {
  const seen = x.rows.map(() => 0);
  const actionMask = new Uint8Array(x.batch.actionMask.length);
  x.index.forEach((at, token) => {
    if (seen[x.rowOf[token]!]!++ >= count) actionMask[at] = 1;
  });
  return x.corrected(actionMask, undefined);
}

const tinker: Formula = (all, args) => {
  const x = withoutFirst(all, option(args, 'skip_first_n_tokens', 3));
  const size = option(args, 'vocab_size', Number.POSITIVE_INFINITY);
  const t = teacherList(x)
    .top(option(args, 'topk', 20))
    .filter((_, id) => id < size)
    .normalized();
  const s = logSoftmax(x);
  const ofTeacher = entropy(t).sum();
  if (!option(args, 'reverse', false)) {
    const count = all.index.length;
    return {
      loss: t
        .sum(product(t.values.exp(), s.at(t)))
        .sum()
        .neg(),
      metrics: {
        'sdft/mean_teacher_entropy': ofTeacher.per(Math.max(count, 1)),
        'sdft/total_completion_tokens': count,
      },
    };
  }
  const student = t.with(s.at(t)).normalized();
  const p = student.values.exp();
  const positions = new Set(t.tokenOf).size;
  const perPosition = (sum: Variable) => sum.per(Math.max(positions, 1));
  const loss = t.sum(product(p, student.values.sub(t.values).detach())).sum();
  return {
    loss,
    metrics: {
      'sdft/reverse_kl_loss': loss,
      'sdft/reverse_kl_mean': perPosition(loss),
      'sdft/student_entropy_mean': perPosition(entropy(student).sum()),
      'sdft/reverse_kl_positions': positions,
      'sdft/mean_teacher_entropy': perPosition(ofTeacher),
    },
  };
};

export const listFormulas: Record<string, Formula> = {
  'verl/distill_topk': verl,
  'nemo/distill': nemo,
  'trl/server_distill': server,
  'trl/async_distillation': asynchronous,
  'trl/iw_opd_jsd': iwOpd,
  'axolotl/kd': axolotl,
  'tinker/sdft': tinker,
};
