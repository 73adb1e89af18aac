/** Writes JSON lines, CSV and gzip, field by field. */
import { crc32, deflateRawSync } from 'node:zlib';
import type { RolloutRow } from './content.js';
import type { Fields } from './fields.js';

/** Returns the pieces of a file of JSON lines. */
export function jsonLines(rows: readonly RolloutRow[], fields: Fields): Buffer[] {
  const mark = (text: string) => fields.text('bytes', text);
  return rows.flatMap((row) => [
    ...mark('{'),
    ...Object.entries({ ...row, prompt: 'said "yes"\n', meta: { a: [{}, [1]] } }).flatMap(
      ([key, value], i) => [
        ...(i > 0 ? mark(',') : []),
        ...fields.text('word', JSON.stringify(key)),
        ...mark(':'),
        ...(Array.isArray(value) ? list(value, fields) : fields.text('word', JSON.stringify(value))),
      ],
    ),
    ...mark('}'),
    ...mark('\n'),
  ]);
}

/** Writes a list as one field, and sometimes as several, so that a mutation can change a single number of it. */
function list(values: readonly number[], fields: Fields): Buffer[] {
  const text = JSON.stringify(values);
  const comma = text.indexOf(',');
  if (comma < 0) return fields.text('word', text);
  return [
    ...fields.text('bytes', '['),
    ...fields.text('word', text.slice(1, comma)),
    ...fields.text('bytes', text.slice(comma, -1)),
    ...fields.text('bytes', ']'),
  ];
}

/** Returns the pieces of a CSV file. Cells with lists are in quotes. */
export function csv(rows: readonly RolloutRow[], fields: Fields): Buffer[] {
  const mark = (text: string) => fields.text('bytes', text);
  const between = (pieces: readonly Buffer[][]) =>
    pieces.flatMap((piece, i) => [...(i > 0 ? mark(',') : []), ...piece]);
  const keys = Object.keys(rows[0]!) as (keyof RolloutRow)[];
  const cell = (value: unknown) =>
    Array.isArray(value)
      ? [...mark('"'), ...list(value, fields), ...mark('"')]
      : fields.text('word', `${value}`);
  return [
    ...between(keys.map((key) => fields.text('name', key))),
    ...mark('\r\n'),
    ...rows.flatMap((row) => [...between(keys.map((key) => cell(row[key]))), ...mark('\r\n')]),
  ];
}

/**
 * Compresses the pieces of a file into a gzip file.
 * @param members the number of gzip members into which the pieces are divided.
 */
export function gzip(pieces: readonly Buffer[], members: number, fields: Fields): Buffer[] {
  const perMember = Math.ceil(pieces.length / members);
  const packed = new Map<Buffer, Buffer[]>();
  return Array.from({ length: members }, (_, i) => pieces.slice(i * perMember, (i + 1) * perMember))
    .flatMap(joinExceptFloods)
    .flatMap((piece) => {
      // The pieces of a flood are equal. They are compressed once.
      const known = packed.get(piece);
      if (known) return known;
      const made = member(piece, fields);
      if (piece.length > FLOOD_BYTES) packed.set(piece, made);
      return made;
    });
}

const FLOOD_BYTES = 2 ** 19;

function joinExceptFloods(pieces: readonly Buffer[]): Buffer[] {
  const joined: Buffer[][] = [[]];
  for (const piece of pieces)
    if (piece.length > FLOOD_BYTES) joined.push([piece], []);
    else joined.at(-1)!.push(piece);
  return joined.map((some) => (some.length === 1 ? some[0]! : Buffer.concat(some)));
}

function member(content: Buffer, fields: Fields): Buffer[] {
  return [
    fields.integer(0x8b1f, 2),
    fields.integer(8, 1),
    fields.integer(0, 1),
    fields.integer(0, 4),
    fields.integer(0, 1),
    fields.integer(255, 1),
    ...fields.field('bytes', deflateRawSync(content)),
    fields.integer(crc32(content), 4),
    fields.integer(content.length, 4),
  ];
}
