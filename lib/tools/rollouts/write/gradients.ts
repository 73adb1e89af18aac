// Writes gradients to a file. Each row of the file has the gradients of one rollout and the ids that identify it.
import { rename, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { LossError } from '../../../base/errors.js';
import { type Format, formatOf, unknownFormat } from '../file-name.js';
import type { RolloutPart } from '../part-builder.js';
import { writeJsonLines } from './json-lines.js';
import { writeParquet } from './parquet.js';
import { writeSafetensors } from './safetensors.js';
import { type GradientDtype, type Layout, Staging, type WriteStaged, writing } from './staging.js';

/** Options of {@link writeGradients}. */
export interface GradientOptions {
  /** Columns to write next to each row's gradient, to identify the row. Each part's `kept` must contain them. */
  ids?: readonly string[];
  /**
   * For tensor files only. 'packed' (the default): the rows follow one another, and cu_seqlens holds their offsets.
   * 'padded': the shape is [B, T], and short rows are padded with 0.
   */
  layout?: Layout;
  /** To which dtype gradients are rounded: to nearest, with ties to even. The default is 'float32'. */
  dtype?: GradientDtype;
}

/** The rows whose gradients are written. */
export type WrittenRows = Pick<RolloutPart, 'places' | 'kept'> & { batch: { cuSeqlens: Int32Array } };

/** Writes gradients part by part. Until the file is complete, it has a temporary name. */
export interface GradientWriter {
  /**
   * Adds the gradients of a part.
   * @param part the rows. Its offsets are those of the gradients, which begin at the tokens of each row, or at the row for
   * gradients with one number per row.
   * @param grad the gradient by the column by which the loss is differentiated, one number per token of the part.
   * @param gradEntropy ∂loss/∂entropy, one number per token. Pass it with every part or with none.
   */
  add(part: WrittenRows, grad: Float32Array, gradEntropy?: Float32Array): Promise<void>;
  /** Completes the file. Returns the number of rows and tokens in it, and its size in bytes. */
  close(): Promise<{ rows: number; tokens: number; bytes: number }>;
  /** Removes everything that has been written so far. Does nothing after close(). */
  abort(): Promise<void>;
}

/** The dtypes that gradients can have in files. */
export const GRADIENT_DTYPES = ['float32', 'float16', 'bfloat16'] as const satisfies GradientDtype[];

interface GradientFormat extends Format {
  write: WriteStaged;
  /** The dtypes that gradients can have in this format. */
  dtypes: readonly GradientDtype[];
}

const FORMATS: readonly GradientFormat[] = [
  { endings: ['.safetensors'], write: writeSafetensors, dtypes: GRADIENT_DTYPES },
  { endings: ['.parquet'], write: writeParquet, dtypes: ['float32', 'float16'] },
  { endings: ['.jsonl', '.ndjson', '.jsonl.gz', '.ndjson.gz'], write: writeJsonLines, dtypes: ['float32'] },
];

// The columns that the writer itself adds. Ids cannot have these names.
const RESERVED = ['grad', 'grad_entropy', 'cu_seqlens', 'lengths'];

/**
 * Returns a writer of gradients. The ending of the file's name determines the format: `.safetensors`, `.parquet`, or
 * `.jsonl` and `.ndjson` (JSON lines), which may be compressed (`.jsonl.gz`). Each row has `file`, `row` (its line or
 * row number in that file), its ids, `grad` and, if it was passed, `grad_entropy`.
 * - In JSON lines, a number has only as many digits as identify a float32. A number that is not finite
 *   becomes a string: "NaN", "Infinity" or "-Infinity".
 * - In safetensors, gradients are tensors of the given dtype. The packed layout adds `cu_seqlens`, the padded layout adds
 *   `lengths`. Numeric ids become tensors. For other ids, the metadata holds a JSON list of the different values under
 *   the column's name, and the column's tensor holds each row's index into this list (-1 if the row has no value).
 * @throws LossError `ERR_INVALID_OPTION` if the format is unknown or lacks the dtype, or if an id has a reserved name. The
 * writer's methods reject with `ERR_INVALID_INPUT` if the file cannot be written, and with `ERR_SHAPE_MISMATCH` if an
 * array does not have one number per token.
 */
export function writeGradients(
  file: string,
  { ids = [], layout = 'packed', dtype = 'float32' }: GradientOptions = {},
): GradientWriter {
  const { write } = formatWith(dtype, file);
  const reserved = ids.find((name) => RESERVED.includes(name));
  if (reserved !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'ids',
      expected: `columns other than ${RESERVED.join(', ')}, which the writer adds itself`,
      received: reserved,
    });
  return new StagedWriter(file, ids, (staging, complete) =>
    write(staging, complete, { layout, dtype, name: file }),
  );
}

/**
 * Checks that the format of a file of gradients has a dtype.
 * @throws LossError `ERR_INVALID_OPTION` if it does not, or if the format is unknown.
 */
export function checkGradientDtype(dtype: GradientDtype, file: string): void {
  formatWith(dtype, file);
}

function formatWith(dtype: GradientDtype, file: string): GradientFormat {
  const format = formatOf(FORMATS, file);
  if (!format) throw unknownFormat('ERR_INVALID_OPTION', file, FORMATS);
  if (format.dtypes.includes(dtype)) return format;
  throw new LossError('ERR_INVALID_OPTION', {
    option: 'dtype',
    expected: `${format.dtypes.join(' or ')} for a file that ends in ${format.endings[0]}`,
    received: dtype,
    ...(GRADIENT_DTYPES.includes(dtype) && { hint: 'Files of .safetensors can have this dtype' }),
  });
}

class StagedWriter implements GradientWriter {
  readonly #file: string;
  readonly #ids: readonly string[];
  readonly #write: (staging: Staging, complete: string) => Promise<void>;
  #staging: Staging | undefined;

  /** @param write writes all staged rows to a file with a temporary name. */
  constructor(
    file: string,
    ids: readonly string[],
    write: (staging: Staging, complete: string) => Promise<void>,
  ) {
    this.#file = file;
    this.#ids = ids;
    this.#write = write;
  }

  async add({ batch, places, kept }: WrittenRows, grad: Float32Array, gradEntropy?: Float32Array) {
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
      await this.#write(staging, complete);
      const { size: bytes } = await stat(complete);
      await rename(complete, this.#file);
      await this.abort();
      return { rows, tokens, bytes };
    });
  }

  async abort() {
    const staging = this.#staging;
    this.#staging = undefined;
    await writing(this.#file, async () => staging?.remove());
  }

  async #stage(): Promise<Staging> {
    this.#staging ??= await Staging.nextTo(this.#file);
    return this.#staging;
  }
}
