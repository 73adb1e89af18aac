// Finds the row groups of a Parquet file at which it can be cut.
import type { GroupBounds } from '../pieces.js';
import { ParquetFile } from './file.js';
import { leavesOf } from './schema.js';

/**
 * Returns the bounds of a Parquet file's row groups, in the order of the file. Returns undefined if the file cannot be
 * cut: it is malformed, has no rows, or its row groups do not follow each other.
 * @param path where its bytes are.
 */
export function boundsOfGroups(name: string, path: string): GroupBounds[] | undefined {
  let file: ParquetFile;
  try {
    file = new ParquetFile(name, path);
  } catch {
    // The reader will report the reason.
    return undefined;
  }
  try {
    const leaves = file.columns.flatMap(leavesOf);
    let end = 0;
    const bounds: GroupBounds[] = [];
    for (const group of file.groups) {
      const chunks = leaves.map((leaf) => group.chunkOf(leaf));
      const start = Math.min(...chunks.map((chunk) => chunk.start));
      if (start < end) return undefined;
      end = Math.max(...chunks.map((chunk) => chunk.end));
      bounds.push({ start, rows: group.rows });
    }
    return bounds.length > 0 ? bounds : undefined;
  } catch {
    return undefined;
  } finally {
    file.close();
  }
}
