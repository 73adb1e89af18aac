/** The losses of self-distillation, and those across vocabularies, in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, Tokens } from '../batch.js';
import { meanOfRow } from '../frameworks/shared.js';
import { trlFormulas } from '../trl.js';
import {
  divergence,
  Entries,
  jsd,
  labelLogprob,
  listDivergence,
  logSoftmax,
  product,
  scattered,
  teacherList,
  width,
} from './distributions.js';
import { labelled, perToken } from './sft.js';

/** The divergence of each token in one of the modes of TRL's self-distillation. */
function ofMode(x: Tokens, s: Entries, args: Args): Variable {
  const temperature = option(args, 'temperature', 1);
  const mode = option<string>(args, 'distillation_mode', 'topk_logits');
  const isServer = option(args, 'use_teacher_server', false);
  const t = isServer ? undefined : logSoftmax(x, 'teacherLogits', temperature);
  if (mode === 'sampled_token') {
    const [own, teacher] = [labelLogprob(s), t ? labelLogprob(t) : served(x)];
    return own.sub(teacher).detach().mul(own);
  }
  const of = jsd(option(args, 'distillation_alpha', 0.5));
  if (mode === 'full_logits') return divergence(of, s, t!);
  const k = option(args, 'distillation_topk', 100);
  const top = s.top(k);
  const list = t ? top.with(t.at(top)) : teacherList(x).top(k);
  return listDivergence(of, s, list, option(args, 'distillation_add_tail', false));
}

const served = (x: Tokens): Variable => x.constant('teacherLogprob');

/** The distillation term: the mean over rows of means over tokens, with truncated importance weights. */
function selfDistilled(all: Tokens, args: Args, rows?: ArrayLike<number>) {
  const { actionMask, columns } = all.batch;
  const first = option(args, 'num_loss_tokens_to_skip', 0);
  const x = all.corrected(
    Array.from(actionMask, (flag, at) =>
      flag && at % columns >= first && (rows?.[Math.floor(at / columns)] ?? 1) ? 1 : 0,
    ),
    undefined,
  );
  const s = logSoftmax(x, 'logits', option(args, 'temperature', 1));
  const clip = 'distillation_is_clip' in args ? (args.distillation_is_clip as number | null) : 2;
  const losses = ofMode(x, s, args);
  const isWeighted = clip !== null && x.batch.oldLogprob !== undefined;
  const weights = isWeighted
    ? labelLogprob(s).sub(x.constant('oldLogprob')).clip(-20, 20).exp().min(clip).detach()
    : x.tape.leaf(x.index.map(() => 1));
  const weighted = product(weights, losses);
  const metrics: Outcome['metrics'] = { 'self_distillation/distillation_loss': perToken(x, weighted) };
  if (option(args, 'use_teacher_server', false))
    metrics['self_distillation/server_logprob_abs_diff'] = perToken(x, labelLogprob(s).sub(served(x)).abs());
  return { loss: x.meanOverRows(meanOfRow(x, weighted)), metrics };
}

const sdpo: Formula = (x, args) => {
  const own = { distillation_alpha: 1, distillation_mode: 'sampled_token', ...args };
  const { loss, metrics } = selfDistilled(x, own, x.batch.selfDistillationMask);
  const weight = option(args, 'distillation_weight', 1);
  if (weight === 1) return { loss, metrics };
  const s = logSoftmax(x, 'logits', option(args, 'temperature', 1));
  const kind = option<string>(args, 'loss_type', 'dapo');
  const { epsilon, epsilon_high, importance_sampling_level, max_completion_length } = args;
  const policy = trlFormulas[`trl/${kind === 'dapo' ? 'bnpo' : kind}`]!(
    new Tokens(x.tape, x.batch, x.rows, new Map([['logprob', scattered(x, labelLogprob(s))]])),
    { epsilon, epsilon_high, importance_sampling_level, max_completion_length },
  );
  return {
    loss: policy.loss.mul(1 - weight).add(loss.mul(weight)),
    metrics: { ...metrics, 'self_distillation/policy_loss': policy.loss },
  };
};

/**
 * The tokens that GOLD compares: as many of each row as both have, without the last ones, from the second one on if the
 * strategy is "observed". Masked tokens are not read.
 */
function compared(x: Tokens, args: Args) {
  const { columns, actionMask, teacherActionMask = actionMask } = x.batch;
  const first = option(args, 'uld_token_merge_strategy', 'observed') === 'observed' ? 1 : 0;
  const [student, teacher]: [number[], number[]] = [[], []];
  const rowOf: number[] = [];
  for (const [row, b] of x.rows.entries()) {
    const positions = Array.from({ length: columns }, (_, t) => b * columns + t);
    const [own, others] = [
      positions.filter((at) => actionMask[at]),
      positions.filter((at) => teacherActionMask[at]),
    ];
    const skipped = (name: string) => Number(option(args, `uld_skip_${name}_eos`, true));
    const count = Math.min(own.length - skipped('student'), others.length - skipped('teacher'));
    for (const [i, at] of own.slice(first, first + Math.max(count, 0)).entries()) {
      const of = others[first + i];
      if (of === undefined) continue;
      student.push(at);
      teacher.push(of);
      rowOf.push(row);
    }
  }
  const flags = (places: number[]) => {
    const mask = new Uint8Array(actionMask.length);
    for (const at of places) mask[at] = 1;
    return x.corrected(mask, undefined);
  };
  return { student: flags(student), teacher: flags(teacher), rowOf };
}

/** Probabilities from the largest to the smallest, as a table of numbers per token. A shorter vocabulary ends with zeros. */
function sortedDistance(p: Entries, q: Entries): Variable {
  const ranked = (of: Entries) => {
    const sorted = of.map((values) => values.neg()).sorted();
    let [token, rank] = [-1, 0];
    const ids = sorted.tokenOf.map((each) => {
      if (each !== token) [token, rank] = [each, 0];
      return rank++;
    });
    return new Entries(of.x, sorted.tokenOf, ids, sorted.values.neg());
  };
  const [some, others] = [ranked(p), ranked(q)];
  const [long, short] = p.values.length >= q.values.length ? [some, others] : [others, some];
  return long.sum(long.values.sub(short.at(long, 0)).abs());
}

const uld: Formula = (all, args) => {
  const x = labelled(all);
  const { student, teacher, rowOf } = compared(all, args);
  const temperature = (name: string) => option(args, `uld_${name}_temperature`, 1);
  const p = logSoftmax(student, 'logits', temperature('student')).map((s) => s.exp());
  // The teacher's tokens are numbered as the student's are.
  const ofTeacher = logSoftmax(teacher, 'teacherLogits', temperature('teacher'));
  const q = new Entries(student, ofTeacher.tokenOf, ofTeacher.ids, ofTeacher.values.exp());
  const counts = x.rows.map((_, row) => rowOf.filter((each) => each === row).length);
  const ofRows = (values: Variable) =>
    values.sumBy(rowOf, counts.length).mul(x.tape.leaf(counts.map((n) => 1 / (n || 1))));
  const { rows, metrics } = option(args, 'uld_use_hybrid_loss', false)
    ? hybrid(x, p, q, { ofRows, last: rowOf.at(-1) }, args)
    : { rows: ofRows(sortedDistance(p, q)), metrics: {} };
  const ce = perToken(x, labelLogprob(logSoftmax(x))).neg();
  const distilled = x.meanOverRows(rows);
  return {
    loss: distilled
      .mul(option(args, 'uld_distillation_weight', 1))
      .add(ce.mul(option(args, 'uld_crossentropy_weight', 0))),
    metrics,
  };
};

/** A JSD of the tokens that both vocabularies have, and the distance of the other sorted probabilities. */
function hybrid(
  x: Tokens,
  p: Entries,
  q: Entries,
  { ofRows, last }: { ofRows: (values: Variable) => Variable; last: number | undefined },
  args: Args,
) {
  const [own, others] = [Array.from(x.batch.studentMatchedIds!), Array.from(x.batch.teacherMatchedIds!)];
  const isIn = (ids: number[]) => (_: number, id: number) => ids.includes(id);
  const isOutside = (ids: number[]) => (_: number, id: number) => !ids.includes(id);
  const matched = q.filter(isIn(others));
  const asTeacher = new Map(own.map((id, i) => [id, others[i]!]));
  const ofStudent = p.filter(isIn(own));
  const renamed = new Entries(
    p.x,
    ofStudent.tokenOf,
    ofStudent.ids.map((id) => asTeacher.get(id)!),
    ofStudent.values,
  );
  const log = (of: Entries) => of.map((values) => values.max(1e-8).log());
  const matchedRows = ofRows(divergence(jsd(option(args, 'beta', 0.5)), log(renamed), log(matched)));
  const unmatched = [p.filter(isOutside(own)), q.filter(isOutside(others))] as const;
  const isCompared = unmatched.every(({ values }) => values.length > 0);
  const unmatchedRows = ofRows(isCompared ? sortedDistance(...unmatched) : p.sum(p.values.mul(0)));
  const size = width(x, 'teacherLogits');
  const share = option(args, 'uld_hybrid_matched_weight', size === 0 ? 0 : own.length / size);
  const rest = option(args, 'uld_hybrid_unmatched_weight', 1 - share);
  const ofLast = (rows: Variable) => (last === undefined ? 0 : rows.value[last]!);
  return {
    rows: matchedRows.mul(share).add(unmatchedRows.mul(rest)),
    metrics: { matched_loss: ofLast(matchedRows), unmatched_loss: ofLast(unmatchedRows) },
  };
}

export const ownFormulas: Record<string, Formula> = {
  'trl/sdft': (x, args) => selfDistilled(x, args),
  'trl/sdpo': sdpo,
  'trl/gold_uld': uld,
};
