// How a table in a database is named: FILE#table.

/** A name without the table that it ends with, and that end as it was written: empty, or `#table`. */
export function splitTable(name: string): { file: string; suffix: string } {
  const match = /^(.*\.(?:sqlite3?|db))(#.*)$/is.exec(name);
  return match ? { file: match[1]!, suffix: match[2]! } : { file: name, suffix: '' };
}
