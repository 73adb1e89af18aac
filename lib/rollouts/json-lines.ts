// JSON lines: one object a line, and a row each.
import { describeValue } from '../core/errors.js';
import { readRecords, type TextRecord } from './records.js';
import { at, type FileRow, type Place, type ReadRows } from './source.js';

/** Reads JSON lines. Blank lines are skipped. */
export const readJsonLines: ReadRows = async function* (file, _names, onBytes) {
  for await (const records of readRecords(file, 'line', onBytes)) yield rowsOf(file, records);
};

function* rowsOf(file: string, records: Iterable<TextRecord>): Generator<FileRow> {
  for (const { text, line } of records) {
    const place = { file, line };
    yield { place, read: () => parseRow(text, place) };
  }
}

function parseRow(json: string, place: Place): Record<string, unknown> {
  const row = parseJson(json, 'a JSON object', place);
  if (row === null || typeof row !== 'object' || Array.isArray(row))
    throw at(
      place,
      'ERR_INVALID_INPUT',
      `expected a JSON object, not ${describeValue(row)}${hint(json, place)}`,
    );
  return row as Record<string, unknown>;
}

/**
 * Parses JSON.
 * @param expected what it is to be, for the message.
 * @throws LossError `ERR_INVALID_INPUT`
 */
export function parseJson(json: string, expected: string, place: Place): unknown {
  try {
    return JSON.parse(json);
  } catch (error) {
    const word = /\b(?:NaN|Infinity)\b/.exec(json.replace(/"(?:[^"\\]|\\.)*"/g, '""'))?.[0];
    const reason = word
      ? `${word} came, which JSON has no way to write (Python's json.dumps writes it all the same). ` +
        'Put a number there; under an action_mask of 0 it is not read'
      : `it does not parse: ${(error as Error).message}${hint(json, place)}`;
    throw at(place, 'ERR_INVALID_INPUT', `expected ${expected}, and ${reason}`, error);
  }
}

// A file that is one JSON array is the usual reason for a first line without an object.
function hint(json: string, { line }: Place): string {
  return line === 1 && json.startsWith('[')
    ? ". Where the file is one array, `jq -c '.[]'` makes lines of it"
    : '';
}
