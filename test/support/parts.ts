/** Evaluates rows in parts, and compares the results with those of all rows at once. */
import assert from 'node:assert/strict';
import {
  type EvaluationSettings,
  evaluateFiles,
  type PartWatcher,
  type Subject,
} from '../../lib/tools/parts/index.js';
import { metricsOfParts } from './rollout-rows.js';

interface Gradients {
  grad: number[];
  gradEntropy: number[];
  advantages: number[];
}

/** Evaluates subjects with the setting `batchTokens`, and joins the gradients and advantages of all parts. */
export async function evaluated(file: string, subjects: readonly Subject[], batchTokens: number) {
  const gradients = subjects.map((): Gradients => ({ grad: [], gradEntropy: [], advantages: [] }));
  const watch: PartWatcher = (_, results) => {
    results.forEach((result, i) => {
      for (const name of ['grad', 'gradEntropy', 'advantages'] as const)
        gradients[i]![name].push(...(result[name] ?? []));
    });
  };
  const settings: EvaluationSettings = {
    read: {},
    batchTokens,
    progress: { begin: () => {}, advance: () => {} },
  };
  const result = await evaluateFiles([file], subjects, settings, watch);
  return { ...result, gradients };
}

/**
 * Asserts that parts of different sizes give the results, gradients and advantages of all rows at once, to the last bit.
 * @param tokens the capacities of the parts.
 */
export async function assertPartsAddUp(
  file: string,
  subjects: readonly Subject[],
  tokens: readonly number[],
) {
  const whole = await evaluated(file, subjects, 2 ** 20);
  assert.equal(whole.parts, 1);
  for (const batchTokens of tokens) {
    const parted = await evaluated(file, subjects, batchTokens);
    assert.ok(parted.parts > 1);
    assert.deepEqual([parted.rows, parted.tokens], [whole.rows, whole.tokens]);
    whole.subjects.forEach((expected, i) => {
      const actual = parted.subjects[i]!;
      const what = `${expected.subject.name} ${JSON.stringify(expected.subject.functions ?? '')} in ${parted.parts} parts`;
      assert.equal(actual.advantages, expected.advantages);
      const names = metricsOfParts(expected);
      assert.deepEqual(Object.keys(actual.metrics).sort(), [...names].sort(), what);
      assert.equal(actual.loss, expected.loss, `${what}: loss`);
      assert.equal(actual.gradNorm, expected.gradNorm, `${what}: gradient norm`);
      assert.equal(actual.gradEntropyNorm, expected.gradEntropyNorm, `${what}: entropy norm`);
      for (const name of names)
        assert.equal(actual.metrics[name], expected.metrics[name], `${what}: ${name}`);
      for (const name of ['grad', 'gradEntropy', 'advantages'] as const) {
        const [ours, theirs] = [parted.gradients[i]![name], whole.gradients[i]![name]];
        assert.equal(ours.length, theirs.length);
        theirs.forEach((x, t) => {
          assert.equal(ours[t], x, `${what}: ${name}[${t}]`);
        });
      }
    });
  }
}
