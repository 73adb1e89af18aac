/** Rollout files become batches, and what is wrong in them is named by file, line and column. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { groupAdvantages } from '../lib/advantage/group-advantages.js';
import { LossError } from '../lib/index.js';
import { readRollouts } from '../lib/rollouts.js';
import type { Tensor } from './support/golden.js';

describe('rollout files', () => {
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));
  });
  after(() => rmSync(directory, { recursive: true }));

  function fileOf(name: string, content: string | Buffer): string {
    const file = join(directory, name);
    writeFileSync(file, content);
    return file;
  }

  const linesOf = (...rows: object[]) => rows.map((row) => JSON.stringify(row)).join('\n');

  function refuses(content: string | Buffer, code: LossError['code'], ...says: (string | RegExp)[]) {
    const file = fileOf('bad.jsonl', content);
    return assert.rejects(readRollouts([file]), (error: unknown) => {
      assert.ok(error instanceof LossError, `${error} is no LossError`);
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

  it('are packed, ragged rows one after another', async () => {
    const file = fileOf(
      'all.jsonl',
      linesOf(
        {
          task_id: 'a',
          prompt: 'kept out',
          logprobs: [-1, -2, -3],
          old_logprobs: [-1.5, -2.5, -3.5],
          ref_logprobs: [-4, -5, -6],
          advantages: [1, 2, 3],
          action_mask: [1, 0, true],
          entropy: [0.1, 0.2, 0.3],
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
      rewards: Float64Array.of(1.5, 0, -1),
      groupIds: Int32Array.of(0, 1, 0),
      expertMask: Uint8Array.of(1, 0, 0),
      step: Float64Array.of(7, 7, 7),
    });
  });

  it('give only the columns asked for, and the others may be in any state', async () => {
    const file = fileOf(
      'some.jsonl',
      linesOf({ logprobs: [-1], entropy: 'x', reward: 1 }, { logprobs: [-2] }),
    );
    const { batch } = await readRollouts([file], { columns: ['old_logprobs'] });
    assert.deepEqual(Object.keys(batch).sort(), ['actionMask', 'cuSeqlens', 'logprob']);
  });

  it('may be long, and longer than what is read at once', async () => {
    const long = Array.from({ length: 100_000 }, (_, t) => -(t + 1) / 8);
    const file = fileOf('long.jsonl', linesOf({ logprobs: long }, { logprobs: [-1] }, { logprobs: long }));
    const { batch, rows } = await readRollouts([file]);
    assert.equal(rows, 3);
    assert.deepEqual(batch.logprob, Float32Array.from([...long, -1, ...long]));
  });

  it('may have empty lines, CRLF, a byte order mark, and U+2028 within a string', async () => {
    const file = fileOf(
      'odd.jsonl',
      '\uFEFF{"logprobs":[-1],"response":"a\u2028b\u2029c"}\r\n\r\n  \n{"logprobs":[-2]}\r\n\n',
    );
    const { batch } = await readRollouts([file]);
    assert.deepEqual(batch.logprob, Float32Array.of(-1, -2));
  });

  it('may be several, which count as one', async () => {
    const one = { task_id: 1, logprobs: [-1, -2] };
    const two = { task_id: 2, logprobs: [-3] };
    const files = [fileOf('1.jsonl', linesOf(one, two)), fileOf('2.jsonl', `${linesOf(two, one)}\n`)];
    assert.deepEqual(
      await readRollouts(files),
      await readRollouts([fileOf('both.jsonl', linesOf(one, two, two, one))]),
    );
  });

  it('tell how many bytes and rows have been read', async () => {
    const content = linesOf({ logprobs: [-1] }, { logprobs: [-2] });
    let read = 0;
    let last = 0;
    await readRollouts([fileOf('progress.jsonl', content)], {
      onProgress: (bytes, rows) => {
        read += bytes;
        last = rows;
      },
    });
    assert.equal(read, Buffer.byteLength(content));
    assert.ok(last >= 1);
  });

  const good = '{"logprobs":[-1,-2],"old_logprobs":[-1,-2]}\n';
  describe('that are refused', () => {
    it('a line that is cut off', () =>
      refuses(`${good}\n{"logprobs":[-1,`, 'ERR_INVALID_INPUT', 'line 3', 'expected a JSON object'));
    it('a line that is no object', () =>
      refuses(
        `${good}[1,2]`,
        'ERR_INVALID_INPUT',
        'line 2',
        'expected a JSON object, not an array of length 2',
      ));
    for (const word of ['NaN', '-Infinity'])
      it(`${word} as a number`, () =>
        refuses(
          `${good}{"text":"a \\"","logprobs":[-1,${word}]}`,
          'ERR_INVALID_INPUT',
          'line 2',
          `${word.replace('-', '')} came, which JSON has no way to write`,
        ));
    it('NaN within a string is not to blame', () =>
      refuses(
        `${good}{"text":"NaN \\" NaN","logprobs":[-1,}`,
        'ERR_INVALID_INPUT',
        'line 2',
        /does not parse/,
      ));
    it('no logprobs', () =>
      refuses(
        '{"logprob":[-1],"x":1}',
        'ERR_MISSING_INPUT',
        'line 1',
        'logprobs: expected a list',
        'logprob, x',
      ));
    it('logprobs that are no list', () =>
      refuses('{"logprobs":-1}', 'ERR_INVALID_INPUT', 'line 1: logprobs', 'not number -1'));
    it('lists of different lengths', () =>
      refuses(
        `${good}{"logprobs":[-1,-2],"old_logprobs":[-1]}`,
        'ERR_SHAPE_MISMATCH',
        'line 2: old_logprobs: expected a list of 2 numbers',
        'not an array of length 1',
      ));
    it('a mask of another length', () =>
      refuses('{"logprobs":[-1,-2],"action_mask":[1]}', 'ERR_SHAPE_MISMATCH', 'line 1: action_mask'));
    it('a mask with another number', () =>
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
        "line 2: logprobs[1]: expected a number, not '-2'",
      ));
    it('null among numbers', () =>
      refuses('{"logprobs":[-1],"advantages":[null]}', 'ERR_INVALID_INPUT', 'advantages[0]', 'not null'));
    it('a list where one number belongs', () =>
      refuses(
        '{"logprobs":[-1],"reward":[1]}',
        'ERR_INVALID_INPUT',
        'reward: expected one number, not an array',
      ));
    it('an object for a group', () =>
      refuses(
        '{"logprobs":[-1],"task_id":{}}',
        'ERR_INVALID_INPUT',
        'task_id: expected a number or a string',
      ));
    it('a word for a flag', () =>
      refuses(
        '{"logprobs":[-1],"expert":"yes"}',
        'ERR_INVALID_INPUT',
        "expert: expected true, false, 0 or 1, not 'yes'",
      ));
    it('a column that later rows lack', () =>
      refuses(
        `${good}${good}{"logprobs":[-1]}`,
        'ERR_MISSING_INPUT',
        'line 3: old_logprobs: expected in every row or in none',
        'line 1 has it',
      ));
    it('a column that earlier rows lack', () =>
      refuses(
        `${good}{"logprobs":[-1],"old_logprobs":[-1],"step":3}`,
        'ERR_MISSING_INPUT',
        'line 2: step: expected in every row or in none',
        'line 1 has none',
      ));
    it('an empty file', () => refuses('\n \n', 'ERR_INVALID_INPUT', 'the file is empty'));
    it('an empty file after a good one', () =>
      assert.rejects(readRollouts([fileOf('good.jsonl', good), fileOf('empty.jsonl', '')]), {
        code: 'ERR_INVALID_INPUT',
        message: /empty\.jsonl: .* the file is empty/,
      }));
    it('a file that is not there', () =>
      assert.rejects(readRollouts([join(directory, 'nowhere.jsonl')]), {
        code: 'ERR_INVALID_INPUT',
        message: /nowhere\.jsonl: .*cannot be read: ENOENT/,
      }));
    it('a directory', () =>
      assert.rejects(readRollouts([directory]), {
        code: 'ERR_INVALID_INPUT',
        message: /cannot be read: EISDIR/,
      }));
  });
});

interface AdvantageCase {
  id: string;
  fn: string;
  args: Record<string, unknown>;
  inputs: Record<'rewards' | 'group_ids' | 'action_mask', Tensor>;
  expected: { advantages: Tensor };
}

describe('group advantages', () => {
  const cases: AdvantageCase[] = JSON.parse(
    readFileSync(new URL('./golden/advantage.json', import.meta.url), 'utf8'),
  );
  const plain = cases.filter(
    ({ fn, args }) =>
      fn === 'grpo' &&
      args.std_threshold === null &&
      !args.duplicate_experiences &&
      args.rank_penalty === null &&
      args.std_cal_level === 'group',
  );
  it('are held against golden cases', () => assert.ok(plain.length >= 2));
  for (const { id, args, inputs, expected } of plain) {
    it(id, () => {
      const advantages = groupAdvantages(inputs.rewards.data, inputs.group_ids.data, {
        epsilon: args.epsilon as number,
      });
      const [rows, columns] = inputs.action_mask.shape as [number, number];
      assert.equal(advantages.length, rows);
      // The source computed them in float32.
      expected.advantages.data.forEach((want, i) => {
        const got = inputs.action_mask.data[i] ? advantages[Math.floor(i / columns)]! : 0;
        assert.ok(Math.abs(got - want) <= 2e-4 * Math.max(1, Math.abs(want)), `${got}, not ${want}, at ${i}`);
      });
    });
  }
  it('of a group of one are its reward', () => {
    assert.deepEqual([...groupAdvantages([3, 1], ['a', 'b'], { epsilon: 0 })], [3, 1]);
  });
  it('of equal rewards are 0', () => {
    for (const x of groupAdvantages([0.1, 0.1, 0.1], [5, 5, 5])) assert.ok(Math.abs(x) < 1e-9);
  });
  it('need as many ids as rewards', () => {
    assert.throws(() => groupAdvantages([1, 2], [1]), { code: 'ERR_SHAPE_MISMATCH' });
  });
});
