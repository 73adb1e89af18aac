// Reads Parquet files. The code and its libraries are loaded only when they are needed.
import type { ReadRows } from './source.js';

/** Reads a Parquet file. */
export const readParquet: ReadRows = async function* (name, names, onBytes, settings) {
  const { readRows } = await import('./parquet/rows.js');
  yield* readRows(name, names, onBytes, settings);
};
