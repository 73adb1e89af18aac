// The inputs of a batch in host memory, for advantage functions that are computed there.
import { allocate } from '../base/errors.js';
import { inSlices, SLICE, type Steps } from '../base/steps.js';
import { find } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import { readMask, readRowIds, readWideFloats } from '../batch/convert.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { type Layout, readLayout } from '../batch/layout.js';
import { findInput, missingInput, nestedIn, readActionMask } from '../batch/reader.js';

/** Visits the tokens of a row from one index up to, but not including, another. */
type Visit = (row: number, from: number, to: number) => void;

/** A batch whose inputs are read when they are asked for. */
export class HostTokens {
  readonly batch: object;
  readonly mapper: KeyMapper;
  readonly layout: Layout;
  readonly mask: Uint8Array;
  /** The number of unmasked tokens. */
  readonly unmasked: number;

  private constructor(
    batch: object,
    mapper: KeyMapper,
    { layout, mask, unmasked }: Pick<HostTokens, 'layout' | 'mask' | 'unmasked'>,
  ) {
    this.batch = batch;
    this.mapper = mapper;
    this.layout = layout;
    this.mask = mask;
    this.unmasked = unmasked;
  }

  /** @throws LossError if the batch has no layout, or an invalid mask. */
  static *read(batch: object, mapper: KeyMapper): Steps<HostTokens> {
    const layout = yield* readLayout(batch, nestedIn(batch, mapper));
    const mask = yield* readActionMask(batch, mapper, layout);
    let unmasked = 0;
    yield* inSlices(layout.tokens, (begin, end) => {
      for (let i = begin; i < end; i++) if (mask[i] !== 0) unmasked++;
    });
    return new HostTokens(batch, mapper, { layout, mask, unmasked });
  }

  /** Returns a column of floats, one per token. A batch may have one per row. */
  *floats(name: InputName): Steps<Float32Array> {
    const { key, value } = findInput(this.batch, this.mapper, name);
    return yield* this.#spread(yield* readWideFloats(key, value, this.layout));
  }

  /** Returns a column of floats that the table of columns does not list. */
  *furtherFloats(name: string, expected: string): Steps<Float32Array> {
    const found = find(this.batch, this.mapper.keys(name));
    if (!found) throw missingInput(this.mapper, name as InputName, expected);
    return yield* this.#spread(yield* readWideFloats(found.key, found.value, this.layout));
  }

  /** Returns one flag per row, or undefined if the batch has none under the name. */
  *rowFlags(name: string): Steps<Uint8Array | undefined> {
    const found = find(this.batch, this.mapper.keys(name));
    return found && (yield* readMask(found.key, found.value, this.layout, 'row'));
  }

  /** Returns the ids of the rows as the batch has them, or undefined if it has none. */
  *rowIds(name: InputName): Steps<ArrayLike<unknown> | undefined> {
    const found = find(this.batch, this.mapper.keys(name));
    if (!found) return undefined;
    yield* readRowIds(found.key, found.value, this.layout.rows);
    return found.value as ArrayLike<unknown>;
  }

  /** Returns an array with a number per token. */
  zeros(): Float64Array {
    const { tokens } = this.layout;
    return allocate(`advantages of ${tokens} tokens`, () => new Float64Array(tokens));
  }

  /** Visits all tokens, a piece of a row at a time. The pieces of a row follow each other, from its end if `backwards`. */
  *pieces(visit: Visit, backwards = false): Steps<void> {
    let visited = 0;
    for (let row = 0; row < this.layout.rows; row++) {
      const begin = this.begin(row);
      const length = this.begin(row + 1) - begin;
      for (let done = 0; done < length; ) {
        const n = Math.min(SLICE, length - done);
        const from = backwards ? begin + length - done - n : begin + done;
        visit(row, from, from + n);
        done += n;
        visited += n;
        if (visited < SLICE) continue;
        visited = 0;
        yield;
      }
    }
  }

  /** Returns the index of a row's first token. */
  begin(row: number): number {
    const { offsets, rowLength } = this.layout;
    return offsets ? offsets[row]! : row * rowLength;
  }

  *#spread(values: Float32Array): Steps<Float32Array> {
    const { tokens } = this.layout;
    if (values.length === tokens) return values;
    const spread = allocate(`a column of ${tokens} values`, () => new Float32Array(tokens));
    yield* this.pieces((row, from, to) => spread.fill(values[row]!, from, to));
    return spread;
  }
}
