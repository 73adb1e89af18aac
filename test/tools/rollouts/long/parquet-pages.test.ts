/**
 * Tests long pages of Parquet files: that what is open at a time takes little memory, and that their values are the same
 * as those of short pages, in every type and encoding.
 */
import assert from 'node:assert/strict';
import { gzipSync } from 'node:zlib';
import type { Encoding, SchemaElement } from 'hyparquet';
import { parquetWriteFile } from 'hyparquet-writer';
import { readRollouts, streamRollouts } from '../../../../lib/tools/rollouts/index.js';
import { isLossError } from '../../../support/loss-error.js';
import { generator } from '../../../support/random.js';
import { temporaryFolder } from '../../../support/temporary-folder.js';
import { LONG_PERIOD, writeLongParquet } from '../parquet-file.js';
import { readApart } from '../read-apart.js';

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

describe('long pages of Parquet files', () => {
  const folder = temporaryFolder();

  // The five pages take 315 MB, and the process itself takes more than 100 MB.
  describe('take less than 700 MB, with pages of 63 MB in each of five columns', () => {
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
        const { result, memory } = readApart(file);
        assert.equal(result, rows);
        assert.ok(memory < 700e6, `${memory} bytes`);
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

  it('are refused before they are unpacked if they take too much memory, unless the limit is raised', async () => {
    const file = folder.path('large.parquet');
    const pack = () => gzipSync(Buffer.alloc(1000));
    writeLongParquet(file, { pages: 1, rows: 1, codec: 2, pack, claimed: 610_000_000 });
    const before = process.memoryUsage().rss;
    await assert.rejects(
      readRollouts([file]),
      isLossError(
        'ERR_INVALID_INPUT',
        /large\.parquet: expected pages that take at most 600000000 bytes together, got more\. .*raise maxRowTokens$/,
      ),
    );
    await assert.rejects(
      readRollouts([file], { maxRowTokens: 10_000_000 }),
      isLossError('ERR_INVALID_INPUT', /expected a page of 610000000 bytes, as its header states, got 1000$/),
    );
    assert.ok(process.memoryUsage().rss - before < 50e6);
  });

  describe('give every value, also those around the places at which they are cut', () => {
    // Long pages are cut after 65,536 entries.
    const ROWS = 140_000;
    const random = generator(1);
    const nulls = Array.from({ length: ROWS }, () => random.integer(0, 4) === 0);
    const textOf = (row: number) => `${row % 1000} ${'é'.repeat(row % 7)}`;
    const bytesOf = (row: number) => Uint8Array.from({ length: 7 }, (_, i) => 97 + ((row + i) % 26));
    const columns: [
      type: Omit<SchemaElement, 'name'>,
      encodings: Encoding[],
      (row: number) => unknown,
      Same?,
    ][] = [
      [{ type: 'INT32' }, ['PLAIN', 'DELTA_BINARY_PACKED', 'BYTE_STREAM_SPLIT'], (row) => 7 * row - 9000],
      [
        { type: 'INT64' },
        ['PLAIN', 'DELTA_BINARY_PACKED', 'RLE_DICTIONARY'],
        (row) => (row % 10 === 0 ? 2n ** 60n : 0n) + BigInt(row % 777),
        (value) => (Number.isSafeInteger(Number(value)) ? Number(value) : String(value)),
      ],
      [{ type: 'FLOAT' }, ['PLAIN', 'BYTE_STREAM_SPLIT', 'RLE_DICTIONARY'], (row) => (row % 999) / 8],
      [{ type: 'DOUBLE' }, ['PLAIN', 'BYTE_STREAM_SPLIT', 'RLE_DICTIONARY'], (row) => (row % 999) / 10],
      [{ type: 'BOOLEAN' }, ['PLAIN', 'RLE'], (row) => row % 3 === 0],
      [
        { type: 'BYTE_ARRAY', converted_type: 'UTF8' },
        ['PLAIN', 'DELTA_LENGTH_BYTE_ARRAY', 'DELTA_BYTE_ARRAY', 'RLE_DICTIONARY'],
        textOf,
      ],
      [
        { type: 'FIXED_LEN_BYTE_ARRAY', type_length: 7 },
        ['PLAIN', 'RLE_DICTIONARY'],
        bytesOf,
        (value) => Buffer.from(value as Uint8Array).toString('latin1'),
      ],
    ];
    type Same = (value: unknown) => unknown;

    for (const [type, encodings, valueIn, same = (value: unknown) => value] of columns)
      for (const encoding of encodings)
        it(`${type.type}, ${encoding}`, async () => {
          const filename = folder.path('values.parquet');
          const values = nulls.map((isNull, row) => (isNull ? null : valueIn(row)));
          parquetWriteFile({
            filename,
            statistics: false,
            columnData: [
              { name: 'logprobs', data: values.map(() => '[-1]'), encoding: 'RLE_DICTIONARY' },
              { name: 'value', data: values, encoding },
            ],
            schema: [
              { name: 'root', num_children: 2 },
              { name: 'logprobs', type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'REQUIRED' },
              { name: 'value', repetition_type: 'OPTIONAL', ...type },
            ],
            rowGroupSize: ROWS,
            pageSize: 2 ** 30,
          });
          const read: unknown[] = [];
          for await (const { kept } of streamRollouts([filename], { keep: ['value'], maxTokens: 2 ** 14 }))
            for (const row of kept) read.push(row.value);
          const expected = values.map((value) => (value === null ? undefined : same(value)));
          assert.deepEqual(read, expected);
        });
  });
});
