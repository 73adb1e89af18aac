/** Helpers for tests of plans: they plan, run and merge with the library, as several workers would. */
import assert from 'node:assert/strict';
import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import {
  cutIntoShards,
  type EvaluationSettings,
  evaluateFiles,
  makePlan,
  mergePlan,
  type Plan,
  type PlannedConfiguration,
  PlanRun,
  readPlan,
  type Subject,
  writePlan,
} from '../../../lib/tools/parts/index.js';
import { generator } from '../../support/random.js';
import { metricsOfParts } from '../../support/rollout-rows.js';
import type { Files } from '../cli/support.js';

/** How to plan and run. */
export interface Planning {
  shardSize: number;
  batchTokens?: number;
  skipBadRows?: boolean;
  /** The seed of the order in which shards are run. */
  seed?: number;
  gradients?: PlannedConfiguration['gradients'];
  compares?: boolean;
}

/** The version that the plans of these tests have. */
export const VERSION = 'test';

/** Returns settings that report nothing. */
export function settingsOf({
  batchTokens = 2 ** 20,
  skipBadRows = false,
  gradients,
  compares,
}: Partial<Planning>): EvaluationSettings {
  return {
    read: {
      ...(skipBadRows && { skipBadRows, onBadRow: () => {} }),
      ...(gradients && { keep: gradients.ids }),
    },
    batchTokens,
    ...(compares && { compares }),
    progress: { begin: () => {}, advance: () => {} },
  };
}

/** Plans the computation of subjects, and reads the plan back from its file. */
export async function planOf(
  folder: string,
  files: readonly string[],
  subjects: readonly Subject[],
  { shardSize, batchTokens = 2 ** 20, skipBadRows = false, gradients, compares }: Planning,
): Promise<Plan> {
  const pairs = subjects.some((subject) => subject.pairs);
  const configuration: PlannedConfiguration = {
    functions: subjects.map(({ name }) => ({ choice: '--loss', name, options: [] })),
    column: {},
    backend: 'verl',
    skipBadRows,
    strict: false,
    maxRowTokens: 2 ** 20,
    maxRows: 2 ** 20,
    batchTokens,
    device: 'cpu',
    ...(gradients && { gradients }),
    ...(compares && { compares }),
  };
  const cut = await cutIntoShards(files, shardSize, pairs, () => {});
  const file = join(mkdtempSync(join(folder, 'plan-')), 'plan.json');
  await writePlan(file, makePlan({ program: VERSION, configuration, ...cut }));
  return readPlan(file, VERSION);
}

/** Runs all shards in an order that is drawn, each by one of three workers. Returns the folder of the parts. */
export async function runAll(
  folder: string,
  plan: Plan,
  subjects: readonly Subject[],
  planning: Planning,
): Promise<string> {
  const parts = mkdtempSync(join(folder, 'parts-'));
  const draws = generator(planning.seed ?? 1);
  const workers = [1, 2, 3].map(() => new PlanRun(plan, parts, subjects, settingsOf(planning)));
  for (const phase of ['count', 'compute'] as const) {
    const left = plan.shards.map((_, shard) => shard);
    while (left.length > 0) {
      const [shard] = left.splice(draws.integer(0, left.length - 1), 1);
      await workers[draws.integer(0, 2)]!.run(phase, shard!);
    }
  }
  return parts;
}

/** Plans, runs and merges. Returns the result and the number of shards. */
export async function planned<S extends Subject>(
  folder: string,
  files: readonly string[],
  subjects: readonly S[],
  planning: Planning,
) {
  const plan = await planOf(folder, files, subjects, planning);
  const parts = await runAll(folder, plan, subjects, planning);
  return { ...(await mergePlan(plan, subjects, [parts])), shards: plan.shards.length, plan, folder: parts };
}

/** Asserts that shards of a size give the same results as all rows in one process. Returns the number of shards. */
export async function assertSame(
  files: Files,
  inputs: readonly string[],
  subjects: readonly Subject[],
  planning: Planning,
): Promise<number> {
  const whole = await evaluateFiles(inputs, subjects, settingsOf({ ...planning, batchTokens: 2 ** 24 }));
  assert.equal(whole.parts, 1);
  const merged = await planned(files.directory, inputs, subjects, planning);
  assert.deepEqual([merged.rows, merged.tokens, merged.skipped], [whole.rows, whole.tokens, whole.skipped]);
  assert.deepEqual(merged.cosines, whole.cosines);
  assert.equal(merged.cosines !== undefined, planning.compares === true);
  whole.subjects.forEach((expected, i) => {
    const { metrics, ...actual } = merged.subjects[i]!;
    const what = `${expected.subject.name} in ${merged.shards} shards`;
    const { metrics: all, ...others } = expected;
    const names = merged.shards > 1 ? metricsOfParts(expected) : Object.keys(all);
    assert.deepEqual(actual, others, what);
    assert.deepEqual(Object.keys(metrics), names, what);
    for (const name of names) assert.ok(Object.is(metrics[name], all[name]), `${what}: ${name}`);
  });
  return merged.shards;
}
