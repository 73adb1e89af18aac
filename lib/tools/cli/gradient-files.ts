// The files of gradients that a run on a queue leaves: one per shard, with the name of --out and the number of the shard.
import { access, constants, copyFile, mkdir, readdir, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { LossError } from '../../index.js';
import { GRADIENT_ENDINGS, gradientsFiles, type Plan } from '../parts/index.js';
import { partName, readResult } from '../parts/part-file.js';
import { isRemote } from '../rollouts/remote/index.js';
import { writing } from '../rollouts/write/staging.js';
import { makeTemporaryFolder, removeTemporaryFolder } from '../rollouts/write/temporary.js';

/** The ending of a file of gradients. */
export type GradientEnding = (typeof GRADIENT_ENDINGS)[number];

/**
 * Returns the ending of the name of a file of gradients, which says its format.
 * @throws LossError `ERR_INVALID_OPTION` for another ending.
 */
export function endingOf(out: string): GradientEnding {
  const ending = GRADIENT_ENDINGS.find((each) => out.endsWith(`.${each}`));
  if (ending) return ending;
  throw new LossError('ERR_INVALID_OPTION', {
    option: 'out',
    expected: `a name that ends in ${GRADIENT_ENDINGS.map((each) => `.${each}`).join(', ')}`,
    received: out,
  });
}

/**
 * Makes the folder of files of gradients. Must be called before the computation, which can take hours.
 * @throws LossError `ERR_INVALID_OPTION` if it is on a server; `ERR_INVALID_INPUT` if files cannot be written there.
 */
export async function makeFolderFor(out: string): Promise<void> {
  if (isRemote(out))
    throw new LossError('ERR_INVALID_OPTION', { option: 'out', expected: 'a local file', received: 'a URL' });
  await writing(out, async () => {
    await mkdir(dirname(out), { recursive: true });
    await access(dirname(out), constants.W_OK);
  });
}

/** The files that were written. */
export interface WrittenFiles {
  /** The files of the shards that have rows, in the order of the rows. */
  files: string[];
  /** Their size in bytes. */
  bytes: number;
}

/** The files of a run's gradients. */
export class GradientFiles {
  readonly #plan: Plan;
  readonly #files: readonly string[];

  private constructor(plan: Plan, files: readonly string[]) {
    this.#plan = plan;
    this.#files = files;
  }

  /**
   * Prepares to write the gradients of a plan. Returns undefined for a plan without gradients.
   * @param out the name of the files without the numbers of shards.
   * @throws LossError `ERR_INVALID_OPTION` if `out` does not suit the plan, or if an earlier run with more shards has left
   * files with this name.
   */
  static async of(plan: Plan, out: string | undefined): Promise<GradientFiles | undefined> {
    const { gradients } = plan.configuration;
    if (out !== undefined && gradients && out.endsWith(`.${gradients.ending}`)) {
      const stem = basename(out, `.${gradients.ending}`);
      const files = gradientsFiles(plan, dirname(out), stem);
      await refuseOthers(files, stem, gradients.ending);
      return new GradientFiles(plan, files);
    }
    if (out === undefined && !gradients) return undefined;
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'out',
      expected: gradients
        ? `a name that ends in .${gradients.ending}`
        : 'no file, because this run has no gradients',
      received: out ?? 'nothing',
    });
  }

  /** The names of the files. */
  get names(): readonly string[] {
    return this.#files;
  }

  /**
   * Gives the files of a run's folder their names. They are complete or absent.
   * @throws LossError `ERR_INVALID_INPUT` if one cannot be written, or if the folder lacks one of a shard with rows.
   */
  async place(folder: string): Promise<WrittenFiles> {
    const written: WrittenFiles = { files: [], bytes: 0 };
    for (const [i, source] of gradientsFiles(this.#plan, folder).entries()) {
      const file = this.#files[i]!;
      const size = await stat(source).then(
        ({ size }) => size,
        () => undefined,
      );
      if (size === undefined) {
        await this.#checkEmpty(folder, i, source);
        await writing(file, () => rm(file, { force: true }));
        continue;
      }
      await writing(file, () => place(source, file));
      written.files.push(file);
      written.bytes += size;
    }
    return written;
  }

  /** Throws an error unless a shard has no rows. The run may have been cancelled or removed since its parts were read. */
  async #checkEmpty(folder: string, shard: number, source: string): Promise<void> {
    const { rows } = await readResult(join(folder, partName({ phase: 'compute', shard })), this.#plan);
    if (rows > 0)
      throw new LossError('ERR_INVALID_INPUT', {
        at: source,
        expected: `the gradients of ${rows} rows`,
        received: 'no file',
      });
  }
}

/** Copies a file. The copy is complete or absent. */
async function place(source: string, file: string): Promise<void> {
  const folder = makeTemporaryFolder(join(dirname(file), `.${basename(file)}-`));
  try {
    const complete = join(folder, 'complete');
    // Not a link, because other submitters of the run place the same file.
    await copyFile(source, complete, constants.COPYFILE_FICLONE);
    await rename(complete, file);
  } finally {
    await removeTemporaryFolder(folder);
  }
}

/** Throws an error if there are files with the names of further shards, which readers would take for this run's. */
async function refuseOthers(files: readonly string[], stem: string, ending: string): Promise<void> {
  const folder = dirname(files[0]!);
  const own = new Set(files.map((file) => basename(file)));
  const names = await readdir(folder).catch(() => []);
  const other = names.find(
    (name) =>
      !own.has(name) &&
      name.startsWith(`${stem}-`) &&
      name.endsWith(`.${ending}`) &&
      /^\d{5,}$/.test(name.slice(stem.length + 1, -ending.length - 1)),
  );
  if (other !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      at: join(folder, other),
      option: 'out',
      expected: `a folder without gradients of more than ${files.length} shards`,
      received: 'such a file',
      hint: 'Remove it, or choose another name',
    });
}
