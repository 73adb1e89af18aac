// Translates errors about batches, which name keys and positions, into errors about files, which name columns and rows.
import { LossError } from '../../index.js';
import { adviceOnNear, adviceOnStandIn } from '../rollouts/column-names.js';
import { isPerRow } from '../rollouts/columns.js';
import { columnOfKey, describePlace, type RolloutColumn, type RolloutPart } from '../rollouts/index.js';
import type { Subject } from './subject.js';

/**
 * Computes something of a part for a subject. An error about the batch is thrown as one about the files.
 * @param files the names of the files.
 */
export async function termsOfFiles<T>(
  files: readonly string[],
  subject: Subject,
  part: RolloutPart,
  compute: () => Promise<T>,
): Promise<T> {
  try {
    return await compute();
  } catch (error) {
    throw inTermsOfFiles(error, subject, part, files);
  }
}

/**
 * Returns an error from a subject's computation with the batch's keys and positions replaced by the files' columns and
 * rows. An error that does not concern the batch is returned unchanged.
 * @param part the part that the subject was computed on.
 */
function inTermsOfFiles(
  error: unknown,
  subject: Subject,
  part: RolloutPart,
  files: readonly string[],
): unknown {
  if (!(error instanceof LossError) || error.key === undefined) return error;
  const { key, index } = error;
  const isGiven = part.batch[key] !== undefined;
  if (error.code === 'ERR_MISSING_INPUT') {
    // No column is called tokenLevelScores: the KL penalty makes these scores from the column `reward`, so the error
    // must name that column.
    const column = key === 'tokenLevelScores' ? 'reward' : columnOfKey(key);
    return isGiven || column === undefined ? error : missingColumn(error, column, subject, part, files);
  }
  if (LAYOUT.has(key)) return error.with({ at: nameOf(files), key: undefined });
  const column = columnOfKey(key);
  if (column === undefined || !isGiven || index === undefined) return error;
  const { row, token } = isPerRow(column) ? { row: index, token: undefined } : tokenAt(part, index);
  const place = part.places[row];
  return place ? error.with({ at: describePlace(place), key: column, index: token }) : error;
}

/** The batch keys that say how long the rows are. No column holds them, so an error about them names only the files. */
const LAYOUT: ReadonlySet<string> = new Set(['shape', 'cuSeqlens']);

function tokenAt({ batch: { cuSeqlens } }: RolloutPart, index: number): { row: number; token: number } {
  const row = cuSeqlens.findIndex((start) => start > index) - 1;
  return { row, token: index - cuSeqlens[row]! };
}

function missingColumn(
  error: LossError,
  column: RolloutColumn,
  subject: Subject,
  { fileColumns = [] }: RolloutPart,
  files: readonly string[],
): LossError {
  const substitutes = subject.substitutes(column);
  const reason = column === 'advantages' ? subject.advantageObstacle : undefined;
  const hint =
    [column, ...(COMPUTED.has(column) ? INPUTS : [])]
      .map((each) => adviceOnNear(each, each, fileColumns))
      .find((advice) => advice !== undefined) ?? adviceOnStandIn(column, fileColumns);
  return error.with({
    at: subject.name,
    key: column,
    expected: ['this column in every row', ...substitutes].join(', or ') + (reason ? `, ${reason}` : ''),
    received: `${substitutes.length === 0 ? 'no such column' : 'none of them'} in ${nameOf(files)}`,
    ...(hint !== undefined && { hint }),
  });
}

/** The columns that can be computed from others, and these others. */
const COMPUTED: ReadonlySet<RolloutColumn> = new Set(['advantages', 'token_level_rewards']);
const INPUTS: readonly RolloutColumn[] = ['reward', 'task_id'];

function nameOf(files: readonly string[]): string {
  return files.length === 1 ? files[0]! : 'the files';
}
