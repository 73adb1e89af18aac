/** Divides an SQLite database into fields. */
import { readFileSync } from 'node:fs';
import type { Fields } from './fields.js';

const DATABASE = new URL('../tools/rollouts/fixtures/rollouts.sqlite', import.meta.url);
// The sizes of the fields in the first 100 bytes of a database, and in the header of a page.
const FILE_HEADER = [16, 2, 1, 1, 1, 1, 1, 1, ...new Array<number>(12).fill(4), 20, 4, 4];
const PAGE_HEADER = [1, 2, 2, 2, 1];
const PAGE_BYTES = 4096;
const CHUNK_BYTES = 64;

/** Passes a database on, field by field: its header, and of each page the header, the cells' places and the content. */
export function sqlite(fields: Fields): Buffer[] {
  const file = readFileSync(DATABASE);
  const pieces: Buffer[] = [];
  let at = 0;
  const take = (size: number) => {
    const bytes = file.subarray(at, at + size);
    at += size;
    pieces.push(...fields.field(size <= 4 ? 'integer' : 'bytes', bytes));
  };
  FILE_HEADER.forEach(take);
  while (at < file.length) {
    const end = at - (at % PAGE_BYTES) + PAGE_BYTES;
    const cells = file.readUInt16BE(at + 3);
    PAGE_HEADER.forEach(take);
    for (let cell = 0; cell < cells && at + 2 <= end; cell++) take(2);
    while (at < end) take(Math.min(CHUNK_BYTES, end - at));
  }
  return pieces;
}
