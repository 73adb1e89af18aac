/** Writes SQLite databases: with Node's own SQLite, or on an older Node with the one that reads them there. */
import { createRequire } from 'node:module';
import sqlite from 'node-sqlite3-wasm';

interface Database {
  exec(sql: string): void;
  close(): void;
}

/** Node's own SQLite; undefined if the package does not use it, before Node 22.13. */
export const nodeSqlite = ownSqlite();

function ownSqlite(): { DatabaseSync: new (file: string) => Database } | undefined {
  const [major, minor] = process.versions.node.split('.').map(Number) as [number, number];
  return major > 22 || (major === 22 && minor >= 13)
    ? createRequire(import.meta.url)('node:sqlite')
    : undefined;
}

/** Creates a database, or opens one, to run statements in it. */
export function openForWriting(file: string): Database {
  return nodeSqlite ? new nodeSqlite.DatabaseSync(file) : new sqlite.Database(file);
}
