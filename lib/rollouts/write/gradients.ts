// Writes gradients to a file, row by row next to the rows' ids.
import { rename, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LossError } from '../../core/errors.js';
import { type Format, formatOf, unknownFormat } from '../file-name.js';
import type { RolloutPart } from '../part-builder.js';
import { writeJsonLines } from './json-lines.js';
import { writeParquet } from './parquet.js';
import { writeSafetensors } from './safetensors.js';
import { type Layout, Staging, type WriteStaged, writing } from './staging.js';

/** Options of {@link writeGradients}. */
export interface GradientOptions {
  /** Columns to write as ids next to each row's gradient. Each part's `kept` must contain them. */
  ids?: readonly string[];
  /** For tensors: packed rows with cu_seqlens (the default), or [B, T] with short rows padded with 0. */
  layout?: Layout;
}

/** Writes gradients part by part. The file appears under its name only when it is complete. */
export interface GradientWriter {
  /**
   * Adds the gradients of a part.
   * @param grad ∂loss/∂logprob per token of the part.
   * @param gradEntropy ∂loss/∂entropy per token. Pass it with every part or with none.
   */
  add(part: RolloutPart, grad: Float32Array, gradEntropy?: Float32Array): Promise<void>;
  /** Completes the file and returns its number of rows, tokens and bytes. */
  close(): Promise<{ rows: number; tokens: number; bytes: number }>;
  /** Removes what has been written so far. Does nothing after close(). */
  abort(): Promise<void>;
}

const FORMATS: readonly (Format & { write: WriteStaged })[] = [
  { endings: ['.safetensors'], write: writeSafetensors },
  { endings: ['.parquet'], write: writeParquet },
  { endings: ['.jsonl', '.ndjson', '.jsonl.gz', '.ndjson.gz'], write: writeJsonLines },
];

// The columns that the writer itself adds, so that ids cannot have these names.
const RESERVED = ['grad', 'grad_entropy', 'cu_seqlens', 'lengths'];

/**
 * Writes gradients to a file, in the format that its name ends with. Each row has `file`, `row` (its line or row number
 * in that file), its ids, `grad` and, if there is one, `grad_entropy`.
 * - JSON lines have as many digits as identify a float32, and null for a number that is not finite.
 * - safetensors have float32 tensors, and `cu_seqlens` in the packed layout or `lengths` in the padded one. Numeric ids
 * become tensors. Other ids become indices (-1 for none) into a JSON list, which the metadata holds under the column's
 * name.
 * @throws LossError `ERR_INVALID_OPTION`. The writer's methods reject with `ERR_INVALID_INPUT` if the file cannot be
 * written.
 */
export function writeGradients(
  file: string,
  { ids = [], layout = 'packed' }: GradientOptions = {},
): GradientWriter {
  const format = formatOf(FORMATS, file);
  if (!format) throw unknownFormat('ERR_INVALID_OPTION', file, FORMATS);
  const reserved = ids.find((name) => RESERVED.includes(name));
  if (reserved !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'ids',
      expected: `columns other than ${RESERVED.join(', ')}, which the file has anyway`,
      received: reserved,
    });
  return new StagedWriter(file, ids, layout, format.write);
}

class StagedWriter implements GradientWriter {
  readonly #file: string;
  readonly #ids: readonly string[];
  readonly #layout: Layout;
  readonly #write: WriteStaged;
  #staging: Staging | undefined;

  constructor(file: string, ids: readonly string[], layout: Layout, write: WriteStaged) {
    this.#file = file;
    this.#ids = ids;
    this.#layout = layout;
    this.#write = write;
  }

  async add({ batch, places, kept }: RolloutPart, grad: Float32Array, gradEntropy?: Float32Array) {
    const { cuSeqlens } = batch;
    for (const [key, values] of Object.entries({ grad, gradEntropy }))
      if (values && values.length !== cuSeqlens.at(-1))
        throw new LossError('ERR_SHAPE_MISMATCH', {
          key,
          expected: `${cuSeqlens.at(-1)} values, one per token`,
          received: String(values.length),
        });
    const rows = places.map((place, row) => {
      const ids: Record<string, unknown> = { file: place.file, row: place.line ?? place.row };
      for (const name of this.#ids) if (kept[row]![name] !== undefined) ids[name] = kept[row]![name];
      return { tokens: cuSeqlens[row + 1]! - cuSeqlens[row]!, ids };
    });
    await writing(this.#file, async () => (await this.#stage()).add(rows, grad, gradEntropy));
  }

  async close() {
    const staging = await this.#stage();
    const { rows, tokens } = staging;
    return writing(this.#file, async () => {
      await staging.end();
      const complete = join(staging.directory, 'complete');
      await this.#write(staging, complete, { layout: this.#layout, name: this.#file });
      const { size: bytes } = await stat(complete);
      await rename(complete, this.#file);
      await this.abort();
      return { rows, tokens, bytes };
    });
  }

  async abort() {
    await this.#staging?.remove();
    this.#staging = undefined;
  }

  async #stage(): Promise<Staging> {
    this.#staging ??= await Staging.nextTo(this.#file);
    return this.#staging;
  }
}
