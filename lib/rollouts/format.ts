// Chooses the function that reads a file, by the ending of the file's name.
import { readCsv } from './csv.js';
import { type Format, formatOf, splitTable, unknownFormat } from './file-name.js';
import { readJsonLines } from './json-lines.js';
import { readParquet } from './parquet.js';
import type { ReadRows } from './source.js';
import { readSqlite } from './sqlite.js';
import { openNpz } from './tensor/npz.js';
import { readTensors } from './tensor/rows.js';
import { openSafetensors } from './tensor/safetensors.js';

const FORMATS: readonly (Format & { read: ReadRows })[] = [
  { endings: ['.jsonl', '.ndjson', '.json', '.jsonl.gz', '.ndjson.gz', '.json.gz'], read: readJsonLines },
  { endings: ['.csv', '.tsv', '.csv.gz', '.tsv.gz'], read: readCsv },
  { endings: ['.parquet'], read: readParquet },
  { endings: ['.sqlite', '.sqlite3', '.db'], read: readSqlite },
  { endings: ['.safetensors'], read: readTensors(openSafetensors) },
  { endings: ['.npz'], read: readTensors(openNpz) },
];

/**
 * Returns the function that reads a file. A file whose name has no ending, such as a pipe, is read as JSON lines.
 * @throws LossError `ERR_INVALID_INPUT` for an unknown ending.
 */
export function readerOf(name: string): ReadRows {
  const { file } = splitTable(name);
  const format = formatOf(FORMATS, file);
  if (format) return format.read;
  if (!/\.[^/\\.]+$/.test(file)) return readJsonLines;
  throw unknownFormat('ERR_INVALID_INPUT', name, FORMATS);
}
