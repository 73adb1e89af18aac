// TRL's GOLD for a teacher with another vocabulary: sorted probabilities are compared, place by place.
import { LossError } from '../base/errors.js';
import { choice, flag, number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { BETA, NUMERICS, TEMPERATURE } from './distillation-options.js';
import { atTarget, jsdTerm, logSoftmax } from './distillation-terms.js';
import { ABSENT, isHere, LOWEST, orAbsent, type PairingInputs, type Pairs } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import { NO_LABEL } from './sft-terms.js';
import { IN_ONE_CALL, LOSS } from './units.js';

const WEIGHT = { atLeast: 0, typical: [0.1, 2] } as const;
const HYBRID = { when: `with uld_use_hybrid_loss, ${IN_ONE_CALL}` } as const;
const SKIPS = 'whether the last unmasked token of each row is not compared';

/** The loss of TRL's GOLDTrainer for a teacher with another vocabulary. */
export class TRLGoldULDLossFn extends logitsLoss({
  name: 'trl/gold_uld',
  summary: 'ℓ = Σ|sorted p − sorted q|, the mean over rows of means over their tokens, plus a cross-entropy',
  details: [
    "The n-th unmasked token of a row is compared with the n-th one of the teacher's row, as far as both have tokens. The shorter vocabulary ends with zeros.",
    'With uld_use_hybrid_loss, student_matched_ids and teacher_matched_ids are compared by the divergence of trl/gkd, and the others by their sorted probabilities, if both vocabularies have others. The metrics are of the last row that is compared.',
    "The strategy observed leaves out the first token of each row, as TRL's does, which reads logits one token late.",
  ],
  source: ['arXiv 2402.12030', 'TRL'],
  unlike: { 'trl/gold': 'the vocabularies may differ' },
  reads: [
    'targets',
    'teacher_logits',
    'action_mask',
    'teacher_action_mask',
    'student_matched_ids',
    'teacher_matched_ids',
  ],
  options: {
    uldDistillationWeight: number({ ...WEIGHT, default: 1, help: 'the factor of the distance' }),
    uldCrossentropyWeight: number({
      ...WEIGHT,
      default: 0,
      typical: [0, 2],
      help: 'the factor of the cross-entropy, whose mean is over the tokens with a label',
    }),
    uldStudentTemperature: number({
      ...TEMPERATURE,
      default: 1,
      help: "the student's logits are divided by this",
    }),
    uldTeacherTemperature: number({
      ...TEMPERATURE,
      default: 1,
      help: "the teacher's logits are divided by this",
    }),
    uldSkipStudentEos: flag({ default: true, help: SKIPS }),
    uldSkipTeacherEos: flag({ default: true, help: `${SKIPS}, of the teacher's mask` }),
    useExtendedUld: flag({
      default: false,
      help: 'must be false, because merging tokens needs both tokenizers',
    }),
    uldTokenMergeStrategy: choice(['observed', 'bayesian'], {
      default: 'observed',
      help: 'whether the first unmasked token of each row is left out, or compared',
    }),
    uldUseHybridLoss: flag({
      default: false,
      help: 'whether tokens that both vocabularies have are matched',
    }),
    uldHybridMatchedWeight: number({
      ...WEIGHT,
      help: "the factor of the matched tokens; their share of the teacher's vocabulary if absent",
    }),
    uldHybridUnmatchedWeight: number({
      ...WEIGHT,
      help: 'the factor of the others; 1 − uld_hybrid_matched_weight if absent',
    }),
    beta: number({ ...BETA, default: 0.5 }),
  },
  metrics: { matched_loss: { ...LOSS, ...HYBRID }, unmatched_loss: { ...LOSS, ...HYBRID } },
  numerics: NUMERICS,
  ofWholeBatch: ['matched_loss', 'unmatched_loss'],
  entries: (options) => {
    checkExtended(options.useExtendedUld);
    return {
      over: 'vocabulary',
      teacher: 'logits',
      target: options.uldCrossentropyWeight > 0,
      narrower: 'either',
      pairs: (inputs) => pairsOf(inputs, options),
    };
  },
  mask: (mask, options, inputs) => {
    const teachers = teacherTokens(mask, options, inputs);
    const labels = options.uldCrossentropyWeight > 0 ? inputs.targets() : undefined;
    const last = startOfRow(
      teachers.findLastIndex((teacher) => teacher >= 0),
      inputs.layout,
    );
    // The sum of 1 for tokens that are compared, 2 for those with a label, and 4 for those of the last row that is compared.
    const marks = Float32Array.from(mask, (x, i) => {
      const isLabel = labels !== undefined && x !== 0 && labels[i] !== NO_LABEL;
      return (teachers[i]! < 0 ? 0 : 1) + (isLabel ? 2 : 0) + (i < last ? 0 : 4);
    });
    for (const [i, mark] of marks.entries()) mask[i] = mark % 4 === 0 ? 0 : 1;
    return marks;
  },
  weights: ({ mark, rows, rowSum, batchSum, max, select }) => {
    const isLast = mark.ge(4);
    const others = mark.sub(isLast.mul(4));
    const isLabel = others.ge(2);
    const isCompared = others.sub(isLabel.mul(2));
    const inRow = isCompared.div(max(rowSum(isCompared), 1));
    return [inRow.div(rows), isLabel.div(max(batchSum(isLabel), 1)), select(isLast, inRow, 0)];
  },
  formula: (symbols, options) => {
    const { student, teacher, helper, batchWeights, weighted, constant } = symbols;
    const { exp, log, abs, max, sg, select, rowMax, rowSum, total } = symbols;
    const own = orAbsent(symbols, student, LOWEST);
    const others = orAbsent(symbols, teacher, LOWEST);
    const s = logSoftmax(symbols, own, options.uldStudentTemperature);
    const shifted = (x: Expression) => x.sub(sg(rowMax(others))).mul(1 / options.uldTeacherTemperature);
    const logOfTeacher = (x: Expression) => shifted(x).sub(log(rowSum(exp(shifted(others)))));
    const isRanked = isHere(helper);
    const ranked = exp(logOfTeacher(orAbsent(symbols, helper, LOWEST)));
    const isAny = (x: Expression) => rowSum(isRanked.and(isHere(x))).gt(0);
    const apart = rowSum(select(isRanked, abs(exp(s).sub(ranked)), 0));
    const distance = select(isAny(student).and(isAny(teacher)), apart, 0);
    const ce = atTarget(symbols, logSoftmax(symbols, own)).mul(-options.uldCrossentropyWeight);
    const trained = options.uldCrossentropyWeight > 0 ? weighted(batchWeights[1], ce) : constant(0);
    const distilled = (x: Expression) => weighted(batchWeights[0], x).mul(options.uldDistillationWeight);
    if (!options.uldUseHybridLoss) return { loss: distilled(distance).add(trained), metrics: NO_HYBRID };
    const limited = (x: Expression) => max(x, Math.log(LEAST));
    const term = jsdTerm(symbols, options.beta, limited(s), limited(logOfTeacher(others)));
    const matched = rowSum(select(isRanked, 0, term));
    const size = rowSum(isHere(teacher));
    const share =
      options.uldHybridMatchedWeight === undefined
        ? rowSum(isRanked.not()).div(size)
        : constant(options.uldHybridMatchedWeight);
    const rest = options.uldHybridUnmatchedWeight ?? constant(1).sub(share);
    const ofLastRow = (x: Expression) => total(weighted(batchWeights[2], x));
    return {
      loss: distilled(matched.mul(share).add(distance.mul(rest))).add(trained),
      metrics: { matched_loss: ofLastRow(matched), unmatched_loss: ofLastRow(distance) },
    };
  },
}) {}

const NO_HYBRID = { matched_loss: undefined, unmatched_loss: undefined };
// The least probability of a token that is matched.
const LEAST = 1e-8;

interface Options {
  readonly uldSkipStudentEos: boolean;
  readonly uldSkipTeacherEos: boolean;
  readonly uldTokenMergeStrategy: 'observed' | 'bayesian';
  readonly uldUseHybridLoss: boolean;
}

function checkExtended(isExtended: boolean): void {
  if (!isExtended) return;
  throw new LossError('ERR_INVALID_OPTION', {
    option: 'use_extended_uld',
    expected: 'false, because merging tokens needs both tokenizers',
    received: 'true',
  });
}

// Returns the token of the teacher with which each token is compared, −1 for none.
function teacherTokens(
  mask: Uint8Array,
  { uldSkipStudentEos, uldSkipTeacherEos, uldTokenMergeStrategy }: Options,
  { flags, layout: { rows, rowLength, offsets } }: Pick<PairingInputs, 'flags' | 'layout'>,
): Int32Array {
  const teacherMask = flags('teacher_action_mask', 'token') ?? mask;
  const first = uldTokenMergeStrategy === 'observed' ? 1 : 0;
  const teachers = new Int32Array(mask.length).fill(-1);
  for (let row = 0; row < rows; row++) {
    const begin = offsets?.[row] ?? row * rowLength;
    const end = offsets?.[row + 1] ?? begin + rowLength;
    const [own, others] = [unmasked(mask, begin, end), unmasked(teacherMask, begin, end)];
    const count = Math.min(
      own.length - (uldSkipStudentEos ? 1 : 0),
      others.length - (uldSkipTeacherEos ? 1 : 0),
    );
    const last = Math.min(first + count, own.length, others.length);
    for (let i = first; i < last; i++) teachers[own[i]!] = others[i]!;
  }
  return teachers;
}

// Returns the first token of the row that has this token.
function startOfRow(token: number, { rowLength, offsets }: PairingInputs['layout']): number {
  return offsets?.findLast((begin) => begin <= token) ?? Math.floor(token / rowLength) * rowLength;
}

function unmasked(mask: Uint8Array, begin: number, end: number): number[] {
  const tokens: number[] = [];
  for (let i = begin; i < end; i++) if (mask[i] !== 0) tokens.push(i);
  return tokens;
}

// Returns which logits of the teacher a token is compared with: those of matched ids have the places of the student's ids.
function pairsOf(inputs: PairingInputs, options: Options): Pairs {
  const { mask, studentWidth, teacherWidth, ids } = inputs;
  const width = Math.max(studentWidth, teacherWidth);
  const [own, others] = options.uldUseHybridLoss ? matchedIds(ids, studentWidth, teacherWidth) : [[], []];
  const idOf = new Int32Array(width).fill(-1);
  for (const [i, id] of own.entries()) idOf[id] = others[i]!;
  const isMatched = Uint8Array.from(idOf, (id) => (id < 0 ? 0 : 1));
  const isTaken = new Uint8Array(width);
  for (const id of others) isTaken[id] = 1;
  let next = 0;
  for (let place = 0; place < width; place++) {
    if (isMatched[place]) continue;
    while (isTaken[next]) next++;
    if (next < teacherWidth) idOf[place] = next++;
  }
  return {
    teachers: teacherTokens(mask, options, inputs),
    idOf,
    helper: (student, teacher, helper) => rank(student, teacher, isMatched, helper),
  };
}

function matchedIds(ids: PairingInputs['ids'], studentWidth: number, teacherWidth: number): Int32Array[] {
  const [own, others] = [ids('student_matched_ids', studentWidth), ids('teacher_matched_ids', teacherWidth)];
  if (own.ids.length === others.ids.length) return [own.ids, others.ids];
  throw new LossError('ERR_SHAPE_MISMATCH', {
    key: others.key,
    expected: `${own.ids.length} ids, as many as ${own.key}`,
    received: String(others.ids.length),
  });
}

// Gives each place the teacher's logit of the same rank, and −Infinity if the teacher has none. Matched places have no rank.
function rank(
  student: Float64Array,
  teacher: Float64Array,
  isMatched: Uint8Array,
  helper: Float32Array,
): void {
  const [own, others] = [descending(student, isMatched), descending(teacher, isMatched)];
  helper.fill(ABSENT);
  for (const [i, place] of own.entries()) helper[place] = orLeast(teacher[others[i]!]!);
}

// Returns the places that are not matched, from the largest logit to the smallest.
function descending(logits: Float64Array, isMatched: Uint8Array): Float64Array {
  const bits = new Uint32Array(Float32Array.from(logits, orLeast).buffer);
  // The bits of positive numbers are in order, and those of negative ones in reverse. A key has the place too.
  const order = (x: number) => (x >>> 31 ? ~x : x | 0x80000000) >>> 0;
  const keys = Float64Array.from(bits, (x, place) => order(x) * logits.length + place).sort();
  return keys
    .map((key) => key % logits.length)
    .filter((place) => !isMatched[place])
    .reverse();
}

function orLeast(logit: number): number {
  return logit === ABSENT ? -Infinity : logit;
}
