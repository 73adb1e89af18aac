/**
 * Tests that the files that trainers' own code wrote are read as what truth.json says: rows, unmasked tokens, and the
 * first values of the first row.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { toCamelCase } from '../../../lib/base/options.js';
import { POLICY_LOSS_FN } from '../../../lib/index.js';
import {
  expandFiles,
  readRollouts,
  type StreamOptions,
  streamRollouts,
} from '../../../lib/tools/rollouts/index.js';

const FOLDER = fileURLToPath(new URL('fixtures/dumps/', import.meta.url));
const path = (name: string) => join(FOLDER, name);

interface Truth {
  file: string;
  expected: { rows: number; tokens: number; columns: Record<string, number | string | number[]> };
  /** What the trainer logged, and the configuration that gives it. */
  logged?: { pg_loss: number };
  configuration?: {
    loss: string;
    options: Record<string, number>;
    loss_agg_mode: string;
    micro_batches?: number;
    logprobs_from?: string;
    old_logprobs_from?: string;
  };
}
const TRUTH: readonly Truth[] = JSON.parse(readFileSync(path('truth.json'), 'utf8'));
// These files have no log-probabilities, so the truth says nothing about them; a test below reads each of them.
const TEXT = [
  'trinity/explorer_output.jsonl',
  'trinity/experiences.trxp',
  'verl/rollouts/5.jsonl',
  'verl/metrics.jsonl',
  'verl/experiment_project_GBS4__N4',
];

const KEYS: Readonly<Record<string, string>> = {
  logprobs: 'logprob',
  old_logprobs: 'oldLogprob',
  ref_logprobs: 'refLogprob',
  rollout_logprobs: 'rolloutLogprob',
  teacher_logprobs: 'teacherLogprob',
  token_level_rewards: 'tokenLevelRewards',
  action_mask: 'actionMask',
  advantages: 'advantages',
  entropy: 'entropy',
  reward: 'rewards',
};

/** Reads all rows at once, with the ids of the first row as they are in the file. */
async function read(name: string, options: StreamOptions = {}) {
  const files = await expandFiles([path(name)]);
  const settings = {
    logprobs: 'optional',
    onWarning: () => {},
    keep: ['task_id', 'run_id'],
    ...options,
  } as const;
  for await (const part of streamRollouts(files, settings)) return part;
  throw new Error('no part');
}

describe("trainers' files", () => {
  it('are all in the truth, or have a test of their own', async () => {
    const walk = (folder: string): string[] =>
      readdirSync(folder).flatMap((name) => {
        const file = join(folder, name);
        return statSync(file).isDirectory() ? walk(file) : [relative(FOLDER, file)];
      });
    const known = new Set(TEXT);
    for (const { file } of TRUTH)
      for (const name of await expandFiles([path(file)])) known.add(relative(FOLDER, name));
    const left = walk(FOLDER).filter(
      (name) => !known.has(name) && !/(^README\.md|^truth\.json|\/STABLE)$/.test(name),
    );
    assert.deepEqual(left, []);
  });

  for (const { file, expected } of TRUTH)
    it(`${file} gives the rows, tokens and first values of the truth`, async () => {
      const { batch, rows, tokens, kept } = await read(file);
      assert.deepEqual({ rows, tokens }, { rows: expected.rows, tokens: expected.tokens });
      for (const [name, value] of Object.entries(expected.columns)) {
        if (name === 'task_id' || name === 'run_id') {
          assert.equal(kept[0]![name], value, name);
          continue;
        }
        const column = batch[KEYS[name]!] as ArrayLike<number> | undefined;
        assert.ok(column, `${name} is missing`);
        const values = [value].flat() as number[];
        assert.deepEqual(
          Array.from(column).slice(0, values.length),
          name === 'reward' ? values : Array.from(Float32Array.from(values)),
          name,
        );
      }
      const mask = expected.columns.logprobs ?? [];
      assert.equal(batch.logprob !== undefined, Array.isArray(mask) && mask.length > 0);
    });

  for (const { file, logged, configuration } of TRUTH.filter((truth) => truth.logged))
    it(`${file} gives the policy loss that the trainer logged`, async () => {
      const {
        loss,
        options,
        loss_agg_mode,
        micro_batches = 1,
        logprobs_from,
        old_logprobs_from,
      } = configuration!;
      const args = Object.entries(options).map(([name, value]) => [toCamelCase(name), value]);
      const lossFn = POLICY_LOSS_FN.create(loss, { ...Object.fromEntries(args), lossAggMode: loss_agg_mode });
      const rename = {
        ...(logprobs_from && { logprobs: logprobs_from }),
        ...(old_logprobs_from && { old_logprobs: old_logprobs_from }),
      };
      const files = await expandFiles([path(file)]);
      // Each file is a micro-batch, or all of them are one.
      const parts = micro_batches > 1 ? files.map((name) => [name]) : [files];
      assert.equal(parts.length, micro_batches);
      let sum = 0;
      for (const part of parts) {
        const { batch } = await readRollouts(part, { rename, onWarning() {} });
        sum += lossFn.computeSync(batch).loss;
      }
      const expected = logged!.pg_loss;
      assert.ok(
        Math.abs(sum / parts.length - expected) < 1e-6,
        `${sum / parts.length} instead of ${expected}`,
      );
    });
});
