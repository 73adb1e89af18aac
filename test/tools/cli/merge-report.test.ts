/** Tests `policy-loss merge --report`: its page is the one of `evaluate --report`, with the doctor's findings. */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  noStatistics,
  StatisticsCollector,
  statisticsFrom,
  statisticsToJson,
} from '../../../lib/tools/cli/report/index.js';
import { sha256Of } from '../../../lib/tools/parts/digest.js';
import { Fields } from '../../../lib/tools/parts/fields.js';
import { countRefused } from '../../support/replaced-values.js';
import { computed, exampleParts } from '../report/support.js';
import { EXAMPLE, Files, fails, ROWS, run, runJson } from './support.js';

describe('policy-loss merge --report', () => {
  let files: Files;
  beforeEach(() => {
    files = new Files();
  });
  afterEach(() => files.remove());

  /** Plans for a report, and runs the shards in reverse order. Returns the plan and the folder of the parts. */
  async function runShards(words: readonly string[], size: string): Promise<{ plan: string; parts: string }> {
    const folder = mkdtempSync(files.path('run-'));
    const [plan, parts] = [join(folder, 'plan.json'), join(folder, 'parts')];
    const planned = await runJson('plan', ...words, '--for-report', '--shard-size', size, '--out', plan);
    const shards: string[] = Array.from({ length: planned.shards }, (_, i) => String(i)).reverse();
    for (const phase of planned.phases)
      for (const shard of shards)
        await runJson('run', plan, '--phase', phase, '--shard', shard, '--out', parts);
    return { plan, parts };
  }

  const odd = () =>
    files.write(
      'odd.jsonl',
      ROWS.map((row, i) => ({
        ...row,
        // Equal extremes in several shards, masked tokens, a ratio that is not finite, and texts of each token.
        logprobs: i % 9 === 4 ? row.logprobs.map(() => -1) : row.logprobs,
        old_logprobs: i % 9 === 4 ? row.old_logprobs.map(() => -2) : row.old_logprobs,
        action_mask: row.logprobs.map((_, t) => (t % 7 === 3 ? 0 : 1)),
        ...(i % 2 === 0 && { tokens: row.logprobs.map((_, t) => `t${t}`) }),
        prompt: [{ role: 'user', content: `question ${i}` }],
      })),
    );

  for (const [what, words] of Object.entries({
    'a loss': (file: string) => [file, '--loss', 'ppo', '--clip-range', '0.3'],
    'several losses': (file: string) => [file, '--loss', 'ppo', '--loss', 'gspo', '--algorithm', 'grpo'],
    'an algorithm': (file: string) => [file, '--algorithm', 'grpo', '--kl-coef', '0.01'],
  }))
    for (const [size, name] of [
      ['50K', 'shards'],
      ['1G', 'one shard'],
    ] as const)
      it(`writes the page of evaluate: ${what}, ${name}`, async () => {
        for (const input of [EXAMPLE, odd()]) {
          const { plan, parts } = await runShards(words(input), size);
          const [merged, evaluated] = [files.path('merged.html'), files.path('evaluated.html')];
          const printed = await runJson('merge', plan, parts, '--report', merged);
          assert.ok(size === '1G' || printed.batches > 5);
          const command = what === 'several losses' ? 'compare' : 'evaluate';
          await runJson(command, ...words(input), '--report', evaluated, '--batch-tokens', '20000');
          const page = readFileSync(merged, 'utf8');
          if (input !== EXAMPLE) assert.match(page, /<article class="finding" id="finding-mask-holes"/);
          assert.ok(page === readFileSync(evaluated, 'utf8'), 'the pages differ');
        }
      });

  for (const name of ['dpo', 'trl/value', 'openrlhf/reward'])
    it(`writes the page of evaluate: ${name}`, async () => {
      const rows = ROWS.slice(0, 40).map(({ old_logprobs, ...row }, i) => ({
        ...row,
        values: row.logprobs,
        old_values: old_logprobs,
        returns: row.ref_logprobs,
        action_mask: row.logprobs.map((_, t) => Number((i + t) % 6 > 0)),
      }));
      const words = [files.write('families.jsonl', rows), '--loss', name];
      const { plan, parts } = await runShards(words, '10K');
      const [merged, evaluated] = [files.path('merged.html'), files.path('evaluated.html')];
      assert.ok((await runJson('merge', plan, parts, '--report', merged)).batches > 3);
      await runJson('evaluate', ...words, '--report', evaluated, '--batch-tokens', '100');
      const page = readFileSync(merged, 'utf8');
      assert.match(page, name === 'trl/value' ? />Value error</ : />Reward margin</);
      assert.ok(page === readFileSync(evaluated, 'utf8'), 'the pages differ');
    });

  it('refuses a plan that is not for a report, a part without it, and its own input as the output', async () => {
    const words = [EXAMPLE, '--loss', 'ppo'];
    const { plan, parts } = await runShards(words, '200K');
    await fails(2, ['merge', plan, parts, '--report', plan], /--report .*: expected a file other than/);
    const missing = join(files.directory, 'none', 'page.html');
    await fails(2, ['merge', plan, parts, '--report', missing], /expected a file that can be written/);
    const plain = files.path('plain.json');
    await runJson('plan', ...words, '--out', plain);
    await fails(
      2,
      ['merge', plain, parts, '--report', files.path('page.html')],
      /--report: expected a plan that was made with --for-report/,
    );
    // Parts that somebody has written without the data.
    const name = join(parts, 'compute-00001.part');
    const [head, body] = readFileSync(name, 'utf8').split('\n') as [string, string];
    const { collected, ...rest } = JSON.parse(body);
    const { doctor: _, ...statistics } = collected;
    for (const [data, says] of [
      [rest, /compute-00001\.part: collected: expected an object, got nothing/],
      [
        { ...rest, collected: statistics },
        /compute-00001\.part: collected\.doctor: expected an object, got nothing/,
      ],
    ] as const) {
      const text = JSON.stringify(data);
      const header = { ...JSON.parse(head), sha256: sha256Of(text) };
      writeFileSync(name, `${JSON.stringify(header)}\n${text}\n`);
      await fails(1, ['merge', plan, parts, '--report', files.path('page.html')], says);
    }
    assert.ok(!readdirSync(files.directory).includes('page.html'));
    assert.equal((await run('merge', plan, parts)).code, 0);
  });
});

describe("a report's statistics as JSON", () => {
  /** Returns the statistics of the examples. */
  async function statistics(): Promise<Record<string, unknown>> {
    const names = ['ppo', 'gspo'];
    const parts = await exampleParts();
    const collector = new StatisticsCollector(names.map(() => ({ variable: 'logprob' })));
    for (const part of parts) collector.add(part, computed(names, part));
    return JSON.parse(JSON.stringify(statisticsToJson(collector.statistics)));
  }

  it('are the same after a round trip', async () => {
    for (const json of [await statistics(), JSON.parse(JSON.stringify(statisticsToJson(noStatistics(2))))]) {
      const again = statisticsToJson(statisticsFrom(new Fields('a.part', json), 2));
      assert.deepEqual(JSON.parse(JSON.stringify(again)), json);
    }
  });

  it('are checked field by field', async () => {
    const json = await statistics();
    assert.throws(() => statisticsFrom(new Fields('a.part', json), 1), /those of 1 functions/);
    assert.ok(countRefused(json, () => statisticsFrom(new Fields('a.part', json), 2)) > 100);
  });
});
