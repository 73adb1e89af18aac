// Reads the zip archives that torch.save writes: their entries are stored, never compressed, so that each is a range of
// the file. Sizes come from the directory at the end; those in front of the entries are zero.
import type { Bytes } from '../bytes.js';
import { badFile } from '../source.js';

/** Whether bytes begin like a zip archive. */
export function isZip(head: Uint8Array): boolean {
  return head[0] === 0x50 && head[1] === 0x4b && head[2] === 0x03 && head[3] === 0x04;
}

/** The entries of an archive, by name. */
export type Archive = ReadonlyMap<string, Entry>;

/** An entry: where its header begins, its size, and the place at which the next header or the directory begins. */
interface Entry {
  header: number;
  size: number;
  limit: number;
}

const MAX_ENTRIES = 1 << 19;
const MAX_DIRECTORY = 1 << 27;
// What an entry takes in memory, without its name.
const BYTES_PER_ENTRY = 256;
const END_BYTES = 22;
const MAX_COMMENT = 0xffff;
const END = 0x06054b50;
const LOCATOR = 0x07064b50;
const LOCATOR_BYTES = 20;
const END64 = 0x06064b50;
const END64_BYTES = 56;
const RECORD = 0x02014b50;
const RECORD_BYTES = 46;
const LOCAL = 0x04034b50;
const LOCAL_BYTES = 30;
const IN_64_BITS = 0xffffffff;

/**
 * Reads the directory of an archive.
 * @throws LossError `ERR_INVALID_INPUT` if an entry is compressed, outside of the file, overlaps another one, has the
 * name of another one, or a name that leaves the archive's folder.
 */
export function readArchive(bytes: Bytes): Archive {
  const { start, size, count } = findDirectory(bytes);
  if (count > MAX_ENTRIES || size > MAX_DIRECTORY)
    throw badArchive(bytes, `at most ${MAX_ENTRIES} entries`, `${count} in ${size} bytes`);
  const directory = bufferOf(bytes, start, size);
  bytes.budget.hold(BYTES_PER_ENTRY * count + size);
  const entries = new Map<string, Entry>();
  let at = 0;
  for (let i = 0; i < count; i++) {
    if (at + RECORD_BYTES > size || directory.readUInt32LE(at) !== RECORD)
      throw badArchive(bytes, `${count} entries in the directory`, String(i));
    const nameBytes = directory.readUInt16LE(at + 28);
    const extraBytes = directory.readUInt16LE(at + 30);
    const next = at + RECORD_BYTES + nameBytes + extraBytes + directory.readUInt16LE(at + 32);
    if (next > size) throw badArchive(bytes, 'a whole entry in the directory', 'a part of one');
    const name = directory.toString('utf8', at + RECORD_BYTES, at + RECORD_BYTES + nameBytes);
    const extra = directory.subarray(
      at + RECORD_BYTES + nameBytes,
      at + RECORD_BYTES + nameBytes + extraBytes,
    );
    checkName(bytes, name);
    if (entries.has(name)) throw badArchive(bytes, 'one entry of each name', `two of ${name}`);
    entries.set(name, {
      ...entryOf(bytes, name, directory.subarray(at, at + RECORD_BYTES), extra),
      limit: 0,
    });
    at = next;
  }
  let limit = start;
  for (const [name, entry] of [...entries].sort(([, a], [, b]) => b.header - a.header)) {
    entry.limit = limit;
    if (entry.header + LOCAL_BYTES + Buffer.byteLength(name) + entry.size > limit)
      throw badArchive(bytes, 'entries that do not overlap', `${name}, which does`);
    limit = entry.header;
  }
  return entries;
}

/** Returns the content of an entry. */
export function openEntry(bytes: Bytes, archive: Archive, name: string): Bytes {
  const entry = archive.get(name);
  if (!entry) throw badArchive(bytes, `an entry ${name}`, 'none');
  const header = bufferOf(bytes, entry.header, LOCAL_BYTES);
  if (header.readUInt32LE(0) !== LOCAL) throw badArchive(bytes, `the header of ${name}`, 'other bytes');
  const start = entry.header + LOCAL_BYTES + header.readUInt16LE(26) + header.readUInt16LE(28);
  if (start + entry.size > entry.limit)
    throw badArchive(bytes, 'entries that do not overlap', `${name}, which does`);
  return bytes.slice(start, entry.size);
}

function findDirectory(bytes: Bytes): { start: number; size: number; count: number } {
  const tail = Math.min(bytes.size, END_BYTES + MAX_COMMENT);
  const from = bytes.size - tail;
  const buffer = bufferOf(bytes, from, tail);
  let end = tail - END_BYTES;
  while (
    end >= 0 &&
    !(buffer.readUInt32LE(end) === END && end + END_BYTES + buffer.readUInt16LE(end + 20) === tail)
  )
    end--;
  if (end < 0) throw badArchive(bytes, 'the directory of a zip archive', 'none');
  let count = buffer.readUInt16LE(end + 10);
  let size = buffer.readUInt32LE(end + 12);
  let start = buffer.readUInt32LE(end + 16);
  let last = from + end;
  if (count === 0xffff || size === IN_64_BITS || start === IN_64_BITS) {
    const locator = bufferOf(bytes, last - LOCATOR_BYTES, LOCATOR_BYTES);
    if (locator.readUInt32LE(0) !== LOCATOR)
      throw badArchive(bytes, 'the place of a ZIP64 directory', 'none');
    last = Number(locator.readBigUInt64LE(8));
    const wide = bufferOf(bytes, last, END64_BYTES);
    if (wide.readUInt32LE(0) !== END64) throw badArchive(bytes, 'a ZIP64 directory', 'other bytes');
    count = Number(wide.readBigUInt64LE(32));
    size = Number(wide.readBigUInt64LE(40));
    start = Number(wide.readBigUInt64LE(48));
  }
  if (start + size > last) throw badArchive(bytes, 'a directory before its end', `one from byte ${start}`);
  return { start, size, count };
}

function entryOf(
  bytes: Bytes,
  name: string,
  record: Buffer,
  extra: Buffer,
): { header: number; size: number } {
  if (record.readUInt16LE(10) !== 0 || (record.readUInt16LE(8) & 1) !== 0)
    throw badArchive(bytes, 'entries that are stored as they are', `${name}, which is not`);
  const fields = [record.readUInt32LE(24), record.readUInt32LE(20), record.readUInt32LE(42)];
  // The ZIP64 field has those of the numbers that do not fit into 32 bits.
  const wide = extraField(extra);
  let at = 0;
  const [size, packed, header] = fields.map((field): number => {
    if (field !== IN_64_BITS) return field;
    if (!wide || at + 8 > wide.length) throw badArchive(bytes, `the ZIP64 field of ${name}`, 'none');
    at += 8;
    return Number(wide.readBigUInt64LE(at - 8));
  });
  if (size !== packed) throw badArchive(bytes, `the same size stored and in use of ${name}`, 'two sizes');
  return { header: header!, size: size! };
}

function extraField(extra: Buffer): Buffer | undefined {
  for (let at = 0; at + 4 <= extra.length; ) {
    const end = at + 4 + extra.readUInt16LE(at + 2);
    if (extra.readUInt16LE(at) === 1 && end <= extra.length) return extra.subarray(at + 4, end);
    at = end;
  }
  return undefined;
}

function checkName(bytes: Bytes, name: string): void {
  if (name.startsWith('/') || name.includes('\\') || name.split('/').includes('..'))
    throw badArchive(bytes, 'names within the archive', name);
}

function bufferOf(bytes: Bytes, start: number, size: number): Buffer {
  return Buffer.from(bytes.read(start, size).buffer);
}

function badArchive(bytes: Bytes, expected: string, received: string) {
  return badFile(bytes.file, { expected, received, hint: 'The file may be truncated' });
}
