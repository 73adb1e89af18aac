/** Tests `policy-loss diff`: rows are aligned by ids or positions, and every change that is made to a dump is found. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { ColumnComparison } from '../../../lib/tools/diff/compare-column.js';
import { diffDumps } from '../../../lib/tools/diff/index.js';
import type { DumpRow } from '../../../lib/tools/diff/rows.js';
import { generator } from '../../support/random.js';
import { EXAMPLE, Files, fails, ROWS, type Row, run, runJson, runWide, sixDigits } from './support.js';

const COLUMNS = ['length', 'logprobs', 'action_mask', 'old_logprobs', 'ref_logprobs', 'entropy', 'reward'];

/** Returns the rows in a random order. */
function shuffled<T>(rows: readonly T[], seed = 3): T[] {
  const { uniform } = generator(seed);
  return rows
    .map((row) => ({ row, key: uniform() }))
    .sort((a, b) => a.key - b.key)
    .map(({ row }) => row);
}

const replaced = (values: readonly number[], at: number, x: number) =>
  values.map((y, t) => (t === at ? x : y));

describe('policy-loss diff', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  const write = (name: string, rows: readonly (object | string)[]) => files.write(name, rows);

  it('finds no difference between a dump and itself, in any order and in parts', async () => {
    const other = write('shuffled.jsonl', shuffled(ROWS));
    for (const b of [EXAMPLE, other])
      for (const words of [[], ['--batch-tokens', '500']]) {
        const diff = await runJson('diff', EXAMPLE, b, ...words);
        assert.equal(diff.equal, true);
        assert.equal(diff.rows, ROWS.length);
        assert.deepEqual(diff.alignedBy, ['task_id', 'run_id']);
        assert.deepEqual(
          diff.columns.map(({ column }: { column: string }) => column).sort(),
          [...COLUMNS].sort(),
        );
        for (const { differing, maxAbs, meanAbs } of diff.columns)
          assert.deepEqual([differing, maxAbs, meanAbs], [0, 0, 0]);
      }
  });

  it('finds the first and the largest difference of each column', async () => {
    const changes = (row: Row, i: number): Row => {
      if (i === 22) return { ...row, logprobs: replaced(replaced(row.logprobs, 2, -1), 5, -30) };
      if (i === 4) return { ...row, logprobs: replaced(row.logprobs, 3, row.logprobs[3]! + 0.5), reward: 9 };
      return row;
    };
    const b = ROWS.map(changes);
    const order = shuffled([...b.keys()]);
    const file = write(
      'changed.jsonl',
      order.map((i) => b[i]!),
    );
    const { columns, equal } = await runJson('diff', EXAMPLE, file);
    assert.equal(equal, false);
    const of = (name: string) => columns.find(({ column }: { column: string }) => column === name);
    const place = (i: number) => ({
      placeA: { file: EXAMPLE, line: i + 1 },
      placeB: { file, line: order.indexOf(i) + 1 },
    });
    const logprobs = of('logprobs');
    const f32 = Math.fround;
    assert.deepEqual([logprobs.differing, logprobs.rows], [3, 2]);
    assert.deepEqual(logprobs.first, {
      ...place(4),
      token: 3,
      a: f32(ROWS[4]!.logprobs[3]!),
      b: f32(ROWS[4]!.logprobs[3]! + 0.5),
    });
    const largest = Math.abs(-30 - f32(ROWS[22]!.logprobs[5]!));
    assert.deepEqual(logprobs.largest, { ...place(22), token: 5, a: f32(ROWS[22]!.logprobs[5]!), b: -30 });
    assert.equal(logprobs.maxAbs, largest);
    const sum = largest + Math.abs(-1 - f32(ROWS[22]!.logprobs[2]!)) + 0.5;
    assert.ok(Math.abs(logprobs.meanAbs * logprobs.compared - sum) < 1e-5);
    assert.deepEqual(of('reward').first, { ...place(4), a: ROWS[4]!.reward, b: 9 });
    assert.equal(of('entropy').differing, 0);

    const { stdout } = await runWide('diff', EXAMPLE, file);
    assert.match(
      stdout,
      /^largest differences +values +differing +rows .*\nlogprobs +9164 +3 +2 .* line \d+, token 6\n/,
    );
    assert.match(
      stdout,
      new RegExp(`\nreward +${sixDigits(ROWS[4]!.reward)} +9 +line 5 +line ${order.indexOf(4) + 1}\n`),
    );
    const halves = [0, 1].map((half) =>
      write(
        `half-${half}.jsonl`,
        ROWS.filter((_, i) => i < 128 === (half === 0)),
      ),
    );
    const inHalves = await runWide('diff', join(files.directory, 'half-*.jsonl'), file);
    assert.ok(inHalves.stdout.includes(`${halves[0]}, line 5, token 4 `));
  });

  it('ignores differences up to the tolerance', async () => {
    const file = write(
      'close.jsonl',
      ROWS.map((row) => ({ ...row, entropy: row.entropy.map((h) => h + 1e-4) })),
    );
    assert.equal((await runJson('diff', EXAMPLE, file)).equal, false);
    assert.equal((await runJson('diff', EXAMPLE, file, '--tolerance', '2e-4')).equal, true);
    await fails(2, ['diff', EXAMPLE, file, '--tolerance', 'none'], /Expected a number of at least 0/);
    await assert.rejects(
      diffDumps([EXAMPLE], [EXAMPLE], { tolerance: -1 }),
      /tolerance: expected a number of at least 0/,
    );
  });

  it('aligns by position without ids, and by other columns on request', async () => {
    const without = ROWS.map(({ run_id, ...row }) => ({ ...row, uid: `${row.task_id}-${run_id}` }));
    const a = write('a.jsonl', without);
    const b = write('b.jsonl', shuffled(without));
    const byPosition = await runJson('diff', a, b);
    assert.equal(byPosition.alignedBy, 'position');
    assert.equal(byPosition.equal, false);
    const { stdout } = await run('diff', a, b);
    assert.match(stdout, /Most rows differ in length, .* Use --by to align them by ids\.\n/);
    assert.match((await run('diff', a, EXAMPLE, '--by', 'task_id')).stdout, /aligned by task_id\n$/);
    const apart = write(
      'apart.jsonl',
      without.map((row) => ({ ...row, uid: `new ${row.uid}` })),
    );
    assert.match((await run('diff', a, apart, '--by', 'uid')).stdout, /No row has a partner\. Use --by/);
    const byUid = await runJson('diff', a, b, '--by', 'uid');
    assert.deepEqual(byUid.alignedBy, ['uid']);
    assert.equal(byUid.equal, true);
    await fails(
      1,
      ['diff', a, EXAMPLE, '--by', 'uid'],
      /rollouts\.jsonl, line 1: uid: expected a value in every row/,
    );
  });

  it('pairs rows with equal ids in their order', async () => {
    const twice = [
      ...ROWS.slice(0, 3),
      ...ROWS.slice(0, 3).map((row) => ({ ...row, reward: row.reward + 1 })),
    ];
    const diff = await runJson('diff', write('twice.jsonl', twice), write('once.jsonl', ROWS.slice(0, 3)));
    assert.deepEqual([diff.rows, diff.onlyInA.count, diff.onlyInB.count], [3, 3, 0]);
    assert.equal(diff.columns.find(({ column }: { column: string }) => column === 'reward').differing, 0);
    assert.deepEqual(
      diff.onlyInA.first.map(({ line }: { line: number }) => line),
      [4, 5, 6],
    );
  });

  it('reports rows, columns and lengths that only one dump has', async () => {
    const a = write(
      'long.jsonl',
      ROWS.slice(0, 20).map(({ entropy: _, ...row }) => row),
    );
    const b = write(
      'short.jsonl',
      ROWS.slice(10, 40).map((row, i) => {
        const cut = i === 0 ? -1 : undefined;
        const lists = Object.entries(row).map(([name, x]) => [name, Array.isArray(x) ? x.slice(0, cut) : x]);
        return Object.fromEntries(lists);
      }),
    );
    const diff = await runJson('diff', a, b);
    assert.deepEqual([diff.rows, diff.onlyInA.count, diff.onlyInB.count], [10, 10, 20]);
    assert.deepEqual([diff.columnsOnlyInA, diff.columnsOnlyInB], [[], ['entropy']]);
    const [length] = diff.columns;
    assert.equal(length.column, 'length');
    assert.deepEqual(
      [length.differing, length.first.a, length.first.b],
      [1, ROWS[10]!.logprobs.length, ROWS[10]!.logprobs.length - 1],
    );
    const { stdout } = await run('diff', a, b);
    assert.match(stdout, /Rows only in a: 10 \(.*long\.jsonl, lines 1, 2, 3, 4, 5, …\)/);
    assert.match(stdout, /Rows only in b: 20 \(.*short\.jsonl, lines 11, 12, 13, 14, 15, …\)/);
    assert.match(stdout, /Columns only in b: entropy/);
    assert.match(stdout, /\n10 rows in both, aligned by task_id, run_id\n$/);
  });

  it('leaves out values that both dumps mask', async () => {
    const rows = (logprobs: number[], action_mask: number[]) => [
      { task_id: 1, run_id: 1, action_mask, logprobs },
    ];
    const a = write('masked_a.jsonl', rows([-1, -2, -3, -4], [0, 1, 1, 0]));
    const b = write('masked_b.jsonl', rows([-9, -2, -3, -8], [0, 1, 1, 1]));
    const { columns } = await runJson('diff', a, b);
    const of = (name: string) => columns.find(({ column }: { column: string }) => column === name);
    assert.deepEqual(
      [of('logprobs').compared, of('logprobs').differing, of('logprobs').first.token],
      [3, 1, 3],
    );
    assert.deepEqual([of('action_mask').differing, of('action_mask').first.token], [1, 3]);
  });

  it('compares values that are not finite', () => {
    const row: DumpRow = {
      index: 0,
      place: { file: 'x', line: 1 },
      length: 4,
      size: 4,
      mask: Uint8Array.of(1, 1, 1, 1),
      columns: new Map(),
      ids: {},
    };
    const { NaN: nan, NEGATIVE_INFINITY: low } = Number;
    const compared = (b: number[]) => {
      const comparison = new ColumnComparison('logprobs', 0.5);
      comparison.add(row, row, [nan, low, -1, -2], b, true);
      return comparison.result;
    };
    assert.deepEqual(
      [compared([nan, low, -1, -2]).differing, compared([nan, low, -1.5, -2]).differing],
      [0, 0],
    );
    for (const x of [nan, low]) {
      const { differing, maxAbs, meanAbs, first, largest } = compared([nan, low, x, 9]);
      assert.deepEqual([differing, maxAbs, meanAbs], [2, Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]);
      assert.deepEqual([first!.token, largest!.token, first!.b], [2, 2, x]);
    }
  });

  it('prints losses side by side', async () => {
    const b = write('half.jsonl', ROWS.slice(0, 128));
    const words = ['--loss', 'ppo', '--clip-range', '0.1', '--algorithm', 'grpo'];
    const { losses } = await runJson('diff', EXAMPLE, b, ...words);
    const evaluated = [await runJson('compare', EXAMPLE, ...words), await runJson('compare', b, ...words)];
    for (const [i, loss] of losses.entries())
      for (const [side, { subjects }] of [
        ['a', evaluated[0]],
        ['b', evaluated[1]],
      ] as const) {
        const { name, options, loss: value, gradNorm, metrics } = subjects[i];
        assert.deepEqual(loss[side], { loss: value, gradNorm, metrics });
        assert.deepEqual([loss.name, loss.options], [name, options]);
      }
    const { stdout } = await run('diff', EXAMPLE, b, ...words);
    assert.match(stdout, /\n +a +b +b − a\nloss of ppo --clip-range 0\.1 +-0\.\d+ +-0\.\d+ +-?0\.\d+\n/);
  });

  it('prints one line per column as CSV', async () => {
    const { stdout } = await run('diff', EXAMPLE, EXAMPLE, '--csv');
    const [head, ...lines] = stdout.trimEnd().split('\n');
    assert.match(head!, /^column,compared,differing,rows,meanAbs,maxAbs,first,/);
    assert.equal(lines.length, COLUMNS.length);
    assert.ok(lines.includes('reward,256,0,0,0,0,,,,,,'));
  });

  it('needs two dumps', async () => {
    await fails(2, ['diff', EXAMPLE], /missing required argument 'b'/);
    await fails(2, ['diff', EXAMPLE, EXAMPLE, EXAMPLE], /too many arguments/);
    await fails(
      2,
      ['diff', EXAMPLE, EXAMPLE, '--los', 'ppo'],
      /^error: Did you mean '--loss'\? unknown option of diff/,
    );
  });
});
