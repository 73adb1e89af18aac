/** Tests the example that trains a policy: its arithmetic, and that training with any algorithm raises the reward. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { answerTo, Policy, PROMPTS, type Response, rewardOf } from '../../examples/counting.js';
import { ALGORITHMS, train } from '../../examples/train-policy.js';
import { ALGORITHM_TYPE } from '../../lib/index.js';
import { generator } from '../support/random.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

const results = new Map<string, ReturnType<typeof train>>();

/** Returns the result of training with an algorithm and seed 1. Several tests share it. */
function trained(name: string): ReturnType<typeof train> {
  const result = results.get(name) ?? train(name, 1);
  results.set(name, result);
  return result;
}

/** Returns a policy whose probabilities are neither uniform nor close to 0 and 1. */
function somePolicy(seed: number): Policy {
  const { uniform } = generator(seed);
  const policy = Policy.knowing(1);
  policy.logits.forEach((logit, i) => {
    policy.logits[i] = logit + 2 * uniform() - 1;
  });
  return policy;
}

function responsesOf(policy: Policy, seed: number, perPrompt: number): Response[] {
  const { uniform } = generator(seed);
  return [...PROMPTS.keys()].flatMap((prompt) =>
    Array.from({ length: perPrompt }, () => policy.respond(prompt, uniform)),
  );
}

describe('the example that trains a policy', () => {
  it('rewards the correct part of an answer up to its first mistake', () => {
    const right = answerTo(2);
    assert.equal(rewardOf(2, right), 1);
    assert.equal(rewardOf(2, [...right.slice(0, 3), right[0]!, right[4]!]), 3 / right.length);
    assert.equal(rewardOf(2, right.slice(0, -1)), (right.length - 1) / right.length);
    assert.equal(rewardOf(2, [right[0]! + 1]), 0);
  });

  it('computes the expected reward', () => {
    const policy = somePolicy(1);
    const responses = responsesOf(policy, 2, 5_000);
    const mean =
      responses.reduce((sum, { prompt, tokens }) => sum + rewardOf(prompt, tokens), 0) / responses.length;
    // The rewards have a standard deviation below 0.35, so 0.01 is at least four standard errors of their mean.
    assert.ok(Math.abs(mean - policy.expectedReward()) < 0.01, `${mean}, not ${policy.expectedReward()}`);
    assert.ok(policy.expectedReward() > 0.05);
  });

  it('computes the gradient with respect to the logits from the gradients of this package', () => {
    const sampler = somePolicy(3);
    const responses = responsesOf(sampler, 4, 8);
    const cuSeqlens = [0];
    for (const { tokens } of responses) cuSeqlens.push(cuSeqlens.at(-1)! + tokens.length);
    const given = {
      cuSeqlens,
      actionMask: new Uint8Array(cuSeqlens.at(-1)!).fill(1),
      oldLogprob: sampler.columns(responses).logprob,
      refLogprob: new Policy().columns(responses).logprob,
      rewards: responses.map(({ prompt, tokens }) => rewardOf(prompt, tokens)),
      groupIds: responses.map(({ prompt }) => prompt),
    };
    // These clip ranges are so wide that nothing is clipped. So the loss is smooth, and its slope can be measured.
    const objective = ALGORITHM_TYPE.get('grpo').objective({
      policy_loss_fn_args: { clip_range_low: 1, clip_range_high: 100, clip_ratio_c: 100 },
      kl_loss_fn_args: { kl_coef: 0.3 },
      entropy_loss_fn_args: { entropy_coef: 0.2 },
    });
    const policy = somePolicy(5);
    const at = (moved: Policy) =>
      objective.computeSync({ ...given, ...moved.columns(responses) }, { grad: true });
    const { grad, gradEntropy } = at(policy);
    const gradLogits = policy.backward(responses, grad!, gradEntropy!);
    assert.ok(gradEntropy!.some((g) => g !== 0));
    const h = 1 / 64;
    const most = Math.max(...gradLogits.map(Math.abs));
    gradLogits.forEach((g, i) => {
      const [more, less] = [h, -h].map((by) => {
        const moved = policy.copy();
        moved.logits[i]! += by;
        return at(moved).loss;
      });
      const slope = (more! - less!) / (2 * h);
      assert.ok(Math.abs(slope - g) < 1e-3 * most, `logit ${i}: ${g}, and the loss has a slope of ${slope}`);
    });
  });

  it('covers every algorithm that needs no critic', () => {
    assert.deepEqual(
      ALGORITHM_TYPE.names().filter((name) => !ALGORITHMS.includes(name)),
      ['ppo'],
    );
  });

  for (const name of ALGORITHMS) {
    it(`${name} earns more reward`, () => {
      const { before, after } = trained(name);
      assert.ok(before < 0.05, `before ${before}`);
      assert.ok(after > 0.4 && after <= 1, `after ${after}, before ${before}`);
    });
  }

  it('gives the same result for the same seed', () => {
    assert.deepEqual(train('grpo', 1), trained('grpo'));
    assert.notDeepEqual(train('grpo', 2), trained('grpo'));
  });

  it('is a program that prints a table', async () => {
    const words = ['--import', 'tsx', 'examples/train-policy.ts', 'sft', 'rec'];
    const { stdout, stderr } = await promisify(execFile)(process.execPath, words, { cwd: ROOT });
    assert.equal(stderr, '');
    const [heading, ...lines] = stdout.trimEnd().split('\n');
    assert.match(heading!, /^algorithm +reward before +after$/);
    assert.deepEqual(
      lines.map((line) => line.split(/ +/)),
      ['sft', 'rec'].map((name) => {
        const { before, after } = train(name);
        return [name, before.toFixed(3), after.toFixed(3)];
      }),
    );
  });
});
