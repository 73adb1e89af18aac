// Trinity-RFT's buffers in SQLite: a table whose column experience_bytes holds an experience in each row.
import { stat } from 'node:fs/promises';
import { Bytes } from '../bytes.js';
import { splitTable } from '../file-name.js';
import { maxRowBytes } from '../limits.js';
import { cannotRead, errorAt, type FileRow, type Place, type ReadRows, STDIN } from '../source.js';
import { located, rowOf } from './dump.js';
import { readExperiences, type Stored, trinityDump } from './trinity.js';

/** A row of a buffer. */
interface StoredExperience extends Stored {
  blob: Uint8Array;
}

const BLOB = 'experience_bytes';
const STORED = ['task_id', 'run_id', 'reward'] as const;
const ROWS_PER_BLOCK = 16;

/**
 * Returns a reader of SQLite files that decodes Trinity-RFT's experiences.
 * @param otherwise reads a file without them.
 */
export function readTrinityBuffer(otherwise: ReadRows): ReadRows {
  return async function* (name, names, onBytes, settings) {
    const experiences = name === STDIN ? undefined : await experienceBlobs(name, maxRowBytes(settings));
    if (!experiences) {
      yield* otherwise(name, names, onBytes, settings);
      return;
    }
    try {
      const { size } = await stat(splitTable(name).file);
      let block: FileRow[] = [];
      let row = 0;
      for (const one of experiences) {
        const place: Place = { file: name, row: ++row };
        block.push(...rowsIn(one, place));
        if (block.length < ROWS_PER_BLOCK) continue;
        yield block;
        block = [];
      }
      yield block;
      onBytes(size);
    } catch (error) {
      throw cannotRead(name, error);
    }

    /** Returns the experiences of a table's row. An error in their bytes is that row's. */
    function rowsIn({ blob, ...stored }: StoredExperience, place: Place): FileRow[] {
      try {
        const found = located(place, () => readExperiences(Bytes.ofArray(place.file, blob)));
        const dump = trinityDump(found, () => (found.length === 1 ? stored : {}));
        return found.map((_, i) => rowOf(dump, i, names, settings, place));
      } catch (error) {
        return [
          {
            place,
            read() {
              throw error;
            },
          },
        ];
      }
    }
  };
}

type SqlRow = Record<string, unknown>;

interface Statement {
  iterate(): Iterable<SqlRow>;
}

/** The part of the module node:sqlite that this file uses. */
interface NodeSqlite {
  DatabaseSync: new (
    file: string,
    options: { readOnly: boolean },
  ) => { prepare(query: string): Statement & { setReadBigInts(on: boolean): void }; close(): void };
}

/**
 * Returns the rows of a buffer; undefined if the file has no table of experiences, or if this version of Node cannot read
 * SQLite.
 * @param maxBytes the largest number of bytes that an experience may have.
 */
async function experienceBlobs(
  name: string,
  maxBytes: number,
): Promise<Iterable<StoredExperience> | undefined> {
  const { file, suffix } = splitTable(name);
  // The type declarations of the oldest supported Node lack this module.
  const module: string = 'node:sqlite';
  const sqlite = (await import(module).catch(() => undefined)) as NodeSqlite | undefined;
  if (!sqlite) return undefined;
  let database: InstanceType<NodeSqlite['DatabaseSync']> | undefined;
  try {
    database = new sqlite.DatabaseSync(file, { readOnly: true });
    const table = tableOf(database, suffix.slice(1));
    if (table !== undefined) return blobsOf(database, name, table, maxBytes);
  } catch {
    // The other reader will report the reason.
  }
  database?.close();
  return undefined;
}

type Database = InstanceType<NodeSqlite['DatabaseSync']>;

const quoted = (name: string) => `"${name.replaceAll('"', '""')}"`;

function columnsOf(database: Database, table: string): string[] {
  return [...database.prepare(`PRAGMA table_info(${quoted(table)})`).iterate()].map(({ name }) =>
    String(name),
  );
}

/** Returns the asked table, or the only one, if it holds experiences. */
function tableOf(database: Database, asked: string): string | undefined {
  const tables = [...database.prepare('PRAGMA main.table_list').iterate()]
    .filter(({ name, type }) => type === 'table' && !String(name).startsWith('sqlite_'))
    .map(({ name }) => String(name))
    .filter((name) => (asked === '' || name === asked) && columnsOf(database, name).includes(BLOB));
  return tables.length === 1 ? tables[0] : undefined;
}

function* blobsOf(
  database: Database,
  file: string,
  table: string,
  maxBytes: number,
): Generator<StoredExperience> {
  try {
    const columns = columnsOf(database, table);
    const stored = STORED.filter((name) => columns.includes(name));
    const order = columns.includes('id') ? ' ORDER BY id' : '';
    const size = `octet_length(${quoted(BLOB)})`;
    const list = [`iif(${size} <= ${maxBytes}, ${quoted(BLOB)}, NULL) AS blob`, `${size} AS size`];
    const query = `SELECT ${[...list, ...stored.map(quoted)].join(', ')} FROM main.${quoted(table)}${order}`;
    let row = 0;
    for (const { blob, size: bytes, ...values } of database.prepare(query).iterate()) {
      row++;
      if (Number(bytes) > maxBytes)
        throw errorAt({ file, row }, 'ERR_INVALID_INPUT', {
          key: BLOB,
          expected: `at most ${maxBytes} bytes`,
          received: String(bytes),
        });
      if (!(blob instanceof Uint8Array))
        throw errorAt({ file, row }, 'ERR_INVALID_INPUT', { key: BLOB, expected: 'bytes', received: 'none' });
      yield { blob, ...values };
    }
  } finally {
    database.close();
  }
}
