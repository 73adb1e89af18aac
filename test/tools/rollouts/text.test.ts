/** Tests what the readers of text do with repeated keys, with columns that nobody reads, and with standard input. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import type { LossError } from '../../../lib/index.js';
import { type ReadOptions, readRollouts, streamRollouts } from '../../../lib/tools/rollouts/index.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const LIBRARY = new URL('../../../lib/tools/rollouts/index.js', import.meta.url).href;

describe('text formats', () => {
  const folder = temporaryFolder();

  describe('a key that occurs twice', () => {
    const repeated = '{"logprobs":[-1],"reward":1,"x":0,"reward":2}\n';

    async function read(files: string[], options: ReadOptions = {}) {
      const warnings: string[] = [];
      const onWarning = ({ message }: LossError) => warnings.push(message);
      const { batch } = await readRollouts(files, { onWarning, ...options });
      return { rewards: Array.from(batch.rewards as Float64Array), warnings };
    }

    it('gives the last value and one warning per file', async () => {
      const one = folder.write('one.jsonl', `{"logprobs":[-2],"reward":0}\n${repeated}${repeated}`);
      const two = folder.write('two.jsonl', repeated);
      assert.deepEqual(await read([one, two]), {
        rewards: [0, 2, 2, 2],
        warnings: [
          `${one}, line 2: reward: expected one value, got two. The last one counts`,
          `${two}, line 1: reward: expected one value, got two. The last one counts`,
        ],
      });
    });

    it('is an error with strict, which skipBadRows skips', async () => {
      const file = folder.write('strict.jsonl', `${repeated}{"logprobs":[-2],"reward":0}\n`);
      await assert.rejects(read([file], { strict: true }), {
        code: 'ERR_INVALID_INPUT',
        key: 'reward',
        message: `${file}, line 1: reward: expected one value, got two`,
      });
      assert.deepEqual(await read([file], { strict: true, skipBadRows: true }), {
        rewards: [0],
        warnings: [],
      });
    });

    it('is noticed in any notation, and in columns that are not read', async () => {
      const file = folder.write(
        'notation.jsonl',
        '{"logprobs":[-1],"reward":1,"\\u0072eward":2,"é":1,"\\u00e9":1}\n',
      );
      const { rewards, warnings } = await read([file]);
      assert.deepEqual({ rewards, count: warnings.length }, { rewards: [2], count: 1 });
      await assert.rejects(
        read([folder.write('unread.jsonl', '{"logprobs":[-1],"é":1,"\\u00e9":[]}\n')], { strict: true }),
        /: é: expected one value, got two/,
      );
    });

    it('causes a Node.js warning by default', async () => {
      const emitted = new Promise<Error>((resolve) => process.once('warning', resolve));
      await readRollouts([folder.write('node.jsonl', repeated)]);
      assert.match((await emitted).message, /line 1: reward: expected one value, got two/);
    });
  });

  describe('a column that is not read', () => {
    it('may have any values, as long as strings and brackets end', async () => {
      const values = ['NaN', '[-Infinity, nan]', '{"a":[{"b":"]}"}, "\\"["]}', '"\\\\"', 'nil', '[1,,2]'];
      const lines = values.map((value) => `{"x":${value},"logprobs":[-1],"y": ${value} }\n`);
      const { rows } = await readRollouts([folder.write('other.jsonl', lines.join(''))]);
      assert.equal(rows, values.length);
      for (const value of ['[1', '[1}', '"\\"', '{"a":1]'])
        await assert.rejects(
          readRollouts([folder.write('open.jsonl', `{"x":${value},"logprobs":[-1]}\n`)]),
          /line 1: expected a JSON object, got text that does not parse/,
        );
    });

    it('may be called like a property of every object', async () => {
      const keys = ['__proto__', 'constructor', 'hasOwnProperty', 'toString'];
      const pairs = keys.map((key) => `"${key}":{"logprobs":[7]}`);
      const lines = folder.write('proto.jsonl', `{${pairs.join()},"logprobs":[-1]}\n`);
      const table = folder.write('proto.csv', `${keys.join()},logprobs\n1,2,3,4,[-1]\n`);
      for (const file of [lines, table]) {
        const { batch } = await readRollouts([file], { onWarning: () => assert.fail() });
        assert.deepEqual(batch.logprob, Float32Array.of(-1));
      }
      const { batch } = await readRollouts([table], { rename: { reward: 'toString' } });
      assert.deepEqual(batch.rewards, Float64Array.of(4));
    });
  });

  it('are read from standard input, once', () => {
    const script = `import { readRollouts } from ${JSON.stringify(LIBRARY)};
      const { batch } = await readRollouts(['-']);
      console.log(batch.logprob.join());
      await readRollouts(['-']).catch(({ code, message }) => console.log(code, message));`;
    const run = (input: string) =>
      spawnSync(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', script], {
        input,
        encoding: 'utf8',
      });
    const lines = Array.from({ length: 20_000 }, (_, i) => `{"logprobs":[${-i}]}\n`).join('');
    const [numbers, second] = run(lines).stdout.trimEnd().split('\n');
    assert.equal(numbers, Array.from({ length: 20_000 }, (_, i) => -i).join());
    assert.equal(second, 'ERR_INVALID_INPUT standard input: expected one reading, got a second one');
    assert.match(
      run('\n{"logprobs":7}').stderr,
      /standard input, line 2: logprobs: expected a list of numbers/,
    );
  });

  it('keep nested values, which count towards a part', async () => {
    const message = { role: 'user', content: 'x'.repeat(160) };
    const file = folder.write(
      'nested.jsonl',
      `${JSON.stringify({ logprobs: [-1], messages: [message] })}\n`.repeat(4),
    );
    const parts = [];
    for await (const part of streamRollouts([file], { keep: ['messages'], maxTokens: 30 })) parts.push(part);
    assert.deepEqual(
      parts.map(({ rows }) => rows),
      [2, 2],
    );
    assert.deepEqual(parts[0]!.kept[0], { messages: [message] });
  });
});
