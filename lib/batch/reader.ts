// Reads a caller's batch for a native call: finds each input under any of its accepted names, checks it, and converts
// it if necessary.
import type { NativeBatch } from '../../binding.js';
import { isResizable } from '../base/arrays.js';
import { allocate, describeValue, LossError } from '../base/errors.js';
import { isFloat32Array, isUint8Array } from '../base/kinds.js';
import { inSlices, type Steps } from '../base/steps.js';
import { type Batch, type FoundInput, find } from './batch.js';
import { ADVANTAGE_COLUMNS, COLUMNS, INPUT_NAMES, type InputName, inputRow, ROW_DATA } from './columns.js';
import {
  findHeld,
  type NativeColumn,
  PER_ROW,
  readFloat32,
  readFloats,
  readMask,
  readRowIds,
  readRowNumbers,
} from './convert.js';
import { emptyAdvantageBatch, emptyBatch } from './empty-batch.js';
import type { KeyMapper } from './key-mapper.js';
import { CU_SEQLENS, type Layout, readLayout } from './layout.js';
import {
  defaultsOf,
  hasDefault,
  layoutOfRows,
  nextInGroups,
  nextInPairs,
  nextOfThree,
  readOfPairs,
} from './row-data.js';
import { checkSteps, readStep } from './step.js';

/** Stores a column in a native batch, at an index of NativeBatch.data. Returns whether it took the value. */
export type SetColumn = (
  native: NativeBatch,
  slot: number,
  key: string,
  value: unknown,
  layout: Layout,
  mayBePerRow: boolean,
) => boolean;

/** The inputs that a function reads, under their Trinity-RFT names. */
export interface Reads {
  /**
   * Required inputs, in the order in which they are checked. A batch may lack only `action_mask`: all its tokens then
   * count. If the batch has neither `shape` nor `cuSeqlens`, it must have a nested array (an array of rows), which then
   * determines the shape.
   */
  inputs: readonly InputName[];
  /** Inputs that are read if the batch has them. */
  optional?: readonly InputName[];
  /** An input that a batch must not have, and why. */
  refused?: { readonly input: InputName; readonly reason: string } | undefined;
  /**
   * Columns that must have one value per token, because gradients are taken with respect to them. A loss's other
   * columns may have one value per row. Default: `logprob`.
   */
  perToken?: readonly InputName[];
  /** The number of rows that belong together if the batch has no pair_ids, which the function reads. Default: 2. */
  rowsOfPair?: 2 | 3 | undefined;
  /**
   * Whether a loss or an advantage function reads the batch. This determines the order of the native columns: COLUMNS
   * for 'loss' (the default), ADVANTAGE_COLUMNS for 'advantage'.
   */
  order?: 'loss' | 'advantage';
  /**
   * Whether the function reads only numbers of rows, as losses of rewards do. The rows then have no tokens: native code gets
   * one masked token for each. Without a shape, the batch has as many rows as rewards.
   */
  ofRows?: boolean;
  /**
   * Stores a float column that is not in host memory in a native batch, and returns true. Returns false for any other
   * value. Only a batch that is uploaded may have such columns.
   */
  setElsewhere?: SetColumn;
}

const MASKS = ['action_mask', 'expert_mask'] as const satisfies readonly InputName[];

/** A batch from host memory that was checked and converted for native calls. */
export interface HostInput {
  native: NativeBatch;
  layout: Layout;
  /** The trainer's step, if the function reads it. */
  step: number | undefined;
}

type Converted = NativeColumn | Uint8Array | Float64Array | Int32Array;

/**
 * A cache of the converted inputs of one batch, with which several readers convert each input only once. All of these
 * readers must use the same backend (naming scheme). A reader for advantages must read before a reader for losses,
 * because only the loss reader accepts one value per row.
 */
export type Conversions = Map<InputName, Converted>;

interface ReaderEntry {
  name: InputName;
  keys: readonly string[];
  optional: boolean;
  mayBePerRow: boolean;
  /** The column's index in NativeBatch.data, or -1 if the input is not a float column. */
  slot: number;
  /** The index in NativeBatch.rowData, or -1 if the input is not a number per row that losses read. */
  rowSlot: number;
}

/** Reads the inputs of one function from batches in host memory. */
export class BatchReader {
  /** Whether the function reads `expert_mask`, and so treats rows that an expert wrote differently from other rows. */
  readonly separatesExperts: boolean;
  /** Whether the function reads only numbers of rows. */
  readonly ofRows: boolean;
  readonly #mapper: KeyMapper;
  readonly #entries: readonly ReaderEntry[];
  readonly #needed: readonly InputName[];
  readonly #forAdvantage: boolean;
  readonly #readsStep: boolean;
  readonly #readsPairs: boolean;
  readonly #rowsOfPair: 2 | 3;
  readonly #setElsewhere: SetColumn | undefined;
  readonly #refused: Reads['refused'];
  // The index in #entries of token_level_rewards, or -1. In a batch without them, #rewards replaces that entry.
  readonly #tokenRewards: number;
  readonly #rewards: ReaderEntry;

  constructor(mapper: KeyMapper, reads: Reads) {
    const {
      inputs,
      optional = [],
      refused,
      perToken = ['logprob'],
      order = 'loss',
      setElsewhere,
      ofRows = false,
      rowsOfPair = 2,
    } = reads;
    const slots: readonly string[] = order === 'advantage' ? ADVANTAGE_COLUMNS : COLUMNS;
    this.separatesExperts = inputs.includes('expert_mask');
    this.#mapper = mapper;
    this.#forAdvantage = order === 'advantage';
    this.#readsStep = inputs.includes('step');
    this.ofRows = ofRows;
    this.#readsPairs = inputs.includes('pair_ids');
    this.#rowsOfPair = rowsOfPair;
    this.#setElsewhere = setElsewhere;
    this.#refused = refused;
    this.#needed = inputs.filter((name) => name !== 'step');
    const masks = MASKS.filter((name) => order === 'loss' && inputs.includes(name));
    const [first, ...others] = this.#needed.filter((name) => !(masks as readonly InputName[]).includes(name));
    const required = first === undefined ? [] : [first, ...pairsFirst(others)];
    const entry = (name: InputName) => ({
      name,
      keys: mapper.keys(name),
      optional: optional.includes(name),
      mayBePerRow: order === 'loss' && !perToken.includes(name),
      slot: slots.indexOf(name),
      rowSlot:
        order === 'loss' ? (ROW_DATA as readonly string[]).indexOf(inputRow(name).takesPlaceOf ?? name) : -1,
    });
    this.#entries = [...required, ...optional, ...masks].map(entry);
    this.#tokenRewards = this.#entries.findIndex(({ name }) => name === 'token_level_rewards');
    this.#rewards = entry('rewards');
  }

  /** Returns whether a batch has the named input. The input need not be one that this reader reads. */
  has(batch: Batch, name: InputName): boolean {
    return batch !== null && typeof batch === 'object' && find(batch, this.#mapper.keys(name)) !== undefined;
  }

  /**
   * Checks that a batch that is not in host memory has the required inputs.
   * @param has returns whether it has an input.
   * @param place where it is, for the error.
   * @throws LossError `ERR_MISSING_INPUT` if it lacks one, `ERR_INVALID_INPUT` if one is only read from host memory, or
   * if it has one that the function refuses, `ERR_SHAPE_MISMATCH` if its rows are no pairs.
   */
  checkPresent(has: (name: InputName) => boolean, rows: number, place: string): void {
    if (this.#refused && has(this.#refused.input)) throw this.#refusal(this.#refused.input);
    if (this.#readsPairs && !has('pair_ids')) this.#checkPairs(rows);
    for (const name of this.#needed) {
      if (inputRow(name).absent === 'alternate' && this.#rowsOfPair === 2) continue;
      if (inputRow(name).takesPlaceOf || name === 'pair_ids')
        throw new LossError('ERR_INVALID_INPUT', {
          key: name,
          expected: 'a batch in host memory, which the option device sends to a device',
          received: `a batch on ${place}`,
        });
      const isReplaced = this.#entries.some(
        (other) => inputRow(other.name).standsFor === name && has(other.name),
      );
      if (!has(name) && !isReplaced && !(name === 'token_level_rewards' && has('rewards')))
        throw missingInput(this.#mapper, name, `a column that was uploaded to ${place}`);
    }
  }

  /** Returns the trainer's step of a batch if the function reads it. */
  stepOf(batch: object, rows: number): number | undefined {
    if (!this.#readsStep) return undefined;
    const { key, value } = findInput(batch, this.#mapper, 'step');
    return readStep(key, value, rows);
  }

  /**
   * Reads a batch from host memory. All inputs are looked up in the first slice, so the caller may put other arrays into
   * the batch and into its columns afterwards.
   * @param conversions a cache that this reader shares with other readers of the same batch.
   * @throws LossError if a value is missing or invalid. The message names the key, what was expected and what was
   * given.
   */
  *read(batch: Batch, conversions?: Conversions): Steps<HostInput> {
    checkObject(batch);
    const refused = this.#refused && find(batch, this.#mapper.keys(this.#refused.input));
    if (refused) throw this.#refusal(refused.key);
    const found = this.#entries.map(({ keys }) => findHeld(batch, keys));
    const entries = this.#withRewards(batch, found);
    const step = this.#readsStep ? find(batch, this.#mapper.keys('step')) : undefined;
    const layout = this.ofRows
      ? yield* layoutOfRows(batch, found[0]?.value)
      : yield* readLayout(batch, found[0]?.value ?? nestedIn(batch, this.#mapper));
    const native = this.#forAdvantage ? emptyAdvantageBatch(layout) : emptyBatch(layout);
    if (this.#readsPairs)
      this.#setPairs(native, found, layout, find(batch, LAYOUT_KEYS.flat())?.key ?? found[0]?.key);
    for (let i = 0; i < found.length; i++) {
      const input = found[i];
      const entry = entries[i]!;
      if (!input && entry.name === 'action_mask') native.mask = yield* onesFor(layout, conversions);
      else if (!input && hasDefault(entry.name))
        setRowData(native, entry, defaultsOf(entry.name, layout.rows));
      else if (!input && !entry.optional && !this.#isReplaced(entry, found))
        throw missingInput(this.#mapper, entry.name);
      if (!input || isReady(native, entry, input.value, layout)) continue;
      const { slot, mayBePerRow } = entry;
      if (slot >= 0 && this.#setElsewhere?.(native, slot, input.key, input.value, layout, mayBePerRow))
        continue;
      yield* convert(native, entry, input, layout, this.#rowsOfPair, conversions);
    }
    if (this.ofRows) native.mask = new Uint8Array(layout.rows);
    if (!this.#readsStep) return { native, layout, step: undefined };
    if (!step) throw missingInput(this.#mapper, 'step');
    return { native, layout, step: yield* checkSteps(step.key, step.value, layout.rows) };
  }

  #refusal(key: string): LossError {
    return new LossError('ERR_INVALID_INPUT', {
      key,
      expected: `a batch without it, because ${this.#refused!.reason}`,
      received: 'one with it',
    });
  }

  // Returns whether the batch may lack an input, because it has another one that stands for it.
  #isReplaced({ name }: ReaderEntry, found: readonly (FoundInput | undefined)[]): boolean {
    const has = (other: ReaderEntry, i: number) => found[i] && inputRow(other.name).standsFor === name;
    return inputRow(name).absent === 'alternate' || this.#entries.some(has);
  }

  // Checks the number of rows of a batch without pair_ids, and stores which of its rows are pairs.
  #setPairs(
    native: NativeBatch,
    found: readonly (FoundInput | undefined)[],
    { rows }: Layout,
    key: string | undefined,
  ): void {
    const at = this.#entries.findIndex(({ name }) => name === 'pair_ids');
    if (found[at]) return;
    this.#checkPairs(rows, key);
    if (this.#rowsOfPair === 3) setRowData(native, this.#entries[at]!, nextOfThree(rows));
  }

  #checkPairs(rows: number, key = 'shape'): void {
    const size = this.#rowsOfPair;
    if (rows % size !== 0)
      throw new LossError('ERR_SHAPE_MISMATCH', {
        key,
        expected:
          size === 2
            ? 'an even number of rows (chosen, rejected, chosen, …), or pair_ids'
            : 'a multiple of three rows (chosen, rejected, reference, chosen, …), or pair_ids',
        received: String(rows),
      });
  }

  // Looks up the rewards of a batch that lacks token_level_rewards, and adds them to `found` instead. Returns the entries
  // of the inputs in `found`.
  #withRewards(batch: Batch, found: (FoundInput | undefined)[]): readonly ReaderEntry[] {
    const slot = this.#tokenRewards;
    if (slot < 0 || found[slot]) return this.#entries;
    found[slot] = findHeld(batch, this.#rewards.keys);
    return found[slot] ? this.#entries.with(slot, this.#rewards) : this.#entries;
  }
}

/**
 * Returns a batch with the inputs that a batch has now, for calls that read it several times. The caller may put others
 * into the batch afterwards, and other arrays into its columns of the form { data, dtype }.
 * @param others the names of further inputs.
 * @throws LossError `ERR_INVALID_INPUT` if the batch is not an object.
 */
export function heldBatch<B extends object>(batch: B, mapper: KeyMapper, others: readonly string[] = []): B {
  checkObject(batch);
  const held: Record<string, unknown> = {};
  const hold = (keys: readonly string[]) => {
    const found = findHeld(batch, keys);
    if (found) held[found.key] = found.value;
  };
  for (const name of INPUT_NAMES) hold(mapper.keys(name));
  for (const name of others) hold(mapper.keys(name));
  for (const keys of LAYOUT_KEYS) hold(keys);
  return held as B;
}

function checkObject(batch: object): void {
  if (batch === null || typeof batch !== 'object')
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'batch',
      expected: 'an object',
      received: describeValue(batch),
    });
}

const LAYOUT_KEYS = ['shape', ...CU_SEQLENS].map((key) => [key]);

// The inputs that tell the shape of a batch if they are nested arrays.
const PER_TOKEN = INPUT_NAMES.filter((name) => inputRow(name).per === 'token' && !inputRow(name).ofOtherRows);

// Numbers of pairs are read after the pairs.
function pairsFirst(names: readonly InputName[]): readonly InputName[] {
  return names.includes('pair_ids') ? ['pair_ids', ...names.filter((name) => name !== 'pair_ids')] : names;
}

/** Returns the first nested array among the inputs of a batch, from which its shape can be read. */
export function nestedIn(batch: Batch, mapper: KeyMapper): unknown {
  const isNested = (value: unknown) => Array.isArray(value) && Array.isArray(value[0]);
  return PER_TOKEN.map((name) => find(batch, mapper.keys(name))?.value).find(isNested);
}

// Returns the mask of a batch that has none.
function* onesFor({ tokens }: Layout, conversions: Conversions | undefined): Steps<Uint8Array> {
  const known = conversions?.get('action_mask');
  if (known) return known as Uint8Array;
  const mask = allocate(`a mask of ${tokens} tokens`, () => new Uint8Array(tokens));
  yield* inSlices(tokens, (begin, end) => mask.fill(1, begin, end));
  conversions?.set('action_mask', mask);
  return mask;
}

/** Reads the mask of a host batch. All tokens count if the batch has none. */
export function* readActionMask(batch: object, mapper: KeyMapper, layout: Layout): Steps<Uint8Array> {
  const found = find(batch, mapper.keys('action_mask'));
  if (!found) return yield* onesFor(layout, undefined);
  return yield* readMask(found.key, found.value, layout, 'token');
}

// Stores an input in the native batch if it needs no conversion. This fast path exists because a small batch is computed
// within microseconds, and the general path would add noticeable time.
function isReady(native: NativeBatch, entry: ReaderEntry, value: unknown, layout: Layout): boolean {
  if (entry.slot >= 0 && isFloat32Array(value)) {
    const perRow = entry.mayBePerRow && value.length === layout.rows && layout.rows !== layout.tokens;
    if (!isReadyFor(value, perRow ? layout.rows : layout.tokens)) return false;
    native.data[entry.slot] = value;
    if (perRow) native.dtypes[entry.slot] = PER_ROW;
    return true;
  }
  if (entry.name === 'action_mask' && isUint8Array(value) && isReadyFor(value, layout.tokens)) {
    native.mask = value;
    return true;
  }
  return false;
}

// Converts an input and stores it in the native batch.
function* convert(
  native: NativeBatch,
  entry: ReaderEntry,
  { key, value }: FoundInput,
  layout: Layout,
  rowsOfPair: 2 | 3,
  conversions: Conversions | undefined,
): Steps<void> {
  let converted = conversions?.get(entry.name);
  if (converted === undefined) {
    converted = yield* convertedInput(entry, key, value, layout, native.rowData?.[PAIRS]);
    conversions?.set(entry.name, converted);
  }
  if (entry.slot >= 0) {
    const { data, dtype } = converted as NativeColumn;
    native.data[entry.slot] = data;
    native.dtypes[entry.slot] = dtype;
  } else if (entry.rowSlot >= 0) {
    const values =
      entry.name === 'pair_ids'
        ? yield* nextInPairs(key, value as ArrayLike<unknown>, converted as Int32Array, rowsOfPair)
        : converted instanceof Int32Array
          ? yield* nextInGroups(converted)
          : converted;
    setRowData(
      native,
      entry,
      values instanceof Float64Array ? values : Float64Array.from(values as Uint8Array),
    );
  } else {
    (native as unknown as Record<string, unknown>)[inputRow(entry.name).member!] = converted;
  }
}

const PAIRS = ROW_DATA.indexOf('pair_ids');

function setRowData(native: NativeBatch, { rowSlot }: ReaderEntry, values: Float64Array): void {
  native.rowData ??= new Array(ROW_DATA.length).fill(undefined);
  native.rowData[rowSlot] = values;
}

// A detached array has byteLength 0. It must be checked too, because optimised code may still see the `length` that the
// array had before.
function isReadyFor(array: Float32Array | Uint8Array, length: number): boolean {
  return array.byteLength > 0 && array.length === length && !isResizable(array);
}

function convertedInput(
  { name, mayBePerRow }: ReaderEntry,
  key: string,
  value: unknown,
  layout: Layout,
  pairs: Float64Array | undefined,
): Steps<Converted> {
  const { type, per, hint } = inputRow(name);
  if (per === 'pair') return readOfPairs(key, value, layout, type === 'flags', pairs);
  if (type === 'flags') return readMask(key, value, layout, per === 'row' ? 'row' : 'token');
  if (type === 'numbers') return readRowNumbers(key, value, layout.rows, hint);
  if (type === 'ids') return readRowIds(key, value, layout.rows);
  return readFloats(key, value, layout, mayBePerRow);
}

/** Returns the error for a missing input. It lists all keys under which a batch may have the input. */
export function missingInput(
  mapper: KeyMapper,
  name: InputName,
  expected: string = inputRow(name).expected,
): LossError {
  const [key, ...others] = mapper.keys(name);
  return new LossError('ERR_MISSING_INPUT', {
    key,
    expected: others.length > 0 ? `${expected} (also accepted as ${others.join(' or ')})` : expected,
    received: 'a batch without it',
  });
}

/**
 * Returns a required input of a host batch, and the key under which the batch has it.
 * @throws LossError `ERR_MISSING_INPUT` if the batch does not have the input.
 */
export function findInput(
  batch: object,
  mapper: KeyMapper,
  name: InputName,
): { key: string; value: unknown } {
  const found = find(batch, mapper.keys(name));
  if (!found) throw missingInput(mapper, name);
  return found;
}

/**
 * Reads a column from a host batch that must have one float32 per token.
 * @throws LossError `ERR_MISSING_INPUT` if the column is missing, `ERR_INVALID_INPUT` if its type or an element is
 * wrong, `ERR_SHAPE_MISMATCH` if its length is wrong.
 */
export function readTokenFloats(
  batch: object,
  mapper: KeyMapper,
  name: InputName,
  layout: Layout,
): Steps<Float32Array> {
  const { key, value } = findInput(batch, mapper, name);
  return readFloat32(key, value, layout);
}
