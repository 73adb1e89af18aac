/** Tests that the ids of groups and runs are read exactly from every format. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { parquetWriteFile } from 'hyparquet-writer';
import { LossError } from '../../../lib/index.js';
import { evaluateFiles, lossSubject } from '../../../lib/tools/parts/index.js';
import { readRollouts, streamRollouts, writeGradients } from '../../../lib/tools/rollouts/index.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const BIG = ['9007199254740992', '9007199254740993', '18446744073709551615', '18446744073709551614', '7'];

describe('ids', () => {
  const folder = temporaryFolder();

  /** The lines of rows with these ids, which are JSON text. */
  const linesOf = (ids: readonly string[], column = 'task_id') =>
    ids.map((id) => `{"${column}":${id},"logprobs":[-1]}\n`).join('');

  /** Reads files, and returns the groups of their rows. */
  const groupsOf = async (...files: string[]) =>
    Array.from((await readRollouts(files)).batch.groupIds as Int32Array);

  /** Writes rows with these integers as ids to a file of each format. */
  const writers: Record<string, (ids: readonly string[]) => Promise<string> | string> = {
    'JSON lines': (ids) => folder.write('ids.jsonl', linesOf(ids)),
    'JSON lines in gzip': (ids) => folder.write('ids.jsonl.gz', gzipSync(linesOf(ids))),
    CSV: (ids) => folder.write('ids.csv', `logprobs,task_id\n${ids.map((id) => `[-1],${id}\n`).join('')}`),
    TSV: (ids) =>
      folder.write('ids.tsv', `task_id\tlogprobs\n${ids.map((id) => `"${id}"\t[-1]\n`).join('')}`),
    safetensors(ids) {
      const header = JSON.stringify({
        logprobs: { dtype: 'F32', shape: [ids.length, 1], data_offsets: [0, 4 * ids.length] },
        task_id: { dtype: 'U64', shape: [ids.length], data_offsets: [4 * ids.length, 12 * ids.length] },
      });
      const data = Buffer.alloc(8 + header.length + 12 * ids.length);
      data.writeBigUInt64LE(BigInt(header.length));
      data.write(header, 8);
      ids.forEach((id, i) => {
        data.writeBigUInt64LE(BigInt(id), 8 + header.length + 4 * ids.length + 8 * i);
      });
      return folder.write('ids.safetensors', data);
    },
    Parquet(ids) {
      const filename = folder.path('ids.parquet');
      parquetWriteFile({
        filename,
        columnData: [
          { name: 'logprobs', data: ids.map(() => '[-1]') },
          { name: 'task_id', data: ids.map(BigInt) },
        ],
        schema: [
          { name: 'root', num_children: 2 },
          { name: 'logprobs', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
          { name: 'task_id', type: 'INT64', converted_type: 'UINT_64' },
        ],
      });
      return filename;
    },
  };

  for (const [format, write] of Object.entries(writers))
    it(`of 64 bits differ in ${format}, and equal those in JSON lines`, async () => {
      assert.deepEqual(await groupsOf(await write(BIG)), [0, 1, 2, 3, 4]);
      assert.deepEqual(
        await groupsOf(await write(BIG), folder.write('same.jsonl', linesOf(BIG))),
        [0, 1, 2, 3, 4, 0, 1, 2, 3, 4],
      );
    });

  it('of runs are exact too', async () => {
    const { batch } = await readRollouts([folder.write('runs.jsonl', linesOf(BIG, 'run_id'))]);
    assert.deepEqual(batch.runIds, Int32Array.of(0, 1, 2, 3, 4));
  });

  it('of 64 bits are exact in text, whatever they are', () =>
    fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(fc.bigInt({ min: -(2n ** 64n), max: 2n ** 64n }), { minLength: 1, maxLength: 20 }),
        async (ids) => {
          // Neighbours of an integer are the ones that float64 would confuse with it.
          const all = [...new Set(ids.flatMap((id) => [id, id + 1n]))].map(String);
          const groups = all.map((_, i) => i);
          for (const format of ['JSON lines', 'CSV'])
            assert.deepEqual(await groupsOf(await writers[format]!(all)), groups);
        },
      ),
      { numRuns: 30 },
    ));

  it('are equal if they are the same number in another notation', async () => {
    for (const same of [
      ['1', '1.0', '1e0', '10E-1', '1.00000e+00'],
      ['0', '-0', '0.0', '0e99'],
      ['0.1', '1e-1', '0.10'],
      ['9007199254740993', '9007199254740993.0', '9.007199254740993e15', '90071992547409930e-1'],
      ['100000000000000000000', '1e20', '1E+20'],
      ['1e400', '10e399', '1.0e400'],
    ])
      assert.deepEqual(
        await groupsOf(folder.write('same.jsonl', linesOf(same))),
        new Array(same.length).fill(0),
      );
    const different = [
      '1',
      '"1"',
      '1.1',
      '"01"',
      '1.0000000000000000001',
      '1e400',
      '1e401',
      '-1e400',
      '2e-400',
    ];
    assert.deepEqual(
      await groupsOf(folder.write('different.jsonl', linesOf(different))),
      different.map((_, i) => i),
    );
  });

  it('separate the groups whose advantages a loss needs', async () => {
    const rows = BIG.slice(0, 2).flatMap((id, group) =>
      [0, 1].map(
        (reward) =>
          `{"task_id":${id},"logprobs":[-1,-2],"old_logprobs":[-1.1,-1.9],"reward":${10 * group + reward}}\n`,
      ),
    );
    const small = rows.map((row) => row.replace(BIG[0]!, '0').replace(BIG[1]!, '1'));
    const lossOf = async (lines: readonly string[], batchTokens: number) => {
      const settings = { read: {}, batchTokens, progress: { begin() {}, advance() {} } };
      const file = folder.write('groups.jsonl', lines.join(''));
      const { subjects } = await evaluateFiles([file], [lossSubject('ppo')], settings);
      return subjects[0]!.loss;
    };
    for (const batchTokens of [1000, 3])
      assert.equal(await lossOf(rows, batchTokens), await lossOf(small, batchTokens));
  });

  it('are written next to gradients as they were read', async () => {
    const out = folder.path('gradients.jsonl');
    const writer = writeGradients(out, { ids: ['task_id'] });
    for await (const part of streamRollouts([folder.write('kept.jsonl', linesOf(BIG))], {
      keep: ['task_id'],
    }))
      await writer.add(part, new Float32Array(BIG.length));
    await writer.close();
    const written = readFileSync(out, 'utf8').trimEnd().split('\n');
    assert.deepEqual(
      written.map((line) => String(JSON.parse(line).task_id)),
      BIG,
    );
  });

  it('must be valid UTF-8, because invalid bytes all look equal', async () => {
    const bytes = (text: string) => Buffer.from(text, 'latin1');
    for (const file of [
      folder.write('latin1.jsonl', bytes('{"logprobs":[-1],"task_id":"\xe9"}\n')),
      folder.write('latin1.csv', bytes('logprobs,task_id\n[-1],\xe9\n')),
    ])
      await assert.rejects(readRollouts([file]), /task_id: expected text in UTF-8, got other bytes/);
    assert.deepEqual(
      await groupsOf(folder.write('utf8.jsonl', linesOf(['"é"', '"\\u00e9"', '"\uFFFD"']))),
      [0, 0, 1],
    );
  });

  it('may be long, but not without limit', async () => {
    const longOf = (length: number) => folder.write('long.jsonl', linesOf([`"${'a'.repeat(length)}"`]));
    assert.deepEqual(await groupsOf(longOf(65_536)), [0]);
    await assert.rejects(groupsOf(longOf(65_537)), /task_id: expected at most 65536 characters, got 65537/);
  });

  it('take limited memory together', async () => {
    const lines = Array.from(
      { length: 2100 },
      (_, i) => `{"task_id":"${i}${'a'.repeat(65_000)}","logprobs":[-1]}\n`,
    );
    const file = folder.write('many.jsonl.gz', gzipSync(lines.join(''), { level: 1 }));
    await assert.rejects(readRollouts([file]), (error: unknown) => {
      assert.ok(error instanceof LossError);
      assert.equal(error.code, 'ERR_OUT_OF_MEMORY');
      assert.match(
        error.message,
        /, line \d+: task_id: expected at most \d+ different ids with 134217728 characters/,
      );
      return true;
    });
  });
});
