// Errors about batches, in terms of the files that these were made of.

import { LossError } from '../index.js';
import { columnOfKey, type RolloutPart } from '../rollouts/index.js';
import { at } from '../rollouts/source.js';
import type { Subject } from './subject.js';

/**
 * What a function complains of, for whoever has files and not batches. The functions themselves know best what they
 * cannot do without (with some options they read less than their keys) and what they cannot compute with; columns and
 * rows they do not know.
 */
export function inTermsOfFiles(
  error: unknown,
  subject: Subject,
  part: RolloutPart,
  files: readonly string[],
): unknown {
  if (!(error instanceof LossError)) return error;
  const key = /^the batch has no (\w+)/.exec(error.message)?.[1];
  if (error.code === 'ERR_MISSING_INPUT' && key !== undefined && part.batch[key] === undefined)
    return withoutColumn(error, key, subject, files);
  const [, wrong, index, says] = /^(\w+)\[(\d+)\]: (.*)$/s.exec(error.message) ?? [];
  const column = wrong === undefined ? undefined : columnOfKey(wrong);
  if (column === undefined || part.batch[wrong!] === undefined) return error;
  const { row, token } = PER_ROW.has(wrong!) ? { row: Number(index) } : tokenAt(part, Number(index));
  const place = part.places[row];
  if (!place) return error;
  const name = token === undefined ? column : `${column}[${token}]`;
  return at(place, error.code, `${name}: ${says}`, error);
}

// Keys with a number per row.
const PER_ROW: ReadonlySet<string> = new Set(['rewards', 'rewardBaselines']);

function tokenAt({ batch: { cuSeqlens } }: RolloutPart, index: number): { row: number; token?: number } {
  const row = cuSeqlens.findIndex((start) => start > index) - 1;
  return { row, token: index - cuSeqlens[row]! };
}

function withoutColumn(error: LossError, key: string, subject: Subject, files: readonly string[]): LossError {
  // Of rewards that a penalty is to be taken from files have one a row.
  const column = key === 'tokenLevelScores' ? 'reward' : columnOfKey(key);
  if (column === undefined) return error;
  const instead = subject.insteadOf(column);
  const expected = ['it in every row', ...instead].join(', or ');
  const found = ['it in none', 'neither', 'none of them'][instead.length]!;
  const where = files.length === 1 ? `${files[0]} has` : 'the files have';
  return new LossError(
    'ERR_MISSING_INPUT',
    `${subject.name} reads the column ${column}: expected ${expected}, and ${where} ${found}`,
    { cause: error },
  );
}
