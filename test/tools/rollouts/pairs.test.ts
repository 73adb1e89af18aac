/** Tests how the rows of pairs are read: in turns, by ids in any order, and from rows that hold both responses. */
import assert from 'node:assert/strict';
import type { SchemaElement } from 'hyparquet';
import { fileWriter, ParquetWriter } from 'hyparquet-writer';
import { LossError } from '../../../lib/index.js';
import { type RolloutPart, type StreamOptions, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

describe('rows in pairs', () => {
  const folder = temporaryFolder();
  const fileOf = (rows: readonly (object | string)[], name = 'rows.jsonl') =>
    folder.write(name, rows.map((row) => (typeof row === 'string' ? row : JSON.stringify(row))).join('\n'));

  /** Reads rows in pairs. Returns the first log-probability of each row, and what was reported. */
  async function read(files: string | string[], options: StreamOptions = {}) {
    const parts: RolloutPart[] = [];
    const warnings: string[] = [];
    const skipped: string[] = [];
    const onWarning = ({ message }: LossError) => warnings.push(message);
    const onBadRow = ({ message }: LossError) => skipped.push(message);
    const given = { pairs: true, onWarning, onBadRow, ...options };
    for await (const part of streamRollouts([files].flat(), given)) parts.push(part);
    const firsts = parts.flatMap(({ batch, rows }) =>
      Array.from({ length: rows }, (_, row) => batch.logprob[batch.cuSeqlens[row]!]!),
    );
    return { parts, firsts, warnings, skipped };
  }
  const fails = (file: string, pattern: RegExp, options?: StreamOptions) =>
    assert.rejects(read(file, options), (error) => error instanceof LossError && pattern.test(error.message));

  /** A row whose first log-probability is −`value`. */
  const row = (value: number, more: object = {}) => ({ logprobs: [-value, -0.5], ...more });

  describe('with a pair_id', () => {
    it('come together in any order, in the order of their second rows', async () => {
      const rows = [
        row(1, { pair_id: 'a' }),
        row(2, { pair_id: 7 }),
        row(3, { pair_id: 'b' }),
        row(4, { pair_id: 7 }),
        row(5, { pair_id: 'b' }),
        row(6, { pair_id: 'a' }),
      ];
      for (const maxTokens of [1000, 6]) {
        const { firsts, parts, warnings } = await read(fileOf(rows), { maxTokens });
        assert.deepEqual(firsts, [-2, -4, -3, -5, -1, -6]);
        assert.deepEqual(
          parts.flatMap(({ places }) => places.map(({ line }) => line)),
          [2, 4, 3, 5, 1, 6],
        );
        assert.equal(parts.length, maxTokens === 6 ? 3 : 1);
        assert.deepEqual(warnings, []);
      }
    });

    it('come together across files, under the name that the user gives', async () => {
      const files = [fileOf([row(1, { uid: 1 }), row(2, { uid: 2 })], 'a.jsonl')];
      files.push(fileOf([row(3, { uid: 2 }), row(4, { uid: 1 })], 'b.jsonl'));
      const { firsts } = await read(files, { rename: { pair_id: 'uid' } });
      assert.deepEqual(firsts, [-2, -3, -1, -4]);
    });

    it('tell apart integers that a number cannot hold', async () => {
      const lines = ['9007199254740993', '9007199254740992', '9007199254740993', '9007199254740992'];
      const rows = lines.map((id, i) => `{"pair_id":${id},"logprobs":[-${i + 1}]}`);
      assert.deepEqual((await read(fileOf(rows))).firsts, [-1, -3, -2, -4]);
    });

    it('are an error that names the id and the lines if there is one row, or a third', async () => {
      const pair = [row(1, { pair_id: 'a' }), row(2, { pair_id: 'a' })];
      const three = fileOf([...pair, row(3, { pair_id: 'a' })]);
      const third =
        /rows\.jsonl, line 3: pair_id: expected two rows with pair_id 'a', got a third one, after .*line 1 and .*line 2/;
      await fails(three, third);
      const one = fileOf([...pair, row(3, { pair_id: 5 })]);
      await fails(one, /rows\.jsonl, line 3: pair_id: expected two rows with pair_id 5, got one/);
      for (const file of [three, one]) {
        const { firsts, skipped } = await read(file, { skipBadRows: true });
        assert.deepEqual(firsts, [-1, -2]);
        assert.equal(skipped.length, 1);
      }
    });

    it('are an error if only some rows have one', async () => {
      const file = fileOf([row(1, { pair_id: 1 }), row(2), row(3, { pair_id: 1 })]);
      await fails(file, /line 2: pair_id: expected an id in every row or in none, got none here/);
      await fails(fileOf([row(1), row(2, { pair_id: 1 })]), /line 2: pair_id: .*got one here/);
      await fails(fileOf([row(1, { pair_id: [1] })]), /line 1: pair_id: expected a number or a string/);
    });

    it('skip both rows if one is bad', async () => {
      const file = fileOf([
        row(1, { pair_id: 1 }),
        { pair_id: 2, logprobs: 'x' },
        '{',
        row(3, { pair_id: 2 }),
        row(4, { pair_id: 1 }),
      ]);
      const { firsts, skipped } = await read(file, { skipBadRows: true });
      assert.deepEqual(firsts, [-1, -4]);
      assert.deepEqual(
        skipped.map((message) => /line \d/.exec(message)![0]),
        ['line 3', 'line 2', 'line 4'],
      );
    });

    it('wait for their partners within a limit of tokens', async () => {
      const rows = [1, 2, 3, 1, 2, 3].map((id, i) => row(i, { pair_id: id }));
      assert.equal((await read(fileOf(rows), { maxTokens: 6 })).firsts.length, 6);
      await fails(
        fileOf(rows),
        /line 1: pair_id: expected the other row of 1 before rows with 5 tokens wait for theirs/,
        { maxTokens: 5 },
      );
    });
  });

  describe('with a flag', () => {
    for (const flag of ['chosen', 'label'])
      it(`${flag} begin with the row that has it`, async () => {
        const rows = [
          row(1, { [flag]: false }),
          row(2, { [flag]: true }),
          row(3, { [flag]: 1 }),
          row(4, { [flag]: 0 }),
        ];
        assert.deepEqual((await read(fileOf(rows))).firsts, [-2, -1, -3, -4]);
        const ids = rows.map((each, i) => ({ ...each, pair_id: i >> 1 }));
        assert.deepEqual((await read(fileOf([ids[3]!, ids[1]!, ids[0]!, ids[2]!]))).firsts, [-2, -1, -3, -4]);
        await fails(
          fileOf([rows[1]!, rows[2]!]),
          new RegExp(
            `line 2: ${flag}: expected true in one row of a pair, and false in the other, got true here and in .*line 1`,
          ),
        );
      });

    it('in CSV are text', async () => {
      const file = folder.write('rows.csv', 'logprobs,chosen\n[-1],False\n[-2],True\n');
      assert.deepEqual((await read(file)).firsts, [-2, -1]);
    });

    it('keep their order if it is another value', async () => {
      const rows = [row(1, { label: '7' }), row(2, { label: '8' }), row(3, { chosen: true }), row(4)];
      assert.deepEqual((await read(fileOf(rows))).firsts, [-1, -2, -3, -4]);
    });
  });

  describe('that answer different prompts', () => {
    const rows = [
      row(1, { task_id: 1, prompt: ['a'] }),
      row(2, { task_id: 1, prompt: ['a'] }),
      row(3, { task_id: 1, prompt: ['b'] }),
      row(4, { task_id: 2, prompt: ['b'] }),
      row(5, { task_id: 2, prompt: ['c'] }),
      row(6, { task_id: 2, prompt: ['d'] }),
    ];
    const warning =
      /line 4: task_id: expected the same as in .*line 3, because the loss takes these two rows for a pair, got another\. Rows must alternate/;

    it('are warned of once', async () => {
      const { firsts, warnings } = await read(fileOf(rows));
      assert.equal(firsts.length, 6);
      assert.equal(warnings.length, 1);
      assert.match(warnings[0]!, warning);
      const { warnings: ofPrompts } = await read(fileOf(rows.map((each) => ({ ...each, task_id: 'q' }))));
      assert.match(ofPrompts.join(), /rows\.jsonl, line 6: prompt: expected the same as in .*line 5/);
    });

    it('are an error with strict', () =>
      fails(fileOf(rows), /line 4: task_id: expected the same/, { strict: true }));

    it('are no matter without pairs', async () => {
      assert.deepEqual((await read(fileOf(rows), { pairs: false })).warnings, []);
    });
  });

  describe('in one row of a file', () => {
    const both = (i: number) => ({
      task_id: `q${i}`,
      chosen_logprobs: [-2 * i - 1, -0.5],
      rejected_logprobs: [-2 * i - 2],
      ref_chosen_logprobs: [-0.25, -i - 1],
      rejected_ref_logprobs: [-0.75],
      chosen_action_mask: [1, 0],
      chosen_reward: i,
      rejected_reward: i - 3,
      margin: i / 2,
      prompt: `prompt ${i}`,
      chosen: `good ${i}`,
      rejected: `bad ${i}`,
    });
    const rows = [both(0), both(1)];

    it('become two rows, the chosen one first', async () => {
      for (const pairs of [true, false]) {
        const { parts, warnings } = await read(fileOf(rows), {
          pairs,
          keep: ['prompt', 'response', 'label'],
        });
        const [{ batch, kept, tokens }] = parts as [RolloutPart];
        assert.deepEqual(batch.cuSeqlens, Int32Array.of(0, 2, 3, 5, 6));
        assert.deepEqual(batch.logprob, Float32Array.of(-1, -0.5, -2, -3, -0.5, -4));
        assert.deepEqual(batch.refLogprob, Float32Array.of(-0.25, -1, -0.75, -0.25, -2, -0.75));
        assert.deepEqual(batch.actionMask, Uint8Array.of(1, 0, 1, 1, 0, 1));
        assert.deepEqual(batch.rewards, Float64Array.of(0, -3, 1, -2));
        assert.deepEqual(batch.margin, Float64Array.of(0, 0, 0.5, 0.5));
        assert.deepEqual(batch.groupIds, Int32Array.of(0, 0, 1, 1));
        assert.equal(tokens, 4);
        assert.deepEqual(kept, [
          { prompt: 'prompt 0', response: 'good 0', label: true },
          { prompt: 'prompt 0', response: 'bad 0', label: false },
          { prompt: 'prompt 1', response: 'good 1', label: true },
          { prompt: 'prompt 1', response: 'bad 1', label: false },
        ]);
        assert.deepEqual(warnings, []);
      }
    });

    it('may have other names', async () => {
      const { parts } = await read(fileOf([{ lp_w: [-1], lp_l: [-2], score_chosen: 1, score_rejected: 0 }]), {
        columns: ['reward'],
        rename: {
          chosen_logprobs: 'lp_w',
          rejected_logprobs: 'lp_l',
          chosen_reward: 'score_chosen',
          rejected_reward: 'score_rejected',
        },
      });
      assert.deepEqual(parts[0]!.batch.logprob, Float32Array.of(-1, -2));
      assert.deepEqual(parts[0]!.batch.rewards, Float64Array.of(1, 0));
    });

    it("may have a framework's names", async () => {
      const rows = [{ chosen_log_prob: [-1], rejected_log_prob: [-2], chosen_response_mask: [0] }];
      const { parts } = await read(fileOf(rows), { backend: 'verl' });
      assert.deepEqual(parts[0]!.batch.logprob, Float32Array.of(-1, -2));
      assert.deepEqual(parts[0]!.batch.actionMask, Uint8Array.of(0, 1));
    });

    it('are read from Parquet as from JSON lines, and from CSV', async () => {
      const file = folder.path('pairs.parquet');
      const list = (name: string): SchemaElement[] => [
        { name, converted_type: 'LIST', repetition_type: 'REQUIRED', num_children: 1 },
        { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
        { name: 'element', type: 'FLOAT', repetition_type: 'REQUIRED' },
      ];
      const names = [
        'chosen_logprobs',
        'rejected_logprobs',
        'ref_chosen_logprobs',
        'rejected_ref_logprobs',
      ] as const;
      const schema = [
        { name: 'pairs', num_children: names.length + 1 },
        ...names.flatMap(list),
        { name: 'task_id', type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'REQUIRED' } as const,
      ];
      const writer = new ParquetWriter({ writer: fileWriter(file), schema, statistics: false });
      writer.write({
        columnData: [
          ...names.map((name) => ({
            name,
            data: rows.map((each) => each[name]),
            encoding: 'PLAIN' as const,
          })),
          { name: 'task_id', data: rows.map(({ task_id }) => task_id) },
        ],
      });
      writer.finish();
      const options: StreamOptions = { columns: ['ref_logprobs', 'task_id'] };
      const masked = rows.map(({ chosen_action_mask: _, ...others }) => others);
      const csv = [
        [...names, 'task_id'].join('\t'),
        ...rows.map((each) => [...names.map((name) => JSON.stringify(each[name])), each.task_id].join('\t')),
      ];
      const [{ batch }] = (await read(fileOf(masked), options)).parts as [RolloutPart];
      for (const other of [file, folder.write('pairs.tsv', csv.join('\n'))])
        assert.deepEqual((await read(other, options)).parts[0]!.batch, batch);
    });

    it('name their columns in errors', async () => {
      const { rejected_logprobs: _, ...lacking } = both(1);
      const { rejected_reward: __, ...unequal } = both(1);
      for (const [bad, pattern] of [
        [
          lacking,
          /line 2: rejected_logprobs: expected a list of numbers, one per token, got a row with only task_id/,
        ],
        [{ ...both(1), chosen_logprobs: 'x' }, /line 2: chosen_logprobs: expected/],
        [
          { ...both(1), ref_chosen_logprobs: [1] },
          /line 2: ref_chosen_logprobs: expected a list of 2 numbers/,
        ],
        [
          { ...both(1), task_id: undefined },
          /line 2: chosen_task_id: expected a number or a string in every row/,
        ],
        [
          { ...unequal, rejected_action_mask: [2] },
          /line 2: rejected_action_mask\[0\]: .*true, false, 0 or 1/,
        ],
      ] as const) {
        const file = fileOf([both(0), bad]);
        await fails(file, pattern);
        const { firsts, skipped } = await read(file, { skipBadRows: true });
        assert.deepEqual(firsts, [-1, -2]);
        assert.match(skipped[0]!, pattern);
      }
      await fails(
        folder.write('none.csv', 'chosen_reward\n1\n'),
        /none\.csv, line 2: chosen_logprobs: expected/,
      );
    });

    it('stay together after rows that cannot be read', async () => {
      for (const rows of [
        [both(0), '{', both(1)],
        ['{', both(0), both(1)],
        [both(0), '{', '{', both(1), '{'],
        ['{', both(0), '{', both(1), '{'],
      ]) {
        const { firsts, skipped } = await read(fileOf(rows), { skipBadRows: true });
        assert.deepEqual(firsts, [-1, -2, -3, -4]);
        const bad = rows.flatMap((each, i) => (each === '{' ? [i + 1] : []));
        assert.deepEqual(
          skipped.map((message) => Number(/line (\d)/.exec(message)![1])),
          bad,
        );
      }
    });

    it('do not complete the pairs of the file before', async () => {
      const odd = fileOf([row(1), row(2), row(3)], 'odd.jsonl');
      const whole = { chosen_logprobs: [-4, -0.5], rejected_logprobs: [-5, -0.5] };
      const files = [odd, fileOf([whole]), odd];
      const pattern = /odd\.jsonl, line 3: expected the other row of its pair after it, got a row that holds/;
      await assert.rejects(read(files), (error: LossError) => pattern.test(error.message));
      const { firsts, skipped } = await read(files, { skipBadRows: true });
      assert.deepEqual(firsts, [-1, -2, -4, -5, -1, -2, -3]);
      assert.equal(skipped.length, 1);
    });

    it('are left as they are in a file whose first row holds one response', async () => {
      await fails(fileOf([row(1), both(0)]), /line 2: logprobs: expected a list of numbers, one per token/);
    });
  });
});
