/** The cases of the file fuzzer. A case is a valid file, mutations of its fields, and the options to read it with. */
import { closeSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import fc from 'fast-check';
import { type ContentSpec, type Expected, expectedOf, type RolloutRow, rowsOf } from './content.js';
import { Fields, type Mutation, VALUES } from './fields.js';
import { fixtureParquet, parquetFields, repetitiveParquet, writeParquet } from './parquet-files.js';
import { pickleFile } from './pickle-files.js';
import { sqlite } from './sqlite-files.js';
import { type Layout, npz, safetensors } from './tensor-files.js';
import { csv, gzip, jsonLines } from './text-files.js';
import { trainerFile } from './trainer-files.js';

export type Format =
  | 'jsonl'
  | 'csv'
  | 'safetensors'
  | 'npz'
  | 'parquet'
  | 'repetitive parquet'
  | 'parquet of other programs'
  | 'sqlite'
  | 'trainer'
  | 'pickle';

/** The formats with valid files. Not all random pickles are valid. */
export const FORMATS: readonly Format[] = [
  'jsonl',
  'csv',
  'safetensors',
  'npz',
  'parquet',
  'repetitive parquet',
  'parquet of other programs',
  'trainer',
  'sqlite',
];

export interface FileCase {
  format: Format;
  content: ContentSpec;
  /** How to write the content: for text, the number of gzip members (0 for none). */
  variant: number;
  mutations: Mutation[];
  /** The share of the file, in thousandths, that is left of it. */
  left: number;
  /** An index of COMMANDS. */
  command: number;
}

/** The words that follow the name of a case's file in the command `evaluate`. */
export const COMMANDS: readonly (readonly string[])[] = [
  ['--loss', 'ppo', '--json'],
  ['--loss', 'ppo', '--skip-bad-rows'],
  ['--loss', 'gspo', '--strict', '--csv'],
  ['--algorithm', 'grpo', '--batch-tokens', '16'],
  ['--loss', 'dpo', '--skip-bad-rows', '--batch-tokens', '8'],
  ['--loss', 'sapo', '--column', 'reward=entropy'],
  ['--algorithm', 'rloo', '--json'],
  ['--loss', 'ppo', '--column', 'logprobs=old_logprobs', '--json'],
];

const at = fc.nat({ max: 100_000 });
const which = fc.nat({ max: VALUES - 1 });
const mutation: fc.Arbitrary<Mutation> = fc.oneof(
  { arbitrary: fc.record({ does: fc.constant('value' as const), at, which }), weight: 8 },
  { arbitrary: fc.record({ does: fc.constant('drop' as const), at }), weight: 2 },
  {
    arbitrary: fc.record({
      does: fc.constant('repeat' as const),
      at,
      times: fc.constantFrom(2, 3, 1000, 30_000, 2 ** 20),
    }),
    weight: 3,
  },
  {
    arbitrary: fc.record({
      does: fc.constant('flood' as const),
      at,
      which,
      megabytes: fc.constantFrom(1, 1, 1, 4, 20, 150),
    }),
    weight: 1,
  },
  {
    arbitrary: fc.record({ does: fc.constant('flip' as const), at, bit: fc.nat({ max: 1000 }) }),
    weight: 3,
  },
  { arbitrary: fc.record({ does: fc.constant('end' as const), at }), weight: 1 },
);

export const fileCase = (formats: readonly Format[]): fc.Arbitrary<FileCase> =>
  fc.record({
    format: fc.constantFrom(...formats),
    content: fc.record({
      seed: fc.nat(),
      rows: fc.integer({ min: 1, max: 8 }),
      tokens: fc.integer({ min: 1, max: 12 }),
    }),
    variant: fc.nat({ max: 5 }),
    mutations: fc.array(mutation, { maxLength: 3 }),
    left: fc.oneof(
      { arbitrary: fc.constant(1000), weight: 9 },
      { arbitrary: fc.integer({ min: 0, max: 999 }), weight: 1 },
    ),
    command: fc.nat({ max: COMMANDS.length - 1 }),
  });

/** A case's file on the disk. */
export interface MadeFile {
  /** The file's name, with the name of its table if it has several. */
  name: string;
  /** The size of the file's content without compression, in bytes. */
  unpackedBytes: number;
  /** What a reader must return; undefined if the file was mutated. */
  expected: Expected | undefined;
}

/** Writes a case's file into a folder. */
export function makeFile(one: FileCase, folder: string): MadeFile {
  const { write, rows, ending } = writerOf(one);
  const valid = new Fields();
  write(valid);
  const isPacked = ending.endsWith('.gz');
  const fields = new Fields(one.mutations, valid.count, isPacked ? 200 : 4);
  const { pieces, unpackedBytes } = write(fields);
  const path = `${folder}/case${ending}`;
  const length = writePieces(path, pieces, one.left);
  const isValid = one.mutations.length === 0 && one.left === 1000;
  return {
    name: one.format === 'sqlite' ? `${path}#rollouts` : path,
    unpackedBytes: Math.max(unpackedBytes, length),
    expected: isValid && rows ? expectedOf(rows) : undefined,
  };
}

interface Writer {
  write(fields: Fields): { pieces: Buffer[]; unpackedBytes: number };
  /** The rows of the valid file; undefined if they are not known. */
  rows?: readonly RolloutRow[];
  ending: string;
}

function writerOf({ format, content, variant }: FileCase): Writer {
  const layout: Layout = variant & 1 ? 'packed' : 'padded';
  const isTensor = format === 'safetensors' || format === 'npz';
  const rows = rowsOf(content, isTensor && layout === 'padded');
  const whole = (write: (fields: Fields) => Buffer[]) => (fields: Fields) => {
    const pieces = write(fields);
    return { pieces, unpackedBytes: sizeOf(pieces) };
  };
  switch (format) {
    case 'jsonl':
    case 'csv': {
      const textOf = format === 'csv' ? csv : jsonLines;
      if (variant === 0)
        return { write: whole((fields) => textOf(rows, fields)), rows, ending: `.${format}` };
      const write = (fields: Fields) => {
        const text = textOf(rows, fields);
        return { pieces: gzip(text, variant, fields), unpackedBytes: sizeOf(text) };
      };
      return { write, rows, ending: `.${format}.gz` };
    }
    case 'safetensors':
      return { write: whole((fields) => safetensors(rows, layout, fields)), rows, ending: '.safetensors' };
    case 'npz':
      return { write: whole((fields) => npz(rows, layout, variant > 2, fields)), rows, ending: '.npz' };
    case 'parquet': {
      const file = writeParquet(rows, variant);
      return { write: whole((fields) => parquetFields(file, fields)), rows, ending: '.parquet' };
    }
    case 'repetitive parquet': {
      const file = repetitiveParquet(content);
      return { write: whole((fields) => parquetFields(file, fields)), ending: '.parquet' };
    }
    case 'parquet of other programs': {
      const file = fixtureParquet(content);
      return { write: whole((fields) => parquetFields(file, fields)), ending: '.parquet' };
    }
    case 'sqlite':
      return { write: whole(sqlite), ending: '.sqlite' };
    case 'pickle': {
      // Its opcodes are random, so that no mutation is needed.
      const { file, ending } = pickleFile(content.seed);
      return { write: whole(() => [file]), ending };
    }
    case 'trainer': {
      const { write, ending } = trainerFile(content.seed);
      return { write: whole(write), ending };
    }
  }
}

const sizeOf = (pieces: readonly Buffer[]) => pieces.reduce((sum, { length }) => sum + length, 0);

function writePieces(path: string, pieces: readonly Buffer[], left: number): number {
  const file = openSync(path, 'w');
  try {
    for (const piece of pieces) writeSync(file, piece);
    const length = Math.floor((sizeOf(pieces) * left) / 1000);
    ftruncateSync(file, length);
    return length;
  } finally {
    closeSync(file);
  }
}
