/**
 * Tests that every algorithm computes finite results from examples/rollouts.jsonl, or fails with an error that names
 * the missing column.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { ALGORITHMS } from '../support/algorithms.js';
import { isLossError } from '../support/loss-error.js';
import { assertSameObjective, objectiveOf } from '../support/objective.js';

describe('every algorithm on the example rollouts', () => {
  interface Rollout {
    task_id: number;
    run_id: number;
    reward: number;
    logprobs: number[];
    old_logprobs: number[];
    ref_logprobs: number[];
    entropy: number[];
  }
  const rollouts: Rollout[] = readFileSync(new URL('../../examples/rollouts.jsonl', import.meta.url), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const cuSeqlens = new Int32Array(rollouts.length + 1);
  rollouts.forEach(({ logprobs }, b) => {
    cuSeqlens[b + 1] = cuSeqlens[b]! + logprobs.length;
  });
  const column = (key: 'logprobs' | 'old_logprobs' | 'ref_logprobs' | 'entropy') =>
    Float32Array.from(rollouts.flatMap((rollout) => rollout[key]));
  const batch = {
    cuSeqlens,
    logprob: column('logprobs'),
    oldLogprob: column('old_logprobs'),
    refLogprob: column('ref_logprobs'),
    entropy: column('entropy'),
    actionMask: new Uint8Array(cuSeqlens.at(-1)!).fill(1),
    rewards: rollouts.map((rollout) => rollout.reward),
    groupIds: rollouts.map((rollout) => rollout.task_id),
    runIds: rollouts.map((rollout) => rollout.run_id),
  };
  /** Algorithms that cannot be computed, with a pattern for the column that the rollouts lack. */
  const LACKING: Record<string, RegExp> = {
    ppo: /values/,
    mix: /expert_?mask/i,
    mix_chord: /expert_?mask|step/i,
    on_policy_distill: /teacher_?logprob/i,
    jsd: /teacher_?logprob/i,
  };

  for (const name of Object.keys(ALGORITHMS))
    it(name, async () => {
      const objective = objectiveOf(name, { entropy_loss_fn_args: { entropy_coef: 0.01 } });
      if (LACKING[name]) {
        assert.throws(() => objective.computeSync(batch), isLossError('ERR_MISSING_INPUT', LACKING[name]));
        return;
      }
      const result = await objective.compute(batch, { grad: true });
      for (const [key, value] of Object.entries({ loss: result.loss, ...result.metrics }))
        assert.ok(Number.isFinite(value), `${key} is ${value}`);
      assert.equal(result.grad!.length, batch.logprob.length);
      assert.ok(result.grad!.every(Number.isFinite));
      assert.ok(result.grad!.some((g) => g !== 0));
      assertSameObjective(objective.computeSync(batch, { grad: true }), result);
    });
});
