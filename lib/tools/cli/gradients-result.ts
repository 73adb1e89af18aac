import type { FilesEvaluation, SubjectEvaluation } from '../parts/index.js';
import { csv, type Printable, twoColumns } from './output.js';
import type { TitledSubject } from './typed-subjects.js';

/** The result of `policy-loss gradients`, as `--json` prints it: with strings such as "NaN" for non-finite numbers. */
export interface WrittenGradients {
  /** The name of the loss or algorithm. */
  name: string;
  /** The written file; absent with --queue. */
  file?: string;
  /** With --queue, the written files: one for each shard that has rows, in the order of the rows. */
  files?: string[];
  loss: number;
  /** The Euclidean norm of the gradient. */
  gradNorm: number;
  rows: number;
  /** The number of unmasked tokens in all rows. */
  tokens: number;
  /** The size of the written file or files in bytes. */
  bytes: number;
  /** The number of invalid rows that were skipped; absent without --skip-bad-rows. */
  skipped?: number;
}

/**
 * Returns the result of `gradients` in its printed forms.
 * @param skipped the number of invalid rows that were skipped; undefined without --skip-bad-rows.
 * @param to what was written: a file, or the files of a run on a queue.
 */
export function printableGradients(
  { subjects, rows, tokens }: FilesEvaluation<TitledSubject>,
  skipped: number | undefined,
  { bytes, ...to }: Pick<WrittenGradients, 'file' | 'files' | 'bytes'>,
): Printable {
  const [{ subject, loss, gradNorm }] = subjects as [SubjectEvaluation<TitledSubject>];
  const written: WrittenGradients = {
    name: subject.name,
    ...to,
    loss,
    gradNorm,
    rows,
    tokens,
    bytes,
    ...(skipped !== undefined && { skipped }),
  };
  return {
    json: () => written,
    csv() {
      const { files, ...cells } = written;
      const all = { ...cells, ...(files && { files: files.join(' ') }) };
      return csv(Object.keys(all), [Object.values(all)]);
    },
    text: () => describe(written),
  };
}

function describe({
  name,
  file,
  files,
  loss,
  gradNorm,
  rows,
  tokens,
  bytes,
  skipped,
}: WrittenGradients): string {
  return twoColumns([
    ['function', name],
    ['loss', loss],
    ['gradient norm', gradNorm],
    ['rows', String(rows)],
    ['tokens', String(tokens)],
    ...(skipped === undefined ? [] : [['rows skipped', String(skipped)] as const]),
    ['bytes', String(bytes)],
    ...(file === undefined ? [] : [['file', file] as const]),
    ...(files ?? []).map((each, i) => [i === 0 ? 'files' : '', each] as const),
  ]);
}
