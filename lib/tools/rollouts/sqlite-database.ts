// Opens SQLite databases: with Node's own SQLite, and on a Node without it with one that is compiled to WebAssembly. No
// file is written in the folder of a database.
import { constants } from 'node:fs';
import { copyFile, open, realpath, rm, stat, symlink } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
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
 * The part of the module node:sqlite that this file uses. Node has had the module since 22.5, `iterate()` since 22.13, and
 * URLs of databases since 22.15 and 23.10.
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
  const knowsUrls = major > 23 || (major === 23 ? minor >= 10 : minor >= 15);
  const isReadable = (path: string) => {
    const database = new DatabaseSync(path, { readOnly: true });
    try {
      return [...database.prepare('PRAGMA schema_version').iterate!()].length > 0;
    } catch {
      return false;
    } finally {
      database.close();
    }
  };
  const { path, readOnly, remove } = await withoutTraces(file, name, knowsUrls, isReadable);
  try {
    const database = new DatabaseSync(path, { readOnly });
    // The iterators of some versions of Node do not keep their statements alive.
    const statements = new Set<unknown>();
    const rows = (query: string) => {
      const statement = database.prepare(query);
      statements.add(statement);
      statement.setReadBigInts(true);
      return statement.iterate!();
    };
    const close = async () => {
      statements.clear();
      database.close();
      await remove();
    };
    return { rows, all: (query) => [...rows(query)], close };
  } catch (error) {
    await remove();
    throw error;
  }
}

/**
 * Returns the path of a database to open, such that SQLite writes no file in the folder of `file`. For a database with a
 * write-ahead log, SQLite creates files even if it only reads. If it has no file of a log at the moment, the path tells
 * SQLite that no program writes to the database. Otherwise the database and its log are copied. A database with the journal
 * of an interrupted change is copied too, and SQLite undoes the change in the copy.
 * @param knowsUrls whether a database can be named by a URL.
 * @param isReadable returns whether a database without a log can be read as it is.
 */
async function withoutTraces(
  file: string,
  name: string,
  knowsUrls: boolean,
  isReadable: (path: string) => boolean,
): Promise<{ path: string; readOnly: boolean; remove(): Promise<void> }> {
  // If `file` is a link, the log is in the folder of the file that it leads to.
  const real = await realpath(file);
  const asIs = { readOnly: true, remove: async () => {} };
  if (await isLogged(real)) {
    const isOpen = (await statusOf(`${real}-wal`)) ?? (await statusOf(`${real}-shm`));
    if (knowsUrls && !isOpen) return { path: `${pathToFileURL(real).href}?immutable=1`, ...asIs };
  } else if (!(await statusOf(`${real}-journal`)) || isReadable(real)) return { path: real, ...asIs };
  const folder = makeScratchFolder('sqlite');
  try {
    const path = join(folder, 'database');
    await copyWhole(real, path, name);
    return { path, readOnly: false, remove: () => removeTemporaryFolder(folder) };
  } catch (error) {
    await removeTemporaryFolder(folder);
    throw error;
  }
}

const COPIES = 3;

const ENDINGS = ['', '-wal', '-journal'];

/** Copies a database and its log or journal, again if a program has moved the log into the database meanwhile. */
async function copyWhole(file: string, target: string, name: string): Promise<void> {
  for (let i = 0; i < COPIES; i++) {
    const before = await versionOf(file);
    for (const ending of ENDINGS) {
      await rm(target + ending, { force: true });
      if (await statusOf(file + ending))
        await copyFile(file + ending, target + ending, constants.COPYFILE_FICLONE);
    }
    if ((await versionOf(file)) === before) return;
  }
  throw badFile(name, {
    expected: 'a database that no program writes to while it is copied',
    received: `one that was written during ${COPIES} copies`,
    hint: `Or run: sqlite3 ${file} "VACUUM INTO 'copy.sqlite'"`,
  });
}

/** Returns what changes when the log is moved into the database, or begins anew. Rows are only added to it otherwise. */
async function versionOf(file: string): Promise<string> {
  const database = await statusOf(file);
  const log = (await statusOf(`${file}-wal`)) ? await beginningOf(`${file}-wal`, LOG_HEADER) : undefined;
  return `${database?.size} ${database?.mtimeNs} ${log?.toString('hex')}`;
}

const statusOf = (file: string) => stat(file, { bigint: true }).catch(() => undefined);
const LOG_HEADER = 32;

/** Returns the first bytes of a file, or zeros behind its end. */
async function beginningOf(file: string, size: number): Promise<Buffer> {
  const handle = await open(file, 'r');
  try {
    const { buffer } = await handle.read(Buffer.alloc(size), 0, size, 0);
    return buffer;
  } finally {
    await handle.close();
  }
}

/** Returns whether the header of a database says that it has a write-ahead log. */
async function isLogged(file: string): Promise<boolean> {
  const header = await beginningOf(file, VERSIONS_END);
  return header.subarray(VERSIONS_BEGIN).some((version) => version === WITH_LOG);
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
  const hasLog = await isLogged(file);
  const journal = await statusOf(`${file}-journal`);
  const hasJournal = journal !== undefined && journal.size > 0;
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
