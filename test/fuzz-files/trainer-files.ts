/** Divides the files of trainers into fields: the opcodes of pickles, the headers of archives, the values of JSON. */
import { readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Fields } from './fields.js';

const FOLDER = fileURLToPath(new URL('../tools/rollouts/fixtures/dumps/', import.meta.url));
const NOT_ROLLOUTS = /(^STABLE|README\.md|truth\.json|metrics\.jsonl)$/;

export const TRAINER_FILES: readonly string[] = readdirSync(FOLDER, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && !NOT_ROLLOUTS.test(entry.name))
  .map((entry) => join(entry.parentPath, entry.name))
  .sort();

/** Returns the file with this index, modulo their number: its ending, and a function that passes on its fields. */
export function trainerFile(index: number): { ending: string; write: (fields: Fields) => Buffer[] } {
  const name = TRAINER_FILES[index % TRAINER_FILES.length]!;
  const bytes = readFileSync(name);
  const ending = extname(name) || '.dump';
  if (ending === '.jsonl') return { ending, write: (fields) => textFields(bytes.toString(), fields) };
  return { ending, write: (fields) => binaryFields(bytes, fields) };
}

const textFields = (text: string, fields: Fields): Buffer[] =>
  (text.match(/[^,[\]{}:\n]+|[,[\]{}:\n]/g) ?? []).flatMap((word) =>
    fields.text(word.length === 1 ? 'bytes' : 'word', word),
  );

function binaryFields(bytes: Buffer, fields: Fields): Buffer[] {
  const begins = (text: string) => bytes.toString('latin1', 0, text.length) === text;
  if (begins('PK\x03\x04')) return archiveFields(bytes, fields);
  if (begins('TRXP')) return frameFields(bytes, fields);
  return bytes[0] === 0x80 ? pickleFields(bytes, fields) : chunkFields(bytes, fields);
}

const CHUNK_BYTES = 64;

function chunkFields(bytes: Buffer, fields: Fields): Buffer[] {
  const pieces: Buffer[] = [];
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES)
    pieces.push(...fields.field('bytes', bytes.subarray(at, at + CHUNK_BYTES)));
  return pieces;
}

function frameFields(bytes: Buffer, fields: Fields): Buffer[] {
  const size = Number(bytes.readBigUInt64LE(5));
  const metadata = Buffer.concat(pickleFields(bytes.subarray(21, 21 + size), fields));
  const tensors = Buffer.concat(chunkFields(bytes.subarray(21 + size), fields));
  return [
    ...fields.field('bytes', bytes.subarray(0, 5)),
    fields.integer(metadata.length, 8),
    fields.integer(tensors.length, 8),
    metadata,
    tensors,
  ];
}

// The sizes of the fields of an archive's headers, after their signatures.
const HEADERS: Readonly<Record<string, readonly number[]>> = {
  'PK\x03\x04': [4, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2],
  'PK\x01\x02': [4, 2, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2, 2, 2, 2, 4, 4],
  'PK\x05\x06': [4, 2, 2, 2, 2, 4, 4, 2],
};
const PICKLE = Buffer.from([0x80, 2, 0x7d]);

function archiveFields(bytes: Buffer, fields: Fields): Buffer[] {
  const pieces: Buffer[] = [];
  let at = 0;
  while (at < bytes.length) {
    const sizes = HEADERS[bytes.toString('latin1', at, at + 4)] ?? [];
    for (const size of sizes) {
      pieces.push(...fields.field('integer', bytes.subarray(at, at + size)));
      at += size;
    }
    const next = bytes.indexOf('PK', at);
    const end = next < 0 ? bytes.length : Math.max(next, at + (sizes.length > 0 ? 0 : 1));
    const pickle = bytes.indexOf(PICKLE, at);
    const from = pickle >= 0 && pickle < end ? pickle : end;
    pieces.push(...chunkFields(bytes.subarray(at, from), fields));
    pieces.push(...pickleFields(bytes.subarray(from, end), fields));
    at = end;
  }
  return pieces;
}

// The sizes of the arguments of opcodes, or of the lengths of their arguments.
const FIXED: Readonly<Record<number, number>> = {
  128: 1,
  75: 1,
  77: 2,
  74: 4,
  71: 8,
  113: 1,
  114: 4,
  104: 1,
  106: 4,
  149: 8,
};
const COUNTED: Readonly<Record<number, 1 | 4 | 8>> = {
  140: 1,
  88: 4,
  141: 8,
  67: 1,
  66: 4,
  142: 8,
  138: 1,
  139: 4,
};
const GLOBAL = 0x63;

function pickleFields(bytes: Buffer, fields: Fields): Buffer[] {
  const pieces: Buffer[] = [];
  let at = 0;
  const rest = () => bytes.subarray(at);
  while (at < bytes.length) {
    const opcode = bytes[at]!;
    pieces.push(...fields.field('bytes', bytes.subarray(at, at + 1)));
    at++;
    const fixed = FIXED[opcode];
    const counted = COUNTED[opcode];
    if (fixed !== undefined) {
      pieces.push(...fields.field('integer', bytes.subarray(at, at + fixed)));
      at += fixed;
    } else if (counted !== undefined && rest().length >= counted) {
      const size = Number(bytes.readUIntLE(at, Math.min(counted, 4)));
      at += counted;
      const inner = rest().subarray(0, size);
      at += size;
      const isText = opcode === 0x8c || opcode === 0x58;
      const content = Buffer.concat(isText ? fields.field('name', inner) : binaryFields(inner, fields));
      pieces.push(fields.integer(content.length, counted), content);
    } else if (opcode === GLOBAL) {
      for (let line = 0; line < 2; line++) {
        const end = bytes.indexOf('\n', at) + 1 || bytes.length;
        pieces.push(...fields.field('name', bytes.subarray(at, end)));
        at = end;
      }
    }
  }
  return pieces;
}
