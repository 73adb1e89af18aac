// Which format a file has, by the end of its name.
import { LossError } from '../core/errors.js';
import { readCsv } from './csv.js';
import { readJsonLines } from './json-lines.js';
import { readParquet } from './parquet.js';
import type { ReadRows } from './source.js';
import { readSqlite } from './sqlite.js';
import { splitTable } from './table-name.js';
import { openNpz } from './tensor/npz.js';
import { readTensors } from './tensor/rows.js';
import { openSafetensors } from './tensor/safetensors.js';

const FORMATS: readonly { endings: readonly string[]; read: ReadRows }[] = [
  { endings: ['.jsonl', '.ndjson', '.json', '.jsonl.gz', '.ndjson.gz', '.json.gz'], read: readJsonLines },
  { endings: ['.csv', '.tsv', '.csv.gz', '.tsv.gz'], read: readCsv },
  { endings: ['.parquet'], read: readParquet },
  { endings: ['.sqlite', '.sqlite3', '.db'], read: readSqlite },
  { endings: ['.safetensors'], read: readTensors(openSafetensors) },
  { endings: ['.npz'], read: readTensors(openNpz) },
];

/**
 * The reader of a file. One with no ending at all, as a pipe has none, holds JSON lines.
 * @throws LossError `ERR_INVALID_INPUT` naming the formats there are.
 */
export function readerOf(file: string): ReadRows {
  const name = splitTable(file).file.toLowerCase();
  const format = FORMATS.find(({ endings }) => endings.some((ending) => name.endsWith(ending)));
  if (format) return format.read;
  if (!/\.[^/\\.]+$/.test(name)) return readJsonLines;
  const known = FORMATS.flatMap(({ endings }) => endings).join(', ');
  throw new LossError('ERR_INVALID_INPUT', `${file}: expected a name that ends in one of ${known}`);
}
