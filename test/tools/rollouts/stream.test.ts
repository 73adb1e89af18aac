/**
 * Tests how rollouts are streamed: parts of bounded size, skipped rows, renamed columns, CSV, and patterns of file
 * names.
 */
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { LossError } from '../../../lib/index.js';
import {
  expandFiles,
  type RolloutPart,
  readRollouts,
  type StreamOptions,
  streamRollouts,
} from '../../../lib/tools/rollouts/index.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

describe('streaming rollouts', () => {
  const folder = temporaryFolder();

  function fileOf(rows: readonly (object | string)[], name = 'rows.jsonl'): string {
    const file = folder.path(name);
    writeFileSync(file, rows.map((row) => (typeof row === 'string' ? row : JSON.stringify(row))).join('\n'));
    return file;
  }

  async function partsOf(file: string | string[], options: StreamOptions): Promise<RolloutPart[]> {
    const parts: RolloutPart[] = [];
    for await (const part of streamRollouts([file].flat(), options)) parts.push(part);
    return parts;
  }

  /** Returns one row for each of these lengths. Different rows have different values. */
  const rowsOf = (lengths: readonly number[]) =>
    lengths.map((length, i) => ({
      logprobs: Array.from({ length }, (_, t) => -(i + 1) - t / 64),
      action_mask: Array.from({ length }, (_, t) => t % 2),
      advantages: i,
      reward: i / 2,
      task_id: `group ${i % 3}`,
      expert: i % 2 === 0,
    }));

  it('fills parts up to the token limit, and loses no row', () =>
    fc.assert(
      fc.asyncProperty(
        fc.array(fc.nat(9), { minLength: 1, maxLength: 30 }),
        fc.integer({ min: 1, max: 40 }),
        fc.boolean(),
        async (lengths, maxTokens, pairs) => {
          const file = fileOf(rowsOf(lengths));
          const parts = await partsOf(file, { maxTokens, pairs });
          const cost = ({ batch }: RolloutPart, from = 0, to = batch.cuSeqlens.length - 1) => {
            let sum = 0;
            for (let row = from; row < to; row++)
              sum += Math.max(1, batch.cuSeqlens[row + 1]! - batch.cuSeqlens[row]!);
            return sum;
          };
          const unit = pairs ? 2 : 1;
          parts.forEach((part, i) => {
            assert.ok(part.rows === unit || part.rows === 1 || cost(part) <= maxTokens);
            if (i === parts.length - 1) return;
            assert.equal(part.rows % unit, 0);
            const next = parts[i + 1]!;
            assert.ok(cost(part) + cost(next, 0, Math.min(unit, next.rows)) > maxTokens);
          });

          const whole = await readRollouts([file]);
          const joined = (key: string) => parts.flatMap(({ batch }) => Array.from(batch[key] as number[]));
          for (const [key, values] of Object.entries(whole.batch))
            if (key !== 'cuSeqlens') assert.deepEqual(joined(key), Array.from(values as number[]), key);
          const lengthsOf = ({ batch }: RolloutPart) =>
            Array.from(batch.cuSeqlens.slice(1), (end, row) => end - batch.cuSeqlens[row]!);
          assert.deepEqual(parts.flatMap(lengthsOf), lengths);
          assert.deepEqual(
            parts.map(({ first }) => first),
            parts.map((_, i) => parts.slice(0, i).reduce((sum, { rows }) => sum + rows, 0)),
          );
          assert.equal(
            parts.reduce((sum, { tokens }) => sum + tokens, 0),
            whole.tokens,
          );
        },
      ),
      { numRuns: 200 },
    ));

  it('yields one empty part without files', async () => {
    const [part, ...others] = await partsOf([], {});
    assert.deepEqual({ rows: part!.rows, others }, { rows: 0, others: [] });
  });

  it('counts values of passed-through columns towards the token limit', async () => {
    const rows = rowsOf([1, 1, 1, 1]).map((row) => ({ ...row, text: 'x'.repeat(160) }));
    const rowsPerPart = async (keep: string[]) =>
      (await partsOf(fileOf(rows), { keep, maxTokens: 22 })).map((part) => part.rows);
    assert.deepEqual(await rowsPerPart([]), [4]);
    assert.deepEqual(await rowsPerPart(['text']), [2, 2]);
  });

  describe('with bad rows', () => {
    const good = rowsOf([2, 2, 2, 2, 2, 2]);
    const skipBad = async (rows: (object | string)[], options: StreamOptions = {}) => {
      const errors: string[] = [];
      const parts = await partsOf(fileOf(rows), {
        skipBadRows: true,
        onBadRow: ({ message }) => errors.push(message),
        ...options,
      });
      return { parts, errors, rows: parts.flatMap(({ batch }) => Array.from(batch.rewards as Float64Array)) };
    };

    it('traces only the first errors, because tracing takes longer than reading the rows', async () => {
      for (const pairs of [false, true]) {
        const isTraced: boolean[] = [];
        await skipBad([...Array(300).fill('{'), ...good], {
          pairs,
          onBadRow: ({ stack }) => isTraced.push(stack!.includes('\n    at ')),
        });
        assert.ok(isTraced[0], 'the first error');
        // The readers are some rows ahead.
        assert.ok(!isTraced.slice(150).includes(true), `pairs: ${pairs}`);
      }
    });

    it('counts skipped rows towards maxRows', async () => {
      const { rows } = await skipBad(['{}', good[0]!, '{}', good[1]!], { maxRows: 4 });
      assert.equal(rows.length, 2);
      await assert.rejects(
        skipBad(['{}', good[0]!, '{}', good[1]!], { maxRows: 3 }),
        /line 4: expected at most 3 rows, got more/,
      );
    });

    it('yields the other rows and reports the reasons', async () => {
      const { rows, errors, parts } = await skipBad([
        '{"logprobs":[',
        good[0]!,
        { ...good[1], reward: 'x' },
        good[2]!,
        { ...good[3], expert: 2, task_id: 'a new group' },
        { ...good[4], action_mask: [1] },
        { ...good[5], task_id: undefined },
        good[5]!,
      ]);
      assert.deepEqual(rows, [0, 1, 2.5]);
      const expected = [
        /line 1: expected a JSON object/,
        /line 3: reward: expected one number, got 'x'/,
        /line 5: expert: expected true, false, 0 or 1/,
        /line 6: action_mask: expected a list of 2/,
        /line 7: task_id: expected a number or a string in every row or in none, got none here, but one in .* line 2/,
      ];
      assert.equal(errors.length, expected.length);
      expected.forEach((pattern, i) => {
        assert.match(errors[i]!, pattern);
      });
      // The group id 'a new group' occurs only in a bad row, so no group gets a number for it.
      assert.deepEqual(parts[0]!.batch.groupIds, Int32Array.of(0, 1, 1));
      assert.deepEqual(parts[0]!.batch, (await readRollouts([fileOf([good[0]!, good[2]!, good[5]!])])).batch);
    });

    it('skips both rows of a pair', async () => {
      const { rows, errors } = await skipBad([good[0]!, good[1]!, good[2]!, '{}', good[4]!, good[5]!], {
        pairs: true,
        maxTokens: 3,
      });
      assert.deepEqual(rows, [0, 0.5, 2, 2.5]);
      assert.match(errors[0]!, /line 4: logprobs/);
      assert.match(
        errors[1]!,
        /line 3: expected a good row as the other half of its pair, got a bad one \(.*, line 4\)/,
      );
    });

    it('does not take the set of columns from a bad row', async () => {
      const { rows } = await skipBad([{ logprobs: [1], values: [2], reward: 'x' }, good[0]!]);
      assert.deepEqual(rows, [0]);
      const pair = await skipBad([{ logprobs: [1], values: [2] }, '{', good[0]!, good[1]!], {
        pairs: true,
      });
      assert.deepEqual(pair.rows, [0, 0.5]);
    });

    it('throws if every row is bad', () =>
      assert.rejects(skipBad(['{', '[]']), {
        code: 'ERR_INVALID_INPUT',
        message: /expected at least one good row, got 2 bad ones, the first for this reason: .*line 1/,
      }));

    it('throws for an unreadable file', () =>
      assert.rejects(
        partsOf([fileOf(good), folder.path('nowhere.jsonl')], { skipBadRows: true }),
        /no such file/,
      ));
  });

  describe('with other column names', () => {
    const rows = [
      {
        log_prob: [-1, -2],
        old_log_probs: [-3, -4],
        rollout_log_probs: [-5, -6],
        response_mask: [1, 0],
        score: 2,
        reward: 9,
      },
    ];
    const keysOf = async (options: StreamOptions) => (await partsOf(fileOf(rows), options))[0]!.batch;

    it('finds the names of a backend', async () => {
      const { logprob, oldLogprob, rolloutLogprob, actionMask } = await keysOf({ backend: 'verl' });
      assert.deepEqual(
        { logprob, oldLogprob, rolloutLogprob, actionMask },
        {
          logprob: Float32Array.of(-1, -2),
          oldLogprob: Float32Array.of(-3, -4),
          rolloutLogprob: Float32Array.of(-5, -6),
          actionMask: Uint8Array.of(1, 0),
        },
      );
    });

    it('finds renamed columns, given by column or by batch key', async () => {
      for (const rename of [
        { logprobs: 'log_prob', reward: 'score' },
        { logprob: 'log_prob', rewards: 'score' },
      ])
        assert.deepEqual((await keysOf({ rename })).rewards, Float64Array.of(2));
      const { oldLogprob } = await keysOf({ rename: { old_logprob: 'old_log_probs' }, backend: 'verl' });
      assert.deepEqual(oldLogprob, Float32Array.of(-3, -4));
    });

    it("uses the files' names in errors", async () => {
      await assert.rejects(keysOf({ rename: { logprobs: 'log_probs' } }), {
        code: 'ERR_MISSING_INPUT',
        message: /line 1: log_probs: expected a list of numbers.*only log_prob, old_log_probs/,
      });
      await assert.rejects(keysOf({ rename: { reward: 'gain' }, backend: 'verl' }), {
        code: 'ERR_MISSING_INPUT',
        message: /line 1: gain: expected a number, got a row with only/,
      });
      await assert.rejects(
        keysOf({ rename: { action_mask: 'mask' }, backend: 'verl' }),
        /line 1: mask: expected a list of 0 and 1/,
      );
    });

    it('rejects unknown columns and backends', async () => {
      await assert.rejects(keysOf({ rename: { logprbs: 'x' } }), {
        code: 'ERR_INVALID_OPTION',
        message: /^Did you mean 'logprobs'\? unknown column: got 'logprbs'$/,
      });
      await assert.rejects(
        keysOf({ rename: { logprobs: 'a', logprob: 'b' } }),
        /column logprobs: expected one name, got a and b/,
      );
      await assert.rejects(keysOf({ backend: 'verll' }), { code: 'ERR_UNKNOWN_NAME' });
    });
  });

  describe('CSV', () => {
    const csv = (text: string, options: StreamOptions = {}) => {
      const file = folder.path('rows.csv');
      writeFileSync(file, text);
      return partsOf(file, options);
    };
    const rejects = (text: string, ...patterns: RegExp[]) =>
      assert.rejects(csv(text), (error: unknown) => {
        assert.ok(error instanceof LossError);
        for (const pattern of patterns) assert.match(error.message, pattern);
        return true;
      });

    it('accepts CRLF, a byte order mark, blank lines, and numbers and ids in cells', async () => {
      const [part] = await csv(
        '\uFEFFtask_id,logprobs,advantages,expert\r\n007,"[-1, -2]",3,True\r\n\r\n7,[-3],"[4]",0\r\n',
      );
      assert.deepEqual(part!.batch, {
        cuSeqlens: Int32Array.of(0, 2, 3),
        logprob: Float32Array.of(-1, -2, -3),
        actionMask: Uint8Array.of(1, 1, 1),
        advantages: Float32Array.of(3, 3, 4),
        groupIds: Int32Array.of(0, 1),
        expertMask: Uint8Array.of(1, 0),
      });
    });

    it('reports errors with their lines', async () => {
      await rejects(
        'logprobs,reward\n"[-1]",1\n[-1,-2],3\n',
        /rows\.csv, line 3: expected 2 cells/,
        /Put quotes around a cell that contains a comma/,
      );
      await rejects('logprobs,reward\n"[-1]"\n', /line 2: expected 2 cells, as in the header, got 1/);
      await rejects(
        'text,logprobs\n"a\nb","[-1]"\n"a"b,"[1]"\n',
        /line 4: expected a quote inside a cell to be written twice/,
      );
      await rejects('logprobs,reward\n"[-1]",much\n', /line 2: reward: expected a number or a list/);
      await rejects('logprobs,reward\n"[-1, none]",2\n', /line 2: logprobs: expected a number or a list/);
      await rejects(
        'logprob,reward\n"[1]",2\n',
        /line 2: logprobs: expected.*only logprob, reward\. Did you mean logprob/,
      );
      await rejects(
        'logprobs,reward,reward\n',
        /line 1: expected a header that names each column once, got reward twice/,
      );
      await rejects('logprobs,reward\n', /got an empty file/);
      await rejects(
        'logprobs,reward\n"[-1]",1\n"[-2],2\n[-3]",3\n',
        /line 3: logprobs: expected a number or a list.*text that does not parse/s,
      );
      await rejects('logprobs,reward\n"[-1]",1\n"[-2],2\n', /line 3: expected a closing quote/);
    });

    it('skips bad rows', async () => {
      const lines: (number | undefined)[] = [];
      const [part] = await csv('logprobs,text\n"[-1]",a\n"[-2]"\n"[-3]",b,c\n"[x]",d\n"[-5]","e\nf"\n', {
        skipBadRows: true,
        onBadRow: (_error, { line }) => lines.push(line),
      });
      assert.deepEqual(part!.batch.logprob, Float32Array.of(-1, -5));
      assert.deepEqual(lines, [3, 4, 5]);
    });
  });

  describe('patterns of file names', () => {
    before(() => {
      mkdirSync(join(folder.directory, 'runs', 'b'), { recursive: true });
      for (const name of [
        'part-2.jsonl',
        'part-1.jsonl',
        'part-10.jsonl',
        'b/part-1.jsonl',
        '[x].jsonl',
        'log.db',
      ])
        writeFileSync(join(folder.directory, 'runs', name), '');
    });
    const expand = async (...patterns: string[]) =>
      (await expandFiles(patterns.map((pattern) => join(folder.directory, 'runs', pattern)))).map((file) =>
        file.slice(folder.path('runs').length + 1),
      );

    it('sort the files and skip those already listed', async () => {
      assert.deepEqual(await expand('part-2.jsonl', 'part-*.jsonl'), [
        'part-2.jsonl',
        'part-1.jsonl',
        'part-10.jsonl',
      ]);
      assert.deepEqual(await expand('**/part-1.jsonl'), ['b/part-1.jsonl', 'part-1.jsonl']);
      assert.deepEqual(await expand('part-{2,1}.jsonl'), ['part-1.jsonl', 'part-2.jsonl']);
    });

    it('may be the names of files, and may name tables', async () => {
      assert.deepEqual(await expand('[x].jsonl'), ['[x].jsonl']);
      assert.deepEqual(await expand('*.db#rollouts', 'nowhere.jsonl'), ['log.db#rollouts', 'nowhere.jsonl']);
    });

    it('must match a file', () =>
      assert.rejects(expand('part-*.parquet'), {
        code: 'ERR_INVALID_INPUT',
        message: /part-\*\.parquet: expected at least one matching file, got none/,
      }));
  });

  it('chooses the format by the ending of the name', async () => {
    await assert.rejects(partsOf(fileOf([], 'rows.xlsx'), {}), {
      code: 'ERR_INVALID_INPUT',
      message: /rows\.xlsx: expected a name that ends in one of \.jsonl, .*\.parquet.*\.npz/,
    });
    const [part] = await partsOf(fileOf(rowsOf([1]), 'no ending'), {});
    assert.equal(part!.rows, 1);
  });

  it('hints how to convert a JSON array to lines', async () => {
    for (const text of ['[{"logprobs": [-1]}]', '[\n {"logprobs": [-1]}\n]'])
      await assert.rejects(partsOf(fileOf([text], 'array.json'), {}), /line 1: .*jq -c '\.\[\]'/s);
  });

  it('can be stopped early', async () => {
    for await (const part of streamRollouts([fileOf(rowsOf(new Array(1000).fill(5)))], { maxTokens: 20 })) {
      assert.equal(part.rows, 4);
      break;
    }
  });
});
