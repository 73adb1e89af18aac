// Gradients written to files, row by row beside the ids of the rows.
import { rename, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LossError } from '../../core/errors.js';
import type { RolloutPart } from '../part-builder.js';
import { writeJsonLines } from './json-lines.js';
import { writeParquet } from './parquet.js';
import { writeSafetensors } from './safetensors.js';
import { Staging, writing } from './staging.js';

/** How gradients are written. */
export interface GradientOptions {
  /** The columns, of those each part keeps, that are written beside each row's gradient. */
  ids?: readonly string[];
  /** Of tensors: one row after another with cu_seqlens (by default), or [B, T], short rows filled up with 0. */
  layout?: Layout;
}

/** How rows of different lengths lie in a tensor. */
export type Layout = 'packed' | 'padded';

/** Writes gradients part by part. What it writes has its name only once it is whole. */
export interface GradientWriter {
  /**
   * @param grad ∂loss/∂logprob per token of the part.
   * @param gradEntropy ∂loss/∂entropy; with every part or with none.
   */
  add(part: RolloutPart, grad: Float32Array, gradEntropy?: Float32Array): Promise<void>;
  /** Ends the file and gives it its name. @returns how much is in it, its size in bytes. */
  close(): Promise<{ rows: number; tokens: number; bytes: number }>;
  /** Takes back what has been written. Does nothing after close(). */
  abort(): Promise<void>;
}

/** Writes all that was put aside to a file, which will be named so. */
export type WriteStaged = (
  staging: Staging,
  file: string,
  how: { layout: Layout; name: string },
) => Promise<void>;

const FORMATS: readonly { endings: readonly string[]; write: WriteStaged }[] = [
  { endings: ['.safetensors'], write: writeSafetensors },
  { endings: ['.parquet'], write: writeParquet },
  { endings: ['.jsonl', '.ndjson', '.jsonl.gz', '.ndjson.gz'], write: writeJsonLines },
];

// What stands beside the ids.
const OWN = ['grad', 'grad_entropy', 'cu_seqlens', 'lengths'];

/**
 * Writes gradients to a file, in the format that its name ends with. Each row has `file` and `row` (its line or number
 * there), its ids, `grad` and, where there is one, `grad_entropy`.
 * - JSON lines have the digits that tell each float32 from the others, and null where it is not finite.
 * - safetensors have float32 and, in the packed layout, `cu_seqlens`, in the padded one `lengths`. Ids that are numbers
 *   are tensors of them; of others there are indices (-1: none) into a JSON list that the metadata has under the
 *   column's name.
 * @throws LossError `ERR_INVALID_OPTION`; the writer's methods reject with `ERR_INVALID_INPUT` where the file cannot be
 * written.
 */
export function writeGradients(
  file: string,
  { ids = [], layout = 'packed' }: GradientOptions = {},
): GradientWriter {
  const format = FORMATS.find(({ endings }) => endings.some((ending) => file.toLowerCase().endsWith(ending)));
  if (!format) {
    const known = FORMATS.flatMap(({ endings }) => endings).join(', ');
    throw new LossError('ERR_INVALID_OPTION', `${file}: expected a name that ends in one of ${known}`);
  }
  const own = ids.find((name) => OWN.includes(name));
  if (own !== undefined)
    throw new LossError(
      'ERR_INVALID_OPTION',
      `ids: expected columns other than ${OWN.join(', ')}, which are written beside them, and ${own} came`,
    );
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
    for (const [name, values] of Object.entries({ grad, gradEntropy }))
      if (values && values.length !== cuSeqlens.at(-1))
        throw new LossError(
          'ERR_SHAPE_MISMATCH',
          `${name}: expected ${cuSeqlens.at(-1)} values, one per token, not ${values.length}`,
        );
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
      const whole = join(staging.directory, 'whole');
      await this.#write(staging, whole, { layout: this.#layout, name: this.#file });
      const { size: bytes } = await stat(whole);
      await rename(whole, this.#file);
      await this.abort();
      return { rows, tokens, bytes };
    });
  }

  async abort() {
    await this.#staging?.remove();
    this.#staging = undefined;
  }

  async #stage(): Promise<Staging> {
    this.#staging ??= await Staging.beside(this.#file);
    return this.#staging;
  }
}
