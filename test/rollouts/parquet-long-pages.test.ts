/**
 * Tests that long pages of Parquet files are read piece by piece: that they take little memory, and that they give the
 * same values as pages that are in memory as a whole.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import type { SchemaElement } from 'hyparquet';
import { parquetWriteFile } from 'hyparquet-writer';
import { readRollouts, streamRollouts } from '../../lib/rollouts/index.js';
import { Budget } from '../../lib/rollouts/parquet/budget.js';
import { converterOf } from '../../lib/rollouts/parquet/convert.js';
import { decompressInPieces } from '../../lib/rollouts/parquet/decompress.js';
import { HybridReader } from '../../lib/rollouts/parquet/hybrid.js';
import type { Malformed } from '../../lib/rollouts/parquet/malformed.js';
import { PageBytes } from '../../lib/rollouts/parquet/page-bytes.js';
import { slicesOf } from '../../lib/rollouts/parquet/slices.js';
import { snappyPieces } from '../../lib/rollouts/parquet/snappy.js';
import { dictionaryOf } from '../../lib/rollouts/parquet/values.js';
import { zstdPieces } from '../../lib/rollouts/parquet/zstd.js';
import { isLossError } from '../support/loss-error.js';
import { generator } from '../support/random.js';
import { temporaryFolder } from '../support/temporary-folder.js';
import { LONG_PERIOD, writeLongParquet } from './parquet-file.js';
import { readApart } from './read-apart.js';

const LIMITS = { maxRowTokens: 2 ** 20 };
const budget = () => new Budget(2 ** 20, LIMITS);
const random = generator(1);

/** Returns bytes in pieces of 1 to `most` bytes, all in the same memory. */
function inPieces(bytes: Uint8Array, most: number): PageBytes {
  const memory = new Uint8Array(most);
  const pieces = function* () {
    for (let at = 0; at < bytes.length; ) {
      const piece = bytes.subarray(at, at + random.integer(1, most));
      memory.set(piece);
      yield memory.subarray(0, piece.length);
      at += piece.length;
    }
  };
  return PageBytes.inPieces(bytes.length, pieces(), budget());
}

/** Joins pieces that are valid one after another. */
function joined(pieces: Iterable<Uint8Array>): Buffer {
  const copies: Uint8Array[] = [];
  for (const piece of pieces) copies.push(new Uint8Array(piece));
  return Buffer.concat(copies);
}

/** Returns a frame of Zstandard whose blocks are not compressed. */
function zstdFrame(content: Buffer, flags = 0x80): Buffer {
  const header = Buffer.alloc(10);
  header.writeUInt32LE(0xfd2fb528);
  header[4] = flags;
  // A window of 128 KB.
  header[5] = 7 << 3;
  header.writeUInt32LE(content.length, 6);
  const blocks: Buffer[] = [header];
  for (let at = 0; at < content.length; at += 2 ** 17) {
    const block = content.subarray(at, at + 2 ** 17);
    const isLast = at + block.length === content.length ? 1 : 0;
    const head = Buffer.alloc(3);
    head.writeUIntLE(block.length * 8 + isLast, 0, 3);
    blocks.push(head, block);
  }
  return Buffer.concat(blocks);
}

const varint = (n: number): number[] => (n < 128 ? [n] : [(n & 127) | 128, ...varint(n >>> 7)]);

/** Compresses bytes of which all but the first ones repeat after `period` bytes. */
function snappyOf(content: Buffer, first: number, period: number): Buffer {
  const parts = [Buffer.from([...varint(content.length), 62 << 2, 0, 0, 0]), content.subarray(0, first)];
  parts[0]!.writeUIntLE(first - 1, parts[0]!.length - 3, 3);
  for (let at = first; at < content.length; at += 64) {
    const length = Math.min(64, content.length - at);
    parts.push(Buffer.from([((length - 1) << 2) | 2, period & 255, period >> 8]));
  }
  return Buffer.concat(parts);
}

const temporaryFolders = (directory: string) =>
  readdirSync(directory).filter((name) => name.startsWith('policy-loss-parquet-'));

describe('long pages of Parquet files', () => {
  const folder = temporaryFolder();

  describe('take less than 400 MB, with pages of 63 MB in each of five columns', () => {
    const columns = ['logprobs', 'old_logprobs', 'ref_logprobs', 'advantages', 'entropy'];
    const period = 4 * LONG_PERIOD;
    for (const [name, codec, pack] of [
      ['uncompressed', 0, (page: Buffer) => page],
      ['Snappy', 1, (page: Buffer) => snappyOf(page, 2 ** 17, period)],
      // It is not compressed: a small file with so many values would be refused.
      ['GZIP', 2, (page: Buffer) => gzipSync(page, { level: 0 })],
      ['Zstandard', 6, zstdFrame],
    ] as const)
      it(name, () => {
        const file = folder.path('long.parquet');
        const rows = writeLongParquet(file, { columns, pages: 1, rows: 3840, codec, pack });
        const { result, memory } = readApart(file, folder.directory);
        assert.equal(result, rows);
        assert.ok(memory < 400e6, `${memory} bytes`);
        assert.deepEqual(temporaryFolders(folder.directory), []);
      });
  });

  it('give the same rows as short pages', async () => {
    const rows = Array.from({ length: 300 }, (_, row) => ({
      logprobs: Array.from({ length: row === 7 ? 0 : 3500 + row }, (_, t) => -((t * 7 + row) % 4096) / 512),
      text: `${row}${'é'.repeat(15_000)}`,
    }));
    const encoding = 'PLAIN';
    const read = async (codec: 'UNCOMPRESSED' | 'SNAPPY' | 'GZIP', pageSize: number) => {
      const filename = folder.path('pages.parquet');
      parquetWriteFile({
        filename,
        codec,
        compressors: { GZIP: (page) => gzipSync(page, { level: 1 }) },
        pageSize,
        columnData: [
          { name: 'logprobs', encoding, data: rows.map(({ logprobs }) => logprobs) },
          { name: 'text', encoding, data: rows.map(({ text }) => text) },
        ],
        schema: [
          { name: 'root', num_children: 2 },
          { name: 'logprobs', repetition_type: 'OPTIONAL', converted_type: 'LIST', num_children: 1 },
          { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
          { name: 'element', repetition_type: 'OPTIONAL', type: 'DOUBLE' },
          { name: 'text', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
        ],
      });
      const parts = [];
      for await (const { batch, kept } of streamRollouts([filename], { keep: ['text'], maxTokens: 2 ** 18 }))
        parts.push({ batch, kept: kept.map((row) => ({ ...row })) });
      return parts;
    };
    const short = await read('UNCOMPRESSED', 2 ** 16);
    for (const codec of ['UNCOMPRESSED', 'SNAPPY', 'GZIP'] as const)
      assert.deepEqual(await read(codec, 2 ** 30), short, codec);
  });

  /** Sets the folder for temporary files while a function runs. */
  async function withTemporary(directory: string, act: () => Promise<void>) {
    const { TMPDIR } = process.env;
    process.env.TMPDIR = directory;
    try {
      await act();
    } finally {
      if (TMPDIR === undefined) delete process.env.TMPDIR;
      else process.env.TMPDIR = TMPDIR;
    }
  }

  it('are unpacked to temporary files that are removed, or in memory if files cannot be written', async () => {
    const file = folder.path('gzip.parquet');
    const pack = (page: Buffer) => gzipSync(page, { level: 0 });
    // Two pages of 17 MB.
    const rows = writeLongParquet(file, { pages: 2, rows: 1024, codec: 2, pack });
    const expected = Float32Array.from({ length: 4096 }, (_, i) => -(i % LONG_PERIOD) / 64);
    const read = async (most: number) => {
      let read = 0;
      let folders = 0;
      for await (const part of streamRollouts([file], { maxTokens: 2 ** 20 })) {
        if (read === 0) assert.deepEqual(part.batch.logprob!.subarray(0, 4096), expected);
        read += part.rows;
        folders = Math.max(folders, temporaryFolders(folder.directory).length);
        if (read >= most) break;
      }
      assert.deepEqual(temporaryFolders(folder.directory), []);
      return [read, folders];
    };
    await withTemporary(folder.directory, async () => {
      assert.deepEqual(await read(rows + 1), [rows, 1]);
      assert.deepEqual(await read(1), [256, 1]);
    });
    await withTemporary(folder.path('nowhere'), async () => {
      assert.deepEqual(await read(rows + 1), [rows, 0]);
    });
  });

  it('are refused if their compressed bytes are malformed', async () => {
    const file = folder.path('malformed.parquet');
    for (const [codec, name, pack] of [
      [1, 'SNAPPY', (page: Buffer) => snappyOf(page, 2 ** 17, 4 * LONG_PERIOD).fill(255, 2 ** 18)],
      [2, 'GZIP', (page: Buffer) => gzipSync(page, { level: 0 }).fill(255, 100, 200)],
    ] as const) {
      writeLongParquet(file, { pages: 1, rows: 1024, codec, pack });
      const message = new RegExp(`expected ${name} of a Parquet file, got an error`);
      await assert.rejects(readRollouts([file]), isLossError('ERR_INVALID_INPUT', message));
    }
  });

  const elements: { [name: string]: [element: SchemaElement, value: () => Buffer] } = {};
  const add = (type: SchemaElement['type'], value: () => Buffer, rest: Partial<SchemaElement> = {}) => {
    elements[`${type} ${rest.converted_type ?? ''}`] = [{ name: 'x', type: type!, ...rest }, value];
  };
  const some = (length: number) => Buffer.from(Array.from({ length }, () => random.integer(0, 127)));
  add('INT32', () => some(4));
  add('FLOAT', () => some(4));
  add('DOUBLE', () => some(8));
  // Some of the integers are not exact as numbers.
  add('INT64', () => Buffer.concat([some(6), Buffer.from(random.integer(0, 9) > 0 ? [0, 0] : [127, 0])]));
  add('INT96', () => Buffer.concat([some(5), Buffer.alloc(3), some(2), Buffer.from([37, 0])]));
  add('FIXED_LEN_BYTE_ARRAY', () => some(7), { type_length: 7 });
  add(
    'BYTE_ARRAY',
    () => {
      const text = some(random.integer(0, 20) > 0 ? random.integer(0, 9) : 200);
      const length = Buffer.alloc(4);
      length.writeUInt32LE(text.length);
      return Buffer.concat([length, text]);
    },
    { converted_type: 'UTF8' },
  );

  /** Decodes a page of values and nulls. */
  function read(bytes: PageBytes, nulls: readonly boolean[], encoding: number, element: SchemaElement) {
    // The levels are packed: eight values of one bit in a byte.
    const packed = Buffer.alloc(Math.ceil(nulls.length / 8));
    nulls.forEach((isNull, i) => {
      if (!isNull) packed[i >> 3]! |= 1 << (i & 7);
    });
    const levels = Buffer.concat([Buffer.from(varint(2 * packed.length + 1)), packed]);
    const page = {
      left: nulls.length,
      repetitions: new HybridReader(new Uint8Array(), 0, 0),
      definitions: new HybridReader(levels, 1, 1),
      bytes,
      encoding,
    };
    const convert = converterOf(element, LIMITS);
    const numbers = Buffer.from(Float32Array.from({ length: 1000 }, (_, i) => i / 8).buffer);
    const dictionary = dictionaryOf(numbers, 1000, { name: 'x', type: 'FLOAT' }, convert);
    const values: unknown[] = [];
    let slices = 0;
    for (const slice of slicesOf(page, 1, element, convert, dictionary)) {
      for (; slice.left > 0; slice.left--)
        values.push(slice.definitions.next() === 1 ? slice.values.next() : null);
      slices++;
    }
    bytes.end();
    return { values, slices };
  }

  const drawNulls = (count: number) => Array.from({ length: count }, () => random.integer(0, 4) === 0);

  for (const [name, [element, value]] of Object.entries(elements))
    it(`of ${name} are read in slices`, () => {
      for (const most of [1, 3, 50, 1000]) {
        const nulls = [...drawNulls(500), true, true];
        const bytes = Buffer.concat(nulls.map((isNull) => (isNull ? Buffer.alloc(0) : value())));
        const { values } = read(PageBytes.whole(bytes), nulls, 0, element);
        const sliced = read(inPieces(bytes, most), nulls, 0, element);
        assert.deepEqual(sliced.values, values);
        assert.ok(sliced.slices > 1);
      }
    });

  it('of packed booleans are read in slices', () => {
    const nulls = drawNulls(1003);
    const bytes = some(Math.ceil(nulls.filter((isNull) => !isNull).length / 8));
    const element: SchemaElement = { name: 'x', type: 'BOOLEAN' };
    const { values } = read(PageBytes.whole(bytes), nulls, 0, element);
    assert.deepEqual(read(inPieces(bytes, 5), nulls, 0, element).values, values);
  });

  it('of indices and of split bytes give the same values', () => {
    const element: SchemaElement = { name: 'x', type: 'FLOAT' };
    const nulls = drawNulls(800);
    const present = nulls.filter((isNull) => !isNull).length;
    // Indices of ten bits: a run of equal ones, and packed ones, which are below 512 here.
    const packed = Buffer.alloc(10 * Math.ceil(present / 8), 0b01010101).map((byte, i) =>
      i % 5 === 0 ? byte : 0,
    );
    const indices = Buffer.concat([
      Buffer.from([10, ...varint(2 * 300), 231, 3]),
      Buffer.from(varint(2 * (packed.length / 10) + 1)),
      packed,
    ]);
    for (const [encoding, bytes] of [
      [8, indices],
      [9, some(4 * present)],
    ] as const) {
      const { values } = read(PageBytes.whole(bytes), nulls, encoding, element);
      for (const most of [1, 7, 300])
        assert.deepEqual(read(inPieces(bytes, most), nulls, encoding, element).values, values);
    }
  });

  it('without values have entries', () => {
    const element: SchemaElement = { name: 'x', type: 'FLOAT' };
    const { values } = read(inPieces(new Uint8Array(), 1), [true, true], 0, element);
    assert.deepEqual(values, [null, null]);
  });

  it('without bytes may have been compressed', () => {
    const packed = PageBytes.whole(Buffer.from([0]));
    const bytes = PageBytes.inPieces(0, decompressInPieces('SNAPPY', packed, 0)!, budget());
    assert.doesNotThrow(() => bytes.end());
  });

  it('are refused if they have fewer or more bytes than they should', () => {
    const element: SchemaElement = { name: 'x', type: 'FLOAT' };
    const nulls = drawNulls(100).fill(false);
    const isMalformed = { name: 'Error', message: 'a malformed Parquet file' };
    const bytes = some(400);
    const ofSize = (size: number) => PageBytes.inPieces(size, [bytes][Symbol.iterator](), budget());
    assert.equal(read(ofSize(400), nulls, 0, element).values.length, 100);
    for (const size of [396, 399, 401, 404])
      assert.throws(() => read(ofSize(size), nulls, 0, element), isMalformed);
    const text: SchemaElement = { name: 'x', type: 'BYTE_ARRAY' };
    const long = Buffer.from([255, 255, 255, 255, 1]);
    assert.throws(() => read(inPieces(long, 2), [false], 0, text), isMalformed);
  });

  it('are refused if a value takes more memory than all pages may take', () => {
    const size = 2 ** 30;
    const memory = Buffer.alloc(2 ** 16);
    memory.writeUInt32LE(size - 4);
    const pieces = function* () {
      for (;;) yield memory;
    };
    const bytes = PageBytes.inPieces(size, pieces(), budget());
    assert.throws(
      () => read(bytes, [false], 0, { name: 'x', type: 'BYTE_ARRAY' }),
      ({ details }: Malformed) => details.expected === 'pages that take at most 600000000 bytes together',
    );
  });

  /** Makes a block of Snappy of random elements, and what it unpacks to. */
  function drawSnappy(elements: number): { packed: Buffer; unpacked: Buffer } {
    const parts: number[] = [];
    const unpacked: number[] = [];
    for (let i = 0; i < elements; i++) {
      const kind = unpacked.length === 0 ? 0 : random.integer(0, 3);
      if (kind === 0) {
        const length = random.integer(1, random.integer(0, 9) > 0 ? 80 : 70_000);
        const bytes = length <= 60 ? 0 : length <= 256 ? random.integer(1, 4) : random.integer(3, 4);
        parts.push(bytes === 0 ? (length - 1) << 2 : (59 + bytes) << 2);
        for (let byte = 0; byte < bytes; byte++) parts.push(((length - 1) >> (8 * byte)) & 255);
        for (const byte of some(length)) {
          parts.push(byte);
          unpacked.push(byte);
        }
        continue;
      }
      const reach = Math.min(unpacked.length, kind === 1 ? 2047 : kind === 2 ? 65535 : 65536);
      const distance = random.integer(1, random.integer(0, 1) ? Math.min(reach, 9) : reach);
      const length = kind === 1 ? random.integer(4, 11) : random.integer(1, 64);
      if (kind === 1) parts.push(((distance >> 8) << 5) | ((length - 4) << 2) | 1, distance & 255);
      else {
        parts.push(((length - 1) << 2) | kind, distance & 255, (distance >> 8) & 255);
        if (kind === 3) parts.push(distance >> 16, 0);
      }
      for (let byte = 0; byte < length; byte++) unpacked.push(unpacked[unpacked.length - distance]!);
    }
    return { packed: Buffer.from([...varint(unpacked.length), ...parts]), unpacked: Buffer.from(unpacked) };
  }

  it('of Snappy are decompressed piece by piece', () => {
    for (const most of [1, 4, 100, 70_000])
      for (let i = 0; i < 4; i++) {
        const { packed, unpacked } = drawSnappy(200);
        const pieces = () => joined(snappyPieces(inPieces(packed, most), unpacked.length, 2 ** 17));
        assert.ok(pieces().equals(unpacked));
        const short = inPieces(packed.subarray(0, -1), most);
        assert.throws(() => joined(snappyPieces(short, unpacked.length, 2 ** 17)));
        assert.throws(() => joined(snappyPieces(inPieces(packed, most), unpacked.length + 1, 2 ** 17)));
        assert.throws(() =>
          joined(snappyPieces(inPieces(Buffer.concat([packed, packed]), most), unpacked.length, 2 ** 17)),
        );
        // A changed byte gives an error or as many bytes.
        packed[random.integer(5, packed.length - 1)] = random.integer(0, 255);
        try {
          assert.equal(pieces().length, unpacked.length);
        } catch (error) {
          assert.match((error as Error).message, /out of range|too long|ends early|malformed/);
        }
      }
  });

  it('of Snappy must not refer back to more than 64 KB', () => {
    const content = Buffer.alloc(400_000, 'a');
    const packed = snappyOf(content, 2 ** 17, 65_535);
    assert.ok(joined(snappyPieces(PageBytes.whole(packed), content.length, 2 ** 18)).equals(content));
    const far = Buffer.concat([packed.subarray(0, -3), Buffer.from([packed.at(-3)! | 3, 0, 0, 8, 0])]);
    const read = (memory?: number) => joined(snappyPieces(PageBytes.whole(far), content.length, memory));
    assert.throws(() => read(2 ** 18), /a copy is out of range/);
    assert.throws(() => read(), /a copy is out of range/);
  });

  it('of Zstandard are decompressed piece by piece', () => {
    // A frame of two compressed blocks, with a window of 128 KB and a checksum.
    const packed = Buffer.from(
      'KLUv/YQ4Pg0DACQEAMJEDA/ApXAvZ/i3IEiSkPjomic7Xe10tdPVTnfa6XfaSb/TpiFBJ9zEmaiQ2BJKQAAYRAE1qCB4uR0AIwmkzgMReIS28' +
        'IjA1///3/T8BdcEj6OKGxWWT+hxVbRRYbUEH1fFjQpbS/B4VdwIvYQfXyVLk+Dxrf9kNjkqNPBa5xUgt+yaU00AAAhzAQA6DTkQAor0npk=',
      'base64',
    );
    const content = Buffer.from(
      Array.from({ length: 20_000 }, (_, i) => `${i % 7} said ${(i * i) % 11}`).join(', '),
    );
    // A block that is not compressed, and one that repeats a byte 300 times.
    const runs = Buffer.concat([
      zstdFrame(Buffer.alloc(400, 'b')).subarray(0, 10),
      Buffer.from([100 << 3, 100 >> 5, 0]),
      Buffer.alloc(100, 'b'),
      Buffer.from([(300 << 3) | 3, 300 >> 5, 0, 98]),
    ]);
    for (const most of [1, 10, 1000]) {
      const pieces = (frame: Buffer, size: number) => joined(zstdPieces(inPieces(frame, most), size)!);
      assert.ok(pieces(packed, content.length).equals(content));
      assert.ok(pieces(runs, 400).equals(Buffer.alloc(400, 'b')));
      assert.throws(() => pieces(packed, content.length + 1), /the size is wrong/);
      assert.throws(() => pieces(packed.subarray(0, 100), content.length), /a block is too long/);
    }
    // Each block makes the decoder move the window of 128 KB.
    const empty = Buffer.concat([zstdFrame(Buffer.alloc(400)).subarray(0, 10), Buffer.alloc(600)]);
    assert.throws(() => joined(zstdPieces(PageBytes.whole(empty), 400)!), /the blocks are too short/);
    const windowOf = (descriptor: number) => {
      const frame = Buffer.from(packed);
      frame[5] = descriptor;
      return zstdPieces(PageBytes.whole(frame), content.length);
    };
    assert.ok(windowOf(12 << 3));
    assert.equal(windowOf((12 << 3) + 1), undefined, 'a window of 4.5 MB');
    assert.equal(windowOf(255), undefined, 'a window of 3.75 TB');
  });
});
