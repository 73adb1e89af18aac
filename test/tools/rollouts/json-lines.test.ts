/** Tests how JSON lines are read into batches, and that errors name the file, the line and the column. */
import assert from 'node:assert/strict';
import { LossError } from '../../../lib/index.js';
import { columnOfKey, readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

describe('reading JSON lines', () => {
  const folder = temporaryFolder();

  const linesOf = (...rows: object[]) => rows.map((row) => JSON.stringify(row)).join('\n');

  function refuses(content: string | Buffer, code: LossError['code'], ...says: (string | RegExp)[]) {
    const file = folder.write('bad.jsonl', content);
    return assert.rejects(readRollouts([file]), (error: unknown) => {
      assert.ok(error instanceof LossError, `${error} is not a LossError`);
      assert.equal(error.code, code, error.message);
      assert.ok(error.message.startsWith(file), error.message);
      for (const part of says)
        assert.ok(
          typeof part === 'string' ? error.message.includes(part) : part.test(error.message),
          error.message,
        );
      return true;
    });
  }

  it('packs rows of different lengths', async () => {
    const file = folder.write(
      'all.jsonl',
      linesOf(
        {
          task_id: 'a',
          prompt: 'not a column of batches',
          logprobs: [-1, -2, -3],
          old_logprobs: [-1.5, -2.5, -3.5],
          ref_logprobs: [-4, -5, -6],
          advantages: [1, 2, 3],
          action_mask: [1, 0, true],
          entropy: [0.1, 0.2, 0.3],
          rollout_logprobs: [-1, -2, -3],
          prox_logprobs: [-4, -5, -6],
          teacher_logprobs: [-7, -8, -9],
          token_level_rewards: [0, 0.5, 1],
          values: [0.25, 0.5, 0.75],
          sum_pi_squared: [0.5, 0.25, 1],
          run_id: 3,
          reward_baseline: 0.5,
          reward: 1.5,
          expert: true,
          step: 7,
        },
        {
          task_id: 'b',
          logprobs: [],
          old_logprobs: [],
          ref_logprobs: [],
          advantages: 9,
          entropy: [],
          rollout_logprobs: [],
          prox_logprobs: [],
          teacher_logprobs: [],
          token_level_rewards: [],
          values: [],
          sum_pi_squared: [],
          run_id: '3',
          reward_baseline: 0,
          reward: 0,
          expert: false,
          step: 7,
        },
        {
          task_id: 'a',
          logprobs: [-0.1, -0.2],
          old_logprobs: [-0.3, -0.4],
          ref_logprobs: [-0.5, -0.6],
          advantages: -2,
          action_mask: null,
          entropy: [0.4, 0.5],
          rollout_logprobs: [-0.1, -0.2],
          prox_logprobs: [-0.4, -0.5],
          teacher_logprobs: [-0.7, -0.8],
          token_level_rewards: [0, -1],
          values: [0.5, 1],
          sum_pi_squared: [0.75, 0.125],
          run_id: 3,
          reward_baseline: -2,
          reward: -1,
          expert: 0,
          step: 7,
        },
      ),
    );
    const { batch, rows, tokens } = await readRollouts([file]);
    assert.deepEqual({ rows, tokens }, { rows: 3, tokens: 4 });
    assert.deepEqual(batch, {
      cuSeqlens: Int32Array.of(0, 3, 3, 5),
      logprob: Float32Array.of(-1, -2, -3, -0.1, -0.2),
      actionMask: Uint8Array.of(1, 0, 1, 1, 1),
      oldLogprob: Float32Array.of(-1.5, -2.5, -3.5, -0.3, -0.4),
      refLogprob: Float32Array.of(-4, -5, -6, -0.5, -0.6),
      advantages: Float32Array.of(1, 2, 3, -2, -2),
      entropy: Float32Array.of(0.1, 0.2, 0.3, 0.4, 0.5),
      rolloutLogprob: Float32Array.of(-1, -2, -3, -0.1, -0.2),
      proxLogprob: Float32Array.of(-4, -5, -6, -0.4, -0.5),
      teacherLogprob: Float32Array.of(-7, -8, -9, -0.7, -0.8),
      rewards: Float64Array.of(1.5, 0, -1),
      tokenLevelRewards: Float32Array.of(0, 0.5, 1, 0, -1),
      values: Float32Array.of(0.25, 0.5, 0.75, 0.5, 1),
      sumPiSquared: Float32Array.of(0.5, 0.25, 1, 0.75, 0.125),
      rewardBaselines: Float64Array.of(0.5, 0, -2),
      groupIds: Int32Array.of(0, 1, 0),
      runIds: Int32Array.of(0, 1, 0),
      expertMask: Uint8Array.of(1, 0, 0),
      step: Float64Array.of(7, 7, 7),
    });
  });

  it('reads only the columns asked for, and ignores errors in others', async () => {
    const file = folder.write(
      'some.jsonl',
      linesOf({ logprobs: [-1], entropy: 'x', reward: 1 }, { logprobs: [-2] }),
    );
    const { batch } = await readRollouts([file], { columns: ['old_logprobs'] });
    assert.deepEqual(Object.keys(batch).sort(), ['actionMask', 'cuSeqlens', 'logprob']);
  });

  it('reads lines longer than a chunk of the file', async () => {
    const long = Array.from({ length: 100_000 }, (_, t) => -(t + 1) / 8);
    const file = folder.write(
      'long.jsonl',
      linesOf({ logprobs: long }, { logprobs: [-1] }, { logprobs: long }),
    );
    const { batch, rows } = await readRollouts([file]);
    assert.equal(rows, 3);
    assert.deepEqual(batch.logprob, Float32Array.from([...long, -1, ...long]));
  });

  it('accepts blank lines, CRLF, a byte order mark, and U+2028 within a string', async () => {
    const file = folder.write(
      'odd.jsonl',
      '\uFEFF{"logprobs":[-1],"response":"a\u2028b\u2029c"}\r\n\r\n  \n{"logprobs":[-2]}\r\n\n',
    );
    const { batch } = await readRollouts([file]);
    assert.deepEqual(batch.logprob, Float32Array.of(-1, -2));
  });

  it('reads several files as if they were one', async () => {
    const one = { task_id: 1, logprobs: [-1, -2] };
    const two = { task_id: 2, logprobs: [-3] };
    const files = [
      folder.write('1.jsonl', linesOf(one, two)),
      folder.write('2.jsonl', `${linesOf(two, one)}\n`),
    ];
    assert.deepEqual(
      await readRollouts(files),
      await readRollouts([folder.write('both.jsonl', linesOf(one, two, two, one))]),
    );
  });

  it('maps batch keys to columns', () => {
    assert.equal(columnOfKey('teacherLogprob'), 'teacher_logprobs');
    assert.equal(columnOfKey('groupIds'), 'task_id');
    assert.equal(columnOfKey('nothing'), undefined);
  });

  it('reports progress in bytes and rows', async () => {
    const content = linesOf({ logprobs: [-1] }, { logprobs: [-2] });
    let read = 0;
    let last = 0;
    await readRollouts([folder.write('progress.jsonl', content)], {
      onProgress: ({ bytes, rows, totalBytes }) => {
        assert.equal(totalBytes, Buffer.byteLength(content));
        read = bytes;
        last = rows;
      },
    });
    assert.equal(read, Buffer.byteLength(content));
    assert.ok(last >= 1);
  });

  describe('with missing numbers', () => {
    const { NaN: nan, POSITIVE_INFINITY: infinity } = Number;

    it('reads NaN, Infinity and null in lists, and as numbers of a row', async () => {
      const file = folder.write(
        'nan.jsonl',
        '{"logprobs":[NaN,-Infinity,null,-1],"advantages":Infinity,"reward":NaN,"v_star": -Infinity }\n' +
          '{"logprobs":[nan,-inf],"advantages":NaN,"reward":2,"v_star":1}',
      );
      const { batch } = await readRollouts([file]);
      assert.deepEqual(batch.logprob, Float32Array.of(nan, -infinity, nan, -1, nan, -infinity));
      assert.deepEqual(batch.advantages, Float32Array.of(infinity, infinity, infinity, infinity, nan, nan));
      assert.deepEqual(batch.rewards, Float64Array.of(nan, 2));
      assert.deepEqual(batch.vStar, Float64Array.of(-infinity, 1));
    });

    it('lets rows lack their reward, in parts too', async () => {
      for (const rewards of [
        [1, null, undefined, 0],
        [null, undefined, 1, null],
      ]) {
        const file = folder.write(
          'rewards.jsonl',
          linesOf(...rewards.map((reward) => ({ logprobs: [-1], reward }))),
        );
        const expected = Float64Array.from(rewards, (reward) => reward ?? nan);
        assert.deepEqual((await readRollouts([file])).batch.rewards, expected);
        let row = 0;
        for await (const { batch } of streamRollouts([file], { maxTokens: 1 }))
          assert.deepEqual(batch.rewards, expected.subarray(row, ++row));
      }
      await refuses(
        linesOf({ logprobs: [-1] }, { logprobs: [-1], reward: 1 }),
        'ERR_MISSING_INPUT',
        /line 2: reward: .* one here, but none in .*line 1\. TRL leaves/,
      );
    });

    it('lets rows whose tokens are all masked lack any numbers', async () => {
      const full = { logprobs: [-1, -2], old_logprobs: [-3, -4], reward_baseline: 1 };
      const masked = { action_mask: [0, false], logprobs: null, old_logprobs: null };
      const { batch } = await readRollouts([folder.write('masked.jsonl', linesOf(full, masked, full))]);
      assert.deepEqual(batch.logprob, Float32Array.of(-1, -2, nan, nan, -1, -2));
      assert.deepEqual(batch.oldLogprob, Float32Array.of(-3, -4, nan, nan, -3, -4));
      assert.deepEqual(batch.rewardBaselines, Float64Array.of(1, nan, 1));
      // Whether the first row is masked or not, it decides which columns there are.
      await refuses(linesOf({ ...masked, logprobs: [-1, -2] }, full), 'ERR_MISSING_INPUT', 'but none in');
    });

    it('counts a row with only one number for all its tokens as one token', async () => {
      const file = folder.write('scalars.jsonl', linesOf({ advantages: 0.5 }, { advantages: -0.5 }));
      const { batch, tokens } = await readRollouts([file], { logprobs: 'optional' });
      assert.deepEqual([tokens, batch.advantages], [2, Float32Array.of(0.5, -0.5)]);
    });
  });

  const good = '{"logprobs":[-1,-2],"old_logprobs":[-1,-2]}\n';
  describe('rejects', () => {
    it('a truncated line', () =>
      refuses(`${good}\n{"logprobs":[-1,`, 'ERR_INVALID_INPUT', 'line 3', 'expected a JSON object'));
    it('a line that is not an object', () =>
      refuses(
        `${good}[1,2]`,
        'ERR_INVALID_INPUT',
        'line 2',
        'expected a JSON object, got an array of length 2',
      ));
    it('a line with NaN only inside a string, without blaming NaN', () =>
      refuses(
        `${good}{"text":"NaN \\" NaN","logprobs":[-1,}`,
        'ERR_INVALID_INPUT',
        'line 2',
        /does not parse/,
      ));
    it('a row without logprobs', () =>
      refuses(
        '{"logprob":[-1],"x":1}',
        'ERR_MISSING_INPUT',
        'line 1',
        'logprobs: expected a list',
        'logprob, x. Did you mean logprob? Then add --column logprobs=logprob',
      ));
    it('a row whose logprobs have almost their name, with that name before one that can stand in', () =>
      refuses(
        '{"log_probs":[-1],"old_logprobs":[-1]}',
        'ERR_MISSING_INPUT',
        /Did you mean log_probs\? .*=log_probs$/,
      ));
    it('a row without a column of the name that the user gave', async () => {
      const file = folder.write('renamed.jsonl', '{"logprobs":[-1],"scores":1}');
      await assert.rejects(
        readRollouts([file], { rename: { reward: 'score' } }),
        /score: expected a number, .*Did you mean scores\? Then add --column reward=scores$/,
      );
    });
    it('logprobs that are not a list', () =>
      refuses('{"logprobs":-1}', 'ERR_INVALID_INPUT', 'line 1: logprobs', 'got number -1'));
    it('lists of different lengths', () =>
      refuses(
        `${good}{"logprobs":[-1,-2],"old_logprobs":[-1]}`,
        'ERR_SHAPE_MISMATCH',
        'line 2: old_logprobs: expected a list of 2 numbers',
        'got an array of length 1',
      ));
    it('a mask of another length', () =>
      refuses('{"logprobs":[-1,-2],"action_mask":[1]}', 'ERR_SHAPE_MISMATCH', 'line 1: action_mask'));
    it('a mask with a number other than 0 and 1', () =>
      refuses(
        '{"logprobs":[-1,-2],"action_mask":[1,0.5]}',
        'ERR_INVALID_INPUT',
        'action_mask[1]',
        'number 0.5',
      ));
    it('text among numbers', () =>
      refuses(
        `${good}{"logprobs":[-1,"-2"]}`,
        'ERR_INVALID_INPUT',
        "line 2: logprobs[1]: expected a number, got '-2'",
      ));
    it('null in a mask', () =>
      refuses('{"logprobs":[-1],"action_mask":[null]}', 'ERR_INVALID_INPUT', 'action_mask[0]', 'got null'));
    it('NaN and Infinity as ids', async () => {
      for (const id of ['NaN', '-Infinity'])
        await refuses(
          `{"logprobs":[-1],"task_id":${id}}`,
          'ERR_INVALID_INPUT',
          'task_id: expected a finite number or a string',
        );
    });
    it('words that only look like NaN or Infinity', async () => {
      for (const word of ['NaNs', '2Infinity', '0.inf', 'NaN NaN', 'infinity'])
        await refuses(
          `{"logprobs":[-1,${word}]}`,
          'ERR_INVALID_INPUT',
          /does not parse|expected a JSON object/,
        );
    });
    it('a list instead of one number', () =>
      refuses(
        '{"logprobs":[-1],"reward":[1]}',
        'ERR_INVALID_INPUT',
        'reward: expected one number, got an array',
      ));
    it('an object as a group id', () =>
      refuses(
        '{"logprobs":[-1],"task_id":{}}',
        'ERR_INVALID_INPUT',
        'task_id: expected a number or a string',
      ));
    it('true as a run id', () =>
      refuses(
        '{"logprobs":[-1],"run_id":true}',
        'ERR_INVALID_INPUT',
        'run_id: expected a number or a string, got boolean true',
      ));
    for (const column of [
      'rollout_logprobs',
      'prox_logprobs',
      'teacher_logprobs',
      'old_entropy',
      'token_level_rewards',
      'values',
      'sum_pi_squared',
    ])
      it(`one number as ${column}`, () =>
        refuses(
          `{"logprobs":[-1],"${column}":-1}`,
          'ERR_INVALID_INPUT',
          `${column}: expected a list of 1 number, got number -1`,
        ));
    it('a list as a reward baseline', () =>
      refuses(
        '{"logprobs":[-1],"reward_baseline":[1]}',
        'ERR_INVALID_INPUT',
        'reward_baseline: expected one number',
      ));
    it('a word as a flag', () =>
      refuses(
        '{"logprobs":[-1],"expert":"yes"}',
        'ERR_INVALID_INPUT',
        "expert: expected true, false, 0 or 1, got 'yes'",
      ));
    it('a column that later rows lack', () =>
      refuses(
        `${good}${good}{"logprobs":[-1]}`,
        'ERR_MISSING_INPUT',
        'line 3: old_logprobs: expected a list of numbers in every row or in none',
        'got none here, but one in',
        /line 1$/,
      ));
    it('a column that earlier rows lack', () =>
      refuses(
        `${good}{"logprobs":[-1],"old_logprobs":[-1],"step":3}`,
        'ERR_MISSING_INPUT',
        'line 2: step: expected a number in every row or in none',
        'got one here, but none in',
        /line 1$/,
      ));
    it('an empty file', () => refuses('\n \n', 'ERR_INVALID_INPUT', 'got an empty file'));
    it('an empty file after a good one', () =>
      assert.rejects(readRollouts([folder.write('good.jsonl', good), folder.write('empty.jsonl', '')]), {
        code: 'ERR_INVALID_INPUT',
        message: /empty\.jsonl: .* got an empty file/,
      }));
    it('a file that does not exist', () =>
      assert.rejects(readRollouts([folder.path('nowhere.jsonl')]), {
        code: 'ERR_INVALID_INPUT',
        message: /nowhere\.jsonl: expected a readable file of rollouts, got nothing: no such file/,
      }));
    it('a directory', () =>
      assert.rejects(readRollouts([folder.directory]), {
        code: 'ERR_INVALID_INPUT',
        message: /expected a readable file of rollouts, got an error \(EISDIR/,
      }));
  });
});
