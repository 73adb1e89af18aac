/** Tests that no text file can exhaust the memory or the time: rows and files have limits, which options can raise. */
import assert from 'node:assert/strict';
import { gzipSync } from 'node:zlib';
import { readRollouts, type StreamOptions, streamRollouts } from '../../lib/tools/rollouts/index.js';
import { runAlone } from '../support/alone.js';
import { temporaryFolder } from '../support/temporary-folder.js';

const LIBRARY = new URL('../../lib/tools/rollouts/index.ts', import.meta.url).href;
const MEGABYTE = 2 ** 20;
const GIGABYTE = 2 ** 30;

describe('limits on text', () => {
  const folder = temporaryFolder();

  /** Returns a small gzip file that unpacks to `head`, about so many megabytes of repeated `unit`, and `tail`. */
  function bomb(name: string, head: string, unit: string, megabytes: number, tail: string): string {
    const middle = gzipSync(unit.repeat(MEGABYTE / Buffer.byteLength(unit)));
    return folder.write(
      name,
      Buffer.concat([gzipSync(head), ...new Array<Buffer>(megabytes).fill(middle), gzipSync(tail)]),
    );
  }

  const refused: Readonly<Record<string, [make: () => string, message: RegExp]>> = {
    'a list of 60 million zeros': [
      () => bomb('zeros.jsonl.gz', '{"logprobs":[', '0,', 120, '0]}'),
      /line 1: logprobs: expected at most 1048576 tokens in a row, got \d{8}\. If the row is correct, raise maxRowTokens$/,
    ],
    'a list of 250 million zeros': [
      () => bomb('longer.jsonl.gz', '{"logprobs":[', '0,', 500, '0]}'),
      /line 1: expected a row of at most 134217728 bytes, got more\. If the row is correct, raise maxRowTokens$/,
    ],
    '160 million empty objects': [
      () => bomb('objects.jsonl.gz', '{"x":[', '{},', 480, '{}],"logprobs":[-1]}'),
      /line 1: expected a row of at most 134217728 bytes/,
    ],
    'lists in lists': [
      () => bomb('nested.jsonl.gz', '{"logprobs":', '[', 100, ''),
      /line 1: .*more than 1000 levels of nesting/,
    ],
    'objects in the column of ids': [
      () => bomb('ids.jsonl.gz', '{"logprobs":[-1],"task_id":[', '{},', 100, '{}]}'),
      /line 1: task_id: expected at most 1048576 tokens in a row/,
    ],
    'a long id': [
      () => bomb('id.jsonl.gz', '{"logprobs":[-1],"task_id":"', '→ab', 100, '"}'),
      /line 1: task_id: expected at most 65536 characters/,
    ],
    'a long text to keep': [
      () => bomb('text.jsonl.gz', '{"logprobs":[-1],"response":"', '→ab', 100, '"}'),
      /line 1: response: expected at most 1048576 elements, or 16777216 characters, got more/,
    ],
    'many keys': [
      () => bomb('keys.jsonl.gz', '{', '"a":1,', 100, '"logprobs":[-1]}'),
      /line 1: .*more than 10000 keys/,
    ],
    'spaces without an end': [
      () => bomb('spaces.jsonl.gz', '', ' ', 500, ''),
      /line 1: expected a row of at most 134217728 bytes/,
    ],
    'a CSV cell with 60 million zeros': [
      () => bomb('zeros.csv.gz', 'logprobs\n"[', '0,', 120, '0]"'),
      /line 2: logprobs: expected at most 1048576 tokens in a row, got \d{8}/,
    ],
    '100 million CSV cells': [
      () => bomb('cells.csv.gz', 'logprobs,x\n', ',', 100, '\n'),
      /line 2: expected 2 cells, as in the header, got \d{9}/,
    ],
    'a CSV header of 25 million columns': [
      () => bomb('header.csv.gz', 'logprobs', ',abc', 100, '\n'),
      /line 1: expected a header that names each column once, got abc twice/,
    ],
    'a CSV quote without an end': [
      () => bomb('quote.csv.gz', 'logprobs\n"', 'a\n', 300, ''),
      /line 2: expected a row of at most 134217728 bytes/,
    ],
  };

  const accepted: Readonly<Record<string, () => string>> = {
    '40 million empty objects that nobody reads': () =>
      bomb('unread.jsonl.gz', '{"x":[', '{},', 120, '{}],"logprobs":[-1]}'),
    'a text of 100 MB that nobody reads': () =>
      bomb('prompt.jsonl.gz', '{"prompt":"', '\\n→a', 100, '","logprobs":[-1]}'),
    'a CSV cell of 100 MB that nobody reads': () =>
      bomb('prompt.csv.gz', 'prompt,logprobs\n"', 'a""\n', 100, '",[-1]\n'),
    'rows of 100 MB': () => {
      const row = [gzipSync('{"x":"'), ...new Array(100).fill(gzipSync('a'.repeat(MEGABYTE)))];
      const rows = [...row, gzipSync('","logprobs":[-1]}\n')];
      return folder.write('rows.jsonl.gz', Buffer.concat([...rows, ...rows, ...rows, ...rows]));
    },
    'as many tokens as a row may have': () => {
      const list = `[${'-0.1234567890123456,'.repeat(MEGABYTE - 1)}-1]`;
      const columns = ['logprobs', 'old_logprobs', 'ref_logprobs', 'entropy', 'values'];
      return folder.write('longest.jsonl', `{${columns.map((name) => `"${name}":${list}`).join()}}\n`);
    },
  };

  /** Reads a file in a process of its own. The result is the error, or the number of rows. */
  const readAlone = (file: string) =>
    runAlone<string | number>(
      `const { streamRollouts } = await import(given[0]);
      let result = 0;
      try {
        const options = { keep: ['response'], maxTokens: 2 ** 19 };
        for await (const { rows } of streamRollouts([given[1]], options)) result += rows;
      } catch (error) {
        if (error.name !== 'LossError') throw error;
        result = error.message;
      }
      return result;`,
      [LIBRARY, file],
      { timeout: 50_000 },
    );

  for (const [what, [make, message]] of Object.entries(refused))
    it(`refuse ${what} within 1 GB`, () => {
      const { result, memory } = readAlone(make());
      assert.match(String(result), message);
      assert.ok(memory < GIGABYTE, `${memory} bytes`);
    });

  for (const [what, make] of Object.entries(accepted))
    it(`allow ${what} within 1 GB`, () => {
      const { result, memory } = readAlone(make());
      assert.ok(typeof result === 'number' && result > 0, String(result));
      assert.ok(memory < GIGABYTE, `${memory} bytes`);
    });

  for (const [name, blank, rows, bad] of [
    ['blank.jsonl.gz', '\n', '{"logprobs":[-1]}', /line 1048577: logprobs/],
    ['blank.csv.gz', ' \r\n', 'logprobs\n[-1]', /line 349527: logprobs/],
  ] as const)
    it(`skip blank lines quickly: ${name}`, async () => {
      const file = bomb(name, '', blank, 64, rows);
      const before = process.cpuUsage().user;
      assert.equal((await readRollouts([file])).rows, 1);
      assert.ok(process.cpuUsage().user - before < 10e6);
      await assert.rejects(readRollouts([bomb(name, '', blank, 1, rows.replace('-1', 'x'))]), bad);
    });

  const partsOf = async (file: string, options: StreamOptions) => {
    const parts = [];
    for await (const part of streamRollouts([file], options)) parts.push(part);
    return parts;
  };

  it('are options', async () => {
    const row = (tokens: number) => `[${new Array(tokens).fill(-1).join()}]`;
    const lines = [3, 4, 3].map((tokens) => `{"x":${row(9)},"logprobs":${row(tokens)}}\n`);
    const cells = [3, 4, 3].map((tokens) => `"${row(9)}","${row(tokens)}"\n`);
    for (const file of [
      folder.write('rows.jsonl', lines.join('')),
      folder.write('rows.csv', `x,logprobs\n${cells.join('')}`),
    ]) {
      assert.equal((await readRollouts([file], { maxRowTokens: 4 })).rows, 3);
      await assert.rejects(readRollouts([file], { maxRowTokens: 3 }), {
        code: 'ERR_INVALID_INPUT',
        message:
          /: logprobs: expected at most 3 tokens in a row, got 4\. If the row is correct, raise maxRowTokens$/,
      });
      assert.equal((await readRollouts([file], { maxRowTokens: 3, skipBadRows: true })).rows, 2);
      assert.equal((await readRollouts([file], { maxRows: 3 })).rows, 3);
      await assert.rejects(readRollouts([file], { maxRows: 2, skipBadRows: true }), {
        code: 'ERR_OUT_OF_MEMORY',
        message: /: expected at most 2 rows, got more\. If memory suffices, raise maxRows$/,
      });
    }
    for (const option of ['maxRowTokens', 'maxRows'])
      for (const value of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, '5', null])
        await assert.rejects(readRollouts([], { [option]: value }), { code: 'ERR_INVALID_OPTION', option });
  });

  it('let skipBadRows continue after a row that is too long', async () => {
    const file = bomb('skip.jsonl.gz', '{"logprobs":[-1]}\n{"x":[', '{},', 200, '{}]}\n{"logprobs":[-2]}\n');
    const lines: unknown[] = [];
    const [part] = await partsOf(file, { skipBadRows: true, onBadRow: (_, { line }) => lines.push(line) });
    assert.deepEqual(part!.batch.logprob, Float32Array.of(-1, -2));
    assert.deepEqual(lines, [2]);
  });

  it('count what is kept', async () => {
    const read = (value: unknown) =>
      partsOf(folder.write('kept.jsonl', `${JSON.stringify({ logprobs: [-1], kept: value })}\n`), {
        keep: ['kept'],
        maxRowTokens: 4,
      });
    for (const value of ['x'.repeat(64), [1, 2, 3, 4], { a: [1, 2] }]) await read(value);
    for (const value of ['x'.repeat(65), [1, 2, 3, 4, 5], { a: [1, 2, 3, 4] }, [['x'.repeat(64)]]])
      await assert.rejects(
        read(value),
        /kept: expected at most 4 (elements, or 64 characters|tokens in a row)/,
      );
  });
});
