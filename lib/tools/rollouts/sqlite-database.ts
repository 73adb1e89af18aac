// Opens SQLite databases: with Node's own SQLite, and on a Node without it with one that is compiled to WebAssembly.
import { open, stat, symlink } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { badFile } from './source.js';
import { makeScratchFolder, removeTemporaryFolder } from './write/temporary.js';

type SqlRow = Record<string, unknown>;

/** An open database. */
export interface Database {
  /** Runs a query and returns its rows one by one. Integers that a number cannot hold exactly are bigints. */
  rows(query: string): Iterable<SqlRow>;
  /** Runs a query and returns all its rows. */
  all(query: string): SqlRow[];
  close(): Promise<void>;
}

/**
 * The part of the module node:sqlite that this file uses. Node has had the module since 22.5, and `iterate()` since
 * 22.13.
 */
interface NodeSqlite {
  DatabaseSync: new (
    file: string,
    options: { readOnly: boolean },
  ) => {
    prepare(query: string): {
      setReadBigInts(on: boolean): void;
      iterate?(): Iterable<SqlRow>;
    };
    close(): void;
  };
}

/**
 * Opens a database for reading.
 * @param name what error messages call the file.
 * @throws LossError `ERR_INVALID_INPUT` if this version of Node cannot read the database.
 */
export async function openDatabase(file: string, name: string): Promise<Database> {
  const [major, minor] = process.versions.node.split('.').map(Number) as [number, number];
  if (major < 22 || (major === 22 && minor < 13)) return openWithWebAssembly(file, name);
  // The type declarations of the oldest supported Node lack this module. With a name of type `string`, the compiler
  // does not look for it.
  const module: string = 'node:sqlite';
  const { DatabaseSync } = (await import(module)) as NodeSqlite;
  const database = new DatabaseSync(file, { readOnly: true });
  const rows = (query: string) => {
    const statement = database.prepare(query);
    statement.setReadBigInts(true);
    return statement.iterate!();
  };
  return { rows, all: (query) => [...rows(query)], close: async () => database.close() };
}

/**
 * Opens a database with SQLite as WebAssembly, which reads pages from the disk as it needs them. To lock a database, it
 * makes a directory beside it, so it gets a link in a temporary folder: a file's own folder may be read-only.
 */
async function openWithWebAssembly(file: string, name: string): Promise<Database> {
  await checkJournal(file, name);
  const { default: sqlite } = await import('node-sqlite3-wasm');
  const folder = makeScratchFolder('sqlite');
  try {
    const link = join(folder, 'database');
    await symlink(resolve(file), link);
    const database = new sqlite.Database(link, { readOnly: true, fileMustExist: true });
    const rows = function* (query: string): Generator<SqlRow> {
      const statement = database.prepare(query);
      try {
        yield* statement.iterate() as Iterable<SqlRow>;
      } finally {
        statement.finalize();
      }
    };
    const close = async () => {
      database.close();
      await removeTemporaryFolder(folder);
    };
    return { rows, all: (query) => [...rows(query)], close };
  } catch (error) {
    await removeTemporaryFolder(folder);
    throw error;
  }
}

// SQLite as WebAssembly can read neither a write-ahead log nor the journal of a change that was interrupted.
async function checkJournal(file: string, name: string): Promise<void> {
  const header = Buffer.alloc(VERSIONS_END);
  const handle = await open(file, 'r');
  try {
    await handle.read(header, 0, header.length, 0);
  } finally {
    await handle.close();
  }
  const hasLog = header.subarray(VERSIONS_BEGIN).some((version) => version === WITH_LOG);
  const hasJournal = await stat(`${file}-journal`).then(
    ({ size }) => size > 0,
    () => false,
  );
  if (!hasLog && !hasJournal) return;
  throw badFile(name, {
    expected: `Node 22.13 or later for a database with ${hasLog ? 'a write-ahead log' : 'an unfinished change'}`,
    received: `Node ${process.versions.node}`,
    hint: `Or run: sqlite3 ${file} 'PRAGMA journal_mode = DELETE'`,
  });
}

// The bytes of the header that say whether the database has a write-ahead log.
const VERSIONS_BEGIN = 18;
const VERSIONS_END = 20;
const WITH_LOG = 2;
