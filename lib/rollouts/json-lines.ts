// Reads JSON lines: each line is one object, which is one row.
import { describeValue } from '../core/errors.js';
import { readRecords, type TextRecord } from './records.js';
import { errorAt, type FileRow, type Place, type ReadRows } from './source.js';

/** Reads a file of JSON lines. Skips blank lines. */
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
  const expected = 'a JSON object';
  const row = parseJson(json, expected, place);
  if (row === null || typeof row !== 'object' || Array.isArray(row))
    throw errorAt(place, 'ERR_INVALID_INPUT', {
      expected,
      received: describeValue(row),
      hint: arrayHint(json, place),
    });
  return row as Record<string, unknown>;
}

/**
 * Parses JSON text. `place`, `expected` and `key` are used only for the error message.
 * @param expected the kind of value that the text should hold.
 * @param key the name of the column that holds the text.
 * @throws LossError `ERR_INVALID_INPUT` if the text is not valid JSON.
 */
export function parseJson(json: string, expected: string, place: Place, key?: string): unknown {
  try {
    return JSON.parse(json);
  } catch (error) {
    const withoutStrings = json.replace(/"(?:[^"\\]|\\.)*"/g, '""');
    const word = /\b(?:NaN|Infinity)\b/.exec(withoutStrings)?.[0];
    const details =
      word === undefined
        ? {
            received: `text that does not parse (${(error as Error).message})`,
            hint: arrayHint(json, place),
          }
        : {
            received: `${word}, which JSON cannot represent`,
            hint:
              "Python's json.dumps writes it nevertheless. Put a number there; where action_mask is 0, " +
              'any number will do',
          };
    throw errorAt(place, 'ERR_INVALID_INPUT', { key, expected, ...details }, error);
  }
}

/**
 * Returns a hint for the error message if line 1 begins like an array. The file is then probably a single JSON array
 * instead of JSON lines.
 */
function arrayHint(json: string, { line }: Place): string | undefined {
  if (line !== 1 || !json.startsWith('[')) return undefined;
  return "If the file is one JSON array, `jq -c '.[]'` converts it to lines";
}
