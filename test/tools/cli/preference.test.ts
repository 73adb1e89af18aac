/** Tests the commands with preference data, and that every loss gets its columns from files. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { fileWriter, ParquetWriter } from 'hyparquet-writer';
import { LOSS_FN, POLICY_LOSS_FN } from '../../../lib/index.js';
import { evaluated } from '../../support/parts.js';
import { generator } from '../../support/random.js';
import { drawRows, lossesOfFiles } from '../../support/rollout-rows.js';
import { assertFailed, Files, fails, norm, run, runJson } from './support.js';

interface PreferenceRow {
  logprobs: number[];
  ref_logprobs: number[];
  action_mask: number[];
  pair_id: string;
  [column: string]: unknown;
}

const draws = generator(11);
const list = (length: number) => Array.from({ length }, () => Math.fround(-3 * draws.uniform() - 0.01));

/** Draws rows of which `size` with the same id belong together. */
function drawSets(count: number, size: number): PreferenceRow[] {
  return Array.from({ length: count * size }, (_, i) => {
    const length = draws.integer(1, 5);
    return {
      logprobs: list(length),
      ref_logprobs: list(length),
      action_mask: Array.from({ length }, (_, t) => Number((i + t) % 4 > 0)),
      pair_id: `set ${Math.floor(i / size)}`,
    };
  });
}

/** Returns what the library computes of rows, and of the batch's other columns. */
async function fromLibrary(
  name: string,
  rows: readonly PreferenceRow[],
  more: object = {},
  args: object = {},
) {
  const cuSeqlens = [0];
  for (const { logprobs } of rows) cuSeqlens.push(cuSeqlens.at(-1)! + logprobs.length);
  const batch = {
    cuSeqlens,
    logprob: rows.flatMap((row) => row.logprobs),
    refLogprob: rows.flatMap((row) => row.ref_logprobs),
    actionMask: rows.flatMap((row) => row.action_mask),
    ...more,
  };
  const { loss, metrics, grad } = (await LOSS_FN.create(name, { ...args }).compute(batch, {
    grad: true,
  })) as { loss: number; metrics: object; grad: Float32Array };
  const tokens = rows.flatMap((row) => row.action_mask).reduce((sum, kept) => sum + kept, 0);
  return { name, loss, metrics, rows: rows.length, tokens, gradNorm: norm(grad, rows) };
}

function isOfPairs(name: string): boolean {
  const { declaration } = POLICY_LOSS_FN.get(name);
  return declaration !== undefined && 'pairs' in declaration;
}

describe('policy-loss with preference data', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  const pairs = drawSets(8, 2);
  const without = (rows: readonly PreferenceRow[], ...columns: string[]) =>
    rows.map((row) => Object.fromEntries(Object.entries(row).filter(([name]) => !columns.includes(name))));

  it('computes every loss from the columns of files', async () => {
    const rows = drawRows(21, 60).map((row, i) => ({
      ...row,
      advantages: (i % 5) - 2,
      task_id: i >> 2,
    }));
    const file = files.write('all.jsonl', rows);
    for (const subject of lossesOfFiles()) {
      const { subjects } = await evaluated(file, [subject], 2 ** 20);
      assert.ok(Number.isFinite(subjects[0]!.loss), subject.name);
    }
  });

  // The others need more columns.
  for (const name of POLICY_LOSS_FN.names().filter(isOfPairs))
    if (!['trl/tpo', 'trl/xpo', 'oat/bnf', 'trl/online_dpo', 'verl/online_dpo'].includes(name))
      it(`${name}: prints the library's result to the bit`, async () => {
        const file = files.write('pairs.jsonl', pairs);
        assert.deepEqual(await runJson('evaluate', file, '--loss', name), await fromLibrary(name, pairs));
      });

  it('reads what single losses need of rows and tokens', async () => {
    const label = pairs.map((_, i) => i % 3 > 0);
    const klEstimate = pairs.map(() => 0.375);
    const probDesirable = pairs.map((_, i) => 0.25 + (i % 4) / 8);
    const refLogps = pairs.map((_, i) => -2 - (i % 3));
    const entropyOther = pairs.map((row) => row.logprobs.map((x) => x / 3));
    const logSumSqProb = pairs.map((row) => row.logprobs.map((x) => x / 2 - 1));
    const chosen = pairs.map((_, i) => (i >> 1) % 3 === (i & 1));
    const attentionMask = pairs.map((row) => row.logprobs.map(() => 1));
    for (const [name, columns, more, args] of [
      ['trl/kto', { label, kl_estimate: klEstimate }, { label, klEstimate }, {}],
      ['trl/bco', { label, prob_desirable: probDesirable }, { label, probDesirable }, {}],
      ['trl/dpo', { ref_logps: refLogps }, { refLogprob: undefined, refLogps }, {}],
      [
        'trl/dpo',
        { log_sum_sq_prob: logSumSqProb },
        { logSumSqProb: logSumSqProb.flat() },
        { use_weighting: true },
      ],
      ['trl/online_dpo', { reward: probDesirable }, { rewards: probDesirable }, {}],
      ['oat/bnf', { entropy_other: entropyOther }, { entropyOther: entropyOther.flat() }, {}],
      ['trl/xpo', { chosen }, { chosen }, {}],
      ['trl/orpo', { attention_mask: attentionMask }, { attentionMask: attentionMask.flat() }, {}],
    ] as const) {
      const rows = pairs.map((row, i) => ({
        ...row,
        ...Object.fromEntries(Object.entries(columns).map(([column, values]) => [column, values[i]])),
        ...('ref_logps' in columns && { ref_logprobs: undefined }),
      }));
      const words = Object.entries(args).map(([option]) => `--${option.replaceAll('_', '-')}`);
      const printed = await runJson('evaluate', files.write('more.jsonl', rows), '--loss', name, ...words);
      // The loss also remembers the running mean, which the command line does not print.
      assert.deepEqual(printed, await fromLibrary(name, pairs, more, args), name);
    }
  });

  it('reads pairs with ids from Parquet', async () => {
    const order = [...pairs.keys()].sort((a, b) => ((a * 7) % 16) - ((b * 7) % 16));
    const rows = order.map((i) => ({ ...pairs[i]!, chosen: i % 2 === 0, pair_id: i >> 1 }));
    const file = files.path('pairs.parquet');
    const lists = ['logprobs', 'ref_logprobs', 'action_mask'] as const;
    const writer = new ParquetWriter({
      writer: fileWriter(file),
      schema: [
        { name: 'pairs', num_children: lists.length + 2 },
        ...lists.flatMap((name) => [
          { name, converted_type: 'LIST', repetition_type: 'REQUIRED', num_children: 1 } as const,
          { name: 'list', repetition_type: 'REPEATED', num_children: 1 } as const,
          { name: 'element', type: 'DOUBLE', repetition_type: 'REQUIRED' } as const,
        ]),
        { name: 'pair_id', type: 'INT32', repetition_type: 'REQUIRED' },
        { name: 'chosen', type: 'BOOLEAN', repetition_type: 'REQUIRED' },
      ],
    });
    writer.write({
      columnData: [...lists, 'pair_id' as const, 'chosen' as const].map((name) => ({
        name,
        data: rows.map((row) => row[name]),
      })),
    });
    writer.finish();
    const words = ['--loss', 'trl/dpo', '--loss', 'trl/cpo', '--loss', 'oat/dpo'];
    const { subjects } = await runJson('compare', file, ...words);
    // The pairs are in the order of their second rows.
    const seconds = [...pairs.keys()].filter((i) => order.indexOf(i) > order.indexOf(i ^ 1));
    const inOrder = seconds
      .sort((a, b) => order.indexOf(a) - order.indexOf(b))
      .flatMap((i) => [pairs[i & ~1]!, pairs[i | 1]!]);
    for (const { name, loss, metrics, gradNorm } of subjects) {
      const expected = await fromLibrary(name, inOrder);
      assert.deepEqual({ loss, metrics, gradNorm }, { ...pick(expected) }, name);
    }
  });

  const pick = ({ loss, metrics, gradNorm }: Awaited<ReturnType<typeof fromLibrary>>) => ({
    loss,
    metrics,
    gradNorm,
  });

  it('compares several losses, warns once, and shows margins in the report', async () => {
    const file = files.write(
      'shifted.jsonl',
      without(pairs, 'pair_id').map((row, i) => ({ ...row, task_id: (i + 1) >> 1 })),
    );
    const report = files.path('report.html');
    const words = ['compare', file, '--loss', 'trl/dpo', '--loss', 'trl/cpo', '--loss', 'nemo/dpo'];
    const { code, stderr } = await run(...words, '--report', report);
    assert.equal(code, 0);
    assert.match(stderr, /^warning: .*line 2: task_id: expected the same as in .*line 1, [^\n]*\n$/);
    const page = readFileSync(report, 'utf8');
    assert.ok(page.includes('Reward margin'));
    assert.ok(!/<h[23][^>]*>[^<]*ratio/i.test(page));
  });

  it('names the column that KTO needs', async () => {
    const file = files.write('kto.jsonl', [{ logprobs: [-1], ref_logprobs: [-2], label: true }]);
    await fails(1, ['evaluate', file, '--loss', 'trl/kto'], /got a batch without it\. Or give kl_estimate, /);
  });

  it('takes the rows of trl/tpo in threes, and in one part', async () => {
    const threes = drawSets(5, 3);
    const expected = await fromLibrary('trl/tpo', threes);
    const shuffled = [0, 3, 1, 6, 9, 4, 7, 2, 10, 12, 5, 8, 13, 11, 14].map((i) => threes[i]!);
    for (const rows of [threes, without(threes, 'pair_id')]) {
      const file = files.write('threes.jsonl', rows);
      assert.deepEqual(await runJson('evaluate', file, '--loss', 'trl/tpo'), expected);
    }
    const file = files.write('threes.jsonl', shuffled);
    const { loss, gradNorm } = await runJson('evaluate', file, '--loss', 'trl/tpo');
    assert.ok(Math.abs(loss - expected.loss) < 1e-6);
    assert.ok(Math.abs(gradNorm - expected.gradNorm) < 1e-6);
    const whole = /trl\/tpo reduces over all rows of a batch: --(batch-tokens|shard-size): expected/;
    await fails(2, ['evaluate', file, '--loss', 'trl/tpo', '--batch-tokens', '9'], whole);
    const plan = ['--shard-size', '200', '--out', files.path('plan.json')];
    await fails(2, ['plan', file, '--loss', 'trl/tpo', ...plan], whole);
    const two = files.write('two.jsonl', without(threes.slice(0, 8), 'pair_id'));
    await fails(1, ['evaluate', two, '--loss', 'trl/tpo'], /expected a multiple of three rows/);
    const lacking = files.write('lacking.jsonl', shuffled.slice(0, -1));
    await fails(1, ['evaluate', lacking, '--loss', 'trl/tpo'], /expected 3 rows with the id/);
    // Without a third row, they are pairs.
    const pairsOnly = files.write('pairs.jsonl', pairs);
    const words = ['evaluate', pairsOnly, '--loss', 'trl/tpo', '--tpo-alpha', '0', '--batch-tokens', '12'];
    assert.ok((await runJson(...words)).batches > 1);
  });

  describe('in columns that also hold texts', () => {
    // TRL has texts in the columns chosen and rejected, and slime the right answer as label.
    const texts = (i: number) => ({ label: `${i >> 1}`, chosen: 'yes', rejected: 'no', prompt: 'say it' });

    it('leaves them alone', async () => {
      const file = files.write(
        'texts.jsonl',
        pairs.map((row, i) => ({ ...row, ...texts(i) })),
      );
      for (const words of [
        ['doctor', file],
        ['diff', file, file],
        ['evaluate', file, '--loss', 'trl/dpo'],
      ]) {
        const { code, stderr } = await run(...words);
        assert.deepEqual([code, stderr], [0, ''], words[0]);
      }
      assert.deepEqual(
        await runJson('evaluate', file, '--loss', 'trl/dpo'),
        await fromLibrary('trl/dpo', pairs),
      );
    });

    it('says so for a loss that reads them', async () => {
      const file = files.write(
        'texts.jsonl',
        pairs.map((row, i) => ({ ...row, kl_estimate: 0, ...texts(i) })),
      );
      const says = /line 1: label: expected true, false, 0 or 1, got '0'/;
      assertFailed(await run('evaluate', file, '--loss', 'trl/kto'), 1, says);
    });

    it('labels the responses of a row with both', async () => {
      const rows = pairs.flatMap((row, i) =>
        i % 2 === 0
          ? {
              ...texts(i),
              chosen_logprobs: row.logprobs,
              rejected_logprobs: pairs[i + 1]!.logprobs,
              ref_chosen_logprobs: row.ref_logprobs,
              ref_rejected_logprobs: pairs[i + 1]!.ref_logprobs,
              chosen_action_mask: row.action_mask,
              rejected_action_mask: pairs[i + 1]!.action_mask,
              kl_estimate: 0.5,
            }
          : [],
      );
      const file = files.write('both.jsonl', rows);
      const more = { label: pairs.map((_, i) => i % 2 === 0), klEstimate: pairs.map(() => 0.5) };
      assert.deepEqual(
        await runJson('evaluate', file, '--loss', 'trl/kto'),
        await fromLibrary('trl/kto', pairs, more),
      );
    });
  });
});
