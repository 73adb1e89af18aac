/** Tests that the column sum_pi_squared of every format reaches the advantage functions that need it. */
import assert from 'node:assert/strict';
import { parquetWriteFile } from 'hyparquet-writer';
import { ADVANTAGE_FN, type Batch } from '../../../lib/index.js';
import { readRollouts } from '../../../lib/tools/rollouts/index.js';
import { isLossError } from '../../support/loss-error.js';
import { openForWriting } from '../../support/sqlite.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const ROWS = [
  { logprobs: [-1, -0.5, -2], action_mask: [1, 1, 0], reward: 1, sum_pi_squared: [0.5, 1 / 3, 0.25] },
  { logprobs: [-0.25, -3], action_mask: [1, 1], reward: -2, sum_pi_squared: [0.9, 0.1] },
  { logprobs: [-2], action_mask: [1], reward: 0.5, sum_pi_squared: [1e-30] },
].map((row) => ({ ...row, old_logprobs: row.logprobs, task_id: 'a' }));
const COLUMN = Float32Array.from(ROWS.flatMap((row) => row.sum_pi_squared));

describe('the column sum_pi_squared', () => {
  const folder = temporaryFolder();
  const lines = (rows: readonly object[] = ROWS) => rows.map((row) => JSON.stringify(row)).join('\n');

  function parquet(name: string, type: 'FLOAT' | 'DOUBLE', poison?: number): string {
    const filename = folder.path(name);
    const list = (column: string, element: 'FLOAT' | 'DOUBLE' | 'INT32') => [
      {
        name: column,
        repetition_type: 'REQUIRED' as const,
        converted_type: 'LIST' as const,
        num_children: 1,
      },
      { name: 'list', repetition_type: 'REPEATED' as const, num_children: 1 },
      { name: 'element', repetition_type: 'REQUIRED' as const, type: element },
    ];
    const poisoned = ({ sum_pi_squared, action_mask }: (typeof ROWS)[0]) =>
      sum_pi_squared.map((x, t) => (action_mask[t] === 0 ? (poison ?? x) : x));
    parquetWriteFile({
      filename,
      columnData: [
        { name: 'logprobs', data: ROWS.map((row) => row.logprobs) },
        { name: 'old_logprobs', data: ROWS.map((row) => row.old_logprobs) },
        { name: 'action_mask', data: ROWS.map((row) => row.action_mask) },
        { name: 'sum_pi_squared', data: ROWS.map(poisoned) },
        { name: 'reward', data: ROWS.map((row) => row.reward) },
        { name: 'task_id', data: ROWS.map((row) => row.task_id) },
      ],
      schema: [
        { name: 'root', num_children: 6 },
        ...list('logprobs', 'DOUBLE'),
        ...list('old_logprobs', 'DOUBLE'),
        ...list('action_mask', 'INT32'),
        ...list('sum_pi_squared', type),
        { name: 'reward', type: 'DOUBLE' },
        { name: 'task_id', type: 'BYTE_ARRAY', converted_type: 'UTF8' },
      ],
    });
    return filename;
  }

  function csv(): string {
    const keys = Object.keys(ROWS[0]!) as (keyof (typeof ROWS)[0])[];
    const cell = (value: unknown) => (Array.isArray(value) ? `"${JSON.stringify(value)}"` : String(value));
    const rows = ROWS.map((row) => keys.map((key) => cell(row[key])).join());
    return folder.write('text.csv', [keys.join(), ...rows].join('\n'));
  }

  function safetensors(column: Float32Array): string {
    const floats = (values: readonly number[]) => Float32Array.from(values);
    const tensors: [name: string, dtype: string, data: Float32Array | Uint8Array | Int32Array][] = [
      ['sum_pi_squared', 'F32', column],
      ['logprobs', 'F32', floats(ROWS.flatMap((row) => row.logprobs))],
      ['old_logprobs', 'F32', floats(ROWS.flatMap((row) => row.old_logprobs))],
      ['reward', 'F32', floats(ROWS.map((row) => row.reward))],
      ['task_id', 'I32', Int32Array.of(7, 7, 7)],
      ['cu_seqlens', 'I32', Int32Array.of(0, 3, 5, 6)],
      ['action_mask', 'U8', Uint8Array.from(ROWS.flatMap((row) => row.action_mask))],
    ];
    let end = 0;
    const header = Object.fromEntries(
      tensors.map(([name, dtype, { length, byteLength }]) => {
        const begin = end;
        end += byteLength;
        return [name, { dtype, shape: [length], data_offsets: [begin, end] }];
      }),
    );
    const text = Buffer.from(JSON.stringify(header));
    const size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(text.length));
    const data = tensors.map(([, , { buffer }]) => Buffer.from(buffer));
    return folder.write('rows.safetensors', Buffer.concat([size, text, ...data]));
  }

  const read = async (file: string) => (await readRollouts([file])).batch;
  const advantages = (batch: Batch) =>
    ADVANTAGE_FN.create('verl/optimal_token_baseline').computeSync(batch).advantages;

  it('has the same numbers in every format', async () => {
    const files = [
      folder.write('lines.jsonl', lines()),
      parquet('floats.parquet', 'FLOAT'),
      parquet('doubles.parquet', 'DOUBLE'),
      csv(),
      safetensors(COLUMN),
    ];
    const expected = advantages(await read(files[0]!));
    assert.ok(expected.some((a) => a !== 0));
    for (const file of files) {
      const batch = await read(file);
      assert.deepEqual(batch.sumPiSquared, COLUMN, file);
      assert.deepEqual(advantages(batch), expected, file);
    }
  });

  it('is read from SQLite', async () => {
    const file = folder.path('rows.sqlite');
    const database = openForWriting(file);
    database.exec('CREATE TABLE rows (logprobs TEXT, sum_pi_squared TEXT)');
    for (const { logprobs, sum_pi_squared } of ROWS) {
      const values = [logprobs, sum_pi_squared].map((list) => `'${JSON.stringify(list)}'`);
      database.exec(`INSERT INTO rows VALUES (${values.join(', ')})`);
    }
    database.close();
    assert.deepEqual((await read(file)).sumPiSquared, COLUMN);
  });

  it('may hold anything at masked tokens', async () => {
    const expected = advantages(await read(folder.write('lines.jsonl', lines())));
    for (const poison of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
      const tensors = safetensors(COLUMN.map((x, i) => (i === 2 ? poison : x)));
      for (const file of [parquet('poison.parquet', 'FLOAT', poison), tensors]) {
        const batch = await read(file);
        assert.equal((batch.sumPiSquared as Float32Array)[2], poison);
        assert.deepEqual(advantages(batch), expected, `${poison} in ${file}`);
      }
    }
  });

  it('is in all rows or in none, with one number per token', async () => {
    const refuses = (rows: readonly object[], code: string, says: RegExp) =>
      assert.rejects(read(folder.write('bad.jsonl', lines(rows))), isLossError(code as never, says));
    const { sum_pi_squared: _, ...lacking } = ROWS[2]!;
    await refuses(
      [ROWS[0]!, lacking],
      'ERR_MISSING_INPUT',
      /line 2: sum_pi_squared: expected a list of numbers/,
    );
    await refuses(
      [{ ...ROWS[1]!, sum_pi_squared: [0.5] }],
      'ERR_SHAPE_MISMATCH',
      /sum_pi_squared: expected a list of 2 numbers/,
    );
    assert.equal((await read(folder.write('none.jsonl', lines([lacking])))).sumPiSquared, undefined);
  });
});
