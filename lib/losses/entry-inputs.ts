// Reads what a batch has for the entries of its tokens: lists of tokens, or the logits of all tokens of the vocabulary.

import { allocate, LossError } from '../base/errors.js';
import type { Steps } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { DTYPE_CODES, float32Of, type NativeColumn } from '../batch/convert.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import type { NativeDeviceOut } from '../logits/device-logits.js';
import { checkOutApart, type NativeMatrix, type NativeOut } from '../logits/inputs.js';
import {
  joined,
  type Lists,
  listedLogprobs,
  spread,
  type TokenLogits,
  topTokens,
  withTargets,
} from '../logits/lists.js';
import {
  checkIds,
  isOnHost,
  type LogitsInput,
  type Matrix,
  needed,
  readTokenIds,
  readTokenLogits,
  readTokenMatrix,
  type TokenMatrix,
} from '../logits/loss-inputs.js';
import {
  blockOf,
  blockOfLists,
  blockOfTeachers,
  commonWidth,
  type EntryColumn,
  type TokenBlock,
} from '../logits/vocabulary.js';
import { ABSENT, type ENTRY_COLUMNS, type Entries, hasOwnPlace, type Pairs } from './entries.js';

/** The logits of a call, and what else its entries are read from. */
export interface EntryCall extends TokenLogits {
  readonly batch: Batch;
  readonly mapper: KeyMapper;
  readonly matrix: NativeMatrix;
  /** The logits, or the probabilities of a loss of these. */
  readonly student: TokenMatrix;
  /** The caller's name of these. */
  readonly studentKey: string;
  /** The targets, if the loss reads them. */
  readonly targets: Int32Array | undefined;
  readonly pairs: Pairs | undefined;
  /** Where the gradient goes, if it is wanted. */
  readonly out: NativeOut | NativeDeviceOut | undefined;
}

/** The entries of each token that are in a list. */
export interface ListedEntries {
  readonly lists: Lists;
  /** One byte for each place of a list. It is 0 if the place has no token. */
  readonly mask: Uint8Array;
  readonly columns: { readonly teacher?: NativeColumn };
}

/** Reads the lists of a batch, or finds the tokens with the largest logits. */
export function* readLists(entries: Entries, call: EntryCall): Steps<ListedEntries> {
  const { lists, teacher } = yield* foundLists(entries, call);
  const mask = new Uint8Array(lists.ids.length);
  for (let at = 0; at < mask.length; at++) mask[at] = lists.ids[at]! >= 0 ? 1 : 0;
  return { lists, mask, columns: teacher ? { teacher } : {} };
}

function* foundLists(entries: Entries, call: EntryCall): Steps<{ lists: Lists; teacher?: Matrix }> {
  if (entries.over === 'given') return yield* givenLists(entries, call);
  if (entries.over === 'student' && entries.teacher === undefined) {
    const own = yield* topTokens(call, entries.count ?? call.vocabulary);
    return { lists: withTargets(own, own.length, targetsOf(entries, call), entries.isDistinct === true) };
  }
  if (entries.over !== 'none') return yield* topLists(entries, call);
  const none = { ids: new Int32Array(0), length: 0, tokens: call.tokens };
  return { lists: withTargets(none, 0, call.targets, false) };
}

function* givenLists(entries: Entries, call: EntryCall): Steps<{ lists: Lists; teacher: Matrix }> {
  const { tokens } = call;
  const { ids, teacher } = yield* readTeacherLists(entries, call);
  const { width } = teacher;
  if (entries.counts) dropTokens(entries.counts, ids, teacher, call);
  const lists = withTargets(
    { ids, length: width, tokens },
    entries.count ?? width,
    targetsOf(entries, call),
    entries.isDistinct === true,
  );
  return { lists, teacher: spread(teacher, lists) };
}

// Reads the ids of the batch's lists and their log-probabilities.
function* readTeacherLists(
  entries: Entries,
  { batch, mapper, tokens, kept, vocabulary }: EntryCall,
): Steps<{ ids: Int32Array; teacher: Matrix }> {
  const { ids, width } = yield* readTokenIds(batch, mapper, 'teacher_topk_ids', tokens);
  const teacher = readTokenMatrix(batch, mapper, 'teacher_topk_logprobs', tokens);
  const [key, keyOfLogprobs] = (['teacher_topk_ids', 'teacher_topk_logprobs'] as const).map(
    (name) => needed(batch, mapper, name).key,
  ) as [string, string];
  if (entries.vocabulary !== undefined)
    for (let i = 0; i < ids.length; i++) if (ids[i]! >= entries.vocabulary) ids[i] = -1;
  yield* checkIds(key, ids, width, { isCounted: kept, vocabulary, least: -1 });
  commonWidth({ width }, teacher, [key, keyOfLogprobs]);
  return { ids, teacher };
}

// Replaces the tokens of lists that do not count by −1.
function dropTokens(
  counts: NonNullable<Entries['counts']>,
  ids: Int32Array,
  teacher: Matrix,
  { kept, targets }: EntryCall,
): void {
  const { width } = teacher;
  for (let token = 0; token < kept.length; token++) {
    if (kept[token] === 0) continue;
    const logprobs = float32Of(teacher, token * width, (token + 1) * width);
    for (let place = 0; place < width; place++) {
      const at = token * width + place;
      if (!counts(logprobs[place]!, place, ids[at] === targets?.[token])) ids[at] = -1;
    }
  }
}

function* topLists(entries: Entries, call: EntryCall): Steps<{ lists: Lists; teacher: Matrix }> {
  const { batch, mapper, tokens, vocabulary } = call;
  const { over, count = vocabulary } = entries;
  const { device } = call.matrix;
  const own = readTokenLogits(batch, mapper, 'teacher_logits', tokens, device);
  const matrix = { ...own, rowStride: own.width, device };
  const teacher: TokenLogits = { ...call, matrix, vocabulary: widthOf(entries, own) };
  const keys = [call.studentKey, mapper.keys('teacher_logits')[0]!] as const;
  commonWidth({ width: vocabulary }, { width: teacher.vocabulary }, keys, entries.narrower);
  const found = over === 'student' ? yield* topTokens(call, count) : yield* topTokens(teacher, count);
  const both = over === 'both' ? yield* joined(found, yield* topTokens(call, count), vocabulary) : found;
  if (teacher.vocabulary > vocabulary) checkListed(both, call, keys);
  const lists = withTargets(both, both.length, targetsOf(entries, call), entries.isDistinct === true);
  const { logprob } = yield* listedLogprobs(teacher, lists, entries.teacherTemperature ?? 1, false);
  return { lists, teacher: { data: logprob, dtype: DTYPE_CODES.float32, width: lists.length } };
}

// Checks that the student has the tokens of the teacher's lists.
function checkListed(
  { ids, length }: Lists,
  { kept, vocabulary }: EntryCall,
  [studentKey, key]: readonly [string, string],
): void {
  const at = ids.findIndex((id, i) => id >= vocabulary && kept[Math.floor(i / length)] !== 0);
  if (at < 0) return;
  throw new LossError('ERR_INVALID_INPUT', {
    key,
    expected: `tokens from 0 to ${vocabulary - 1} with the largest logits, because ${studentKey} has no others`,
    received: `token ${ids[at]}`,
  });
}

// Returns how many of the teacher's logits are read.
function widthOf({ teacherWidth }: Entries, { width }: Pick<Matrix, 'width'>): number {
  return Math.min(teacherWidth ?? width, width);
}

function targetsOf(entries: Entries, { targets }: EntryCall): Int32Array | undefined {
  return hasOwnPlace(entries) ? targets : undefined;
}

/** Returns the place of the target of each token in its list; −1 if it has none. */
export function placesOfTargets(entries: Entries, lists: Lists, targets: Int32Array): Float64Array {
  const { ids, length, tokens } = lists;
  return Float64Array.from({ length: tokens }, (_, token) =>
    hasOwnPlace(entries)
      ? length - 1
      : ids.subarray(token * length, (token + 1) * length).indexOf(targets[token]!),
  );
}

/** Reads the entries of blocks of tokens. */
export interface BlockReader {
  /** The number of entries of each token. */
  readonly width: number;
  read(block: TokenBlock): EntryColumns;
}

/** The columns of entries. */
export type EntryColumns = Partial<Record<keyof typeof ENTRY_COLUMNS, EntryColumn>>;

/**
 * Returns what reads the entries of a batch over its vocabulary.
 * @throws LossError `ERR_INVALID_INPUT` if logits in memory of a device would have to be rearranged on the host.
 */
export function* readBlocks(entries: Entries, call: EntryCall): Steps<BlockReader> {
  const { batch, mapper, tokens, kept, vocabulary, student, pairs, matrix } = call;
  const read = (name: LogitsInput) => readTokenLogits(batch, mapper, name, tokens, matrix.device);
  const key = (name: LogitsInput) => mapper.keys(name)[0]!;
  const { narrower, helper = pairs?.helper } = entries;
  const listed = entries.teacher === 'list' ? yield* readTeacherLists(entries, call) : undefined;
  const teacherName = entries.teacher === 'probs' ? 'teacher_probs' : 'teacher_logits';
  const teacher = entries.teacher && !listed ? read(teacherName) : undefined;
  const reference = entries.reference ? read('ref_logits') : undefined;
  if (reference) commonWidth(student, reference, [call.studentKey, key('ref_logits')]);
  if (call.out) {
    const size = { rows: tokens, vocabulary };
    if (teacher) checkOutApart('gradLogits', call.out, size, key(teacherName), teacher, teacher.width);
    if (reference) checkOutApart('gradLogits', call.out, size, key('ref_logits'), reference, vocabulary);
  }
  const seen = teacher && { ...teacher, width: widthOf(entries, teacher) };
  const width = seen ? commonWidth(student, seen, [call.studentKey, key(teacherName)], narrower) : vocabulary;
  for (const [given, name] of [
    [student, call.studentKey],
    [teacher, key(teacherName)],
  ] as const)
    if (given && !isOnHost(given) && (helper || given.width !== width))
      throw new LossError('ERR_INVALID_INPUT', {
        key: name,
        expected: `an array in host memory, because ${helper ? 'this loss orders the logits there' : 'rows of logits must be cut or padded there'}`,
        received: 'memory of a device',
      });
  return {
    width,
    read(block) {
      const columns: EntryColumns = { student: blockOf(student, block, width, ABSENT) };
      if (listed) columns.teacher = blockOfLists(listed.ids, listed.teacher, block, vocabulary, ABSENT);
      else if (teacher && pairs) columns.teacher = blockOfTeachers(teacher as Matrix, block, pairs, ABSENT);
      else if (teacher) columns.teacher = blockOf(teacher, block, width, ABSENT);
      if (reference) columns.reference = blockOf(reference, block, width, ABSENT);
      if (helper)
        columns.helper = helperOf(
          helper,
          columns as HelperColumns,
          width,
          width,
          kept.subarray(block.first, block.last),
        );
      return columns;
    },
  };
}

type HelperColumns = Readonly<Record<'student' | 'teacher', NativeColumn>>;

/**
 * Returns what a helper computes for the entries of some tokens, of which those count whose number is not 0.
 * @param count how many entries of each token it reads.
 */
export function helperOf(
  helper: NonNullable<Entries['helper']>,
  { student, teacher }: HelperColumns,
  width: number,
  count: number,
  kept: Uint32Array,
): NativeColumn {
  const data = allocate('a column of entries', () => new Float32Array(kept.length * width));
  for (let i = 0; i < kept.length; i++) {
    if (kept[i] === 0) continue;
    const [begin, end] = [i * width, i * width + count];
    const numbers = (column: NativeColumn) => Float64Array.from(float32Of(column, begin, end));
    helper(numbers(student), numbers(teacher), data.subarray(begin, end));
  }
  return { data, dtype: DTYPE_CODES.float32 };
}
