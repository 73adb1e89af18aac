/** Tests that a file with as many rows as are allowed, each in a group of its own, takes less than 1 GB of memory. */
import assert from 'node:assert/strict';
import { closeSync, openSync, writeSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { MAX_ROWS } from '../../lib/tools/rollouts/index.js';
import { runAlone } from '../support/alone.js';
import { temporaryFolder } from '../support/temporary-folder.js';

const PARTS = new URL('../../lib/tools/parts/index.ts', import.meta.url).href;
const ROWS_AT_ONCE = 2 ** 16;

describe('a file with many rows', () => {
  const folder = temporaryFolder();

  function fileOf(name: string, rows: number): string {
    const file = folder.path(name);
    const handle = openSync(file, 'w');
    for (let first = 0; first < rows; first += ROWS_AT_ONCE) {
      const lines = Array.from(
        { length: Math.min(ROWS_AT_ONCE, rows - first) },
        (_, i) => `{"logprobs":[-1],"old_logprobs":[-1],"reward":${i % 7},"task_id":"group ${first + i}"}\n`,
      );
      writeSync(handle, gzipSync(lines.join(''), { level: 1 }));
    }
    closeSync(handle);
    return file;
  }

  /** Evaluates a file in a process of its own. The result is the error, or the number of rows. */
  const evaluate = (file: string) =>
    runAlone<string | number>(
      `const { evaluateFiles, lossSubject } = await import(given[0]);
      const progress = { begin() {}, advance() {} };
      const settings = { read: {}, batchTokens: 2 ** 19, progress };
      return evaluateFiles([given[1]], [lossSubject('ppo')], settings).then(
        ({ rows }) => rows,
        ({ message }) => message,
      );`,
      [PARTS, file],
      { timeout: 300_000 },
    );

  it('is computed within 1 GB if it has at most maxRows, and refused otherwise', () => {
    const most = evaluate(fileOf('most.jsonl.gz', MAX_ROWS));
    assert.equal(most.result, MAX_ROWS);
    assert.ok(most.memory < 2 ** 30, `${most.memory} bytes`);
    const more = evaluate(fileOf('more.jsonl.gz', MAX_ROWS + 1));
    assert.match(String(more.result), /line 1048577: expected at most 1048576 rows, got more/);
    assert.ok(more.memory < 2 ** 30, `${more.memory} bytes`);
  });
});
