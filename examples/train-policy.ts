// Trains a small softmax policy with every algorithm that needs no critic, and prints the reward before and after:
//
//   npx tsx examples/train-policy.ts [algorithm…]
//
// This package computes the gradients of all losses. Every algorithm has the same loop: sample responses, turn the rows
// into a batch, and take a few steps against the gradient of the algorithm's objective. Algorithms differ in the rows
// that they learn from. The constants of an algorithm's class mostly decide which rows these are.
import { fileURLToPath } from 'node:url';
import { ALGORITHM_TYPE, type Batch, type ObjectiveConfig } from 'policy-loss';
import { answerTo, Policy, PROMPTS, type Response, rewardOf } from './counting.js';
import { generator } from './random.js';

/** The names of the algorithms that need no critic. */
export const ALGORITHMS = ALGORITHM_TYPE.names().filter((name) => !ALGORITHM_TYPE.get(name).useCritic);

const BATCHES = 60;
/**
 * The number of steps on each batch. From the second step on, the policy differs from the one that sampled the batch,
 * so the ratios differ from 1.
 */
const UPDATES = 3;
const RESPONSES_PER_PROMPT = 16;
const LEARNING_RATE = 0.05;

/** A row of a batch: a response and what an algorithm must know about it. */
interface Row extends Response {
  reward: number;
  /** The same number in all rows whose rewards are compared with each other. */
  group: number;
  /** The same number in all rows of a group that earn one reward together. */
  run: number;
  expert: boolean;
}

/** The policy's mean reward before and after training, from 0 to 1. */
export interface Training {
  algorithm: string;
  before: number;
  after: number;
}

/** Trains a new policy. Calls with the same algorithm and seed return exactly the same results. */
export function train(algorithm: string, seed = 1): Training {
  const random = generator(seed);
  const policy = new Policy();
  const reference = policy.copy();
  const optimizer = new Adam(policy.logits.length, LEARNING_RATE);
  const objective = ALGORITHM_TYPE.get(algorithm).objective(configOf(algorithm));
  const before = policy.expectedReward();
  for (let step = 0; step < BATCHES; step++) {
    const rows = experiences(algorithm, policy, random);
    const batch: Batch = { ...layOut(rows), step };
    batch.oldLogprob = policy.columns(rows).logprob;
    batch.refLogprob = reference.columns(rows).logprob;
    batch.teacherLogprob = TEACHER.columns(rows).logprob;
    for (let update = 0; update < UPDATES; update++) {
      Object.assign(batch, policy.columns(rows));
      // This batch is small, so computeSync() suits it. For large batches, compute() does not block the event loop.
      const { grad, gradEntropy } = objective.computeSync(batch, { grad: true });
      optimizer.step(policy.logits, policy.backward(rows, grad, gradEntropy));
    }
  }
  return { algorithm, before, after: policy.expectedReward() };
}

/** The teacher's policy for the distillation algorithms. Nearly all of its answers are right. */
const TEACHER = Policy.knowing(6);

/** Returns the arguments in which this example differs from an algorithm's defaults. */
function configOf(algorithm: string): ObjectiveConfig {
  const config: ObjectiveConfig = {
    kl_loss_fn_args: { kl_coef: 0.001 },
    entropy_loss_fn_args: { entropy_coef: 0.001 },
  };
  // The losses of MIX and MIX-CHORD weight the policy's rows and the experts' rows by their numbers in a training
  // batch.
  const sizes = {
    train_batch_size_usual: PROMPTS.length * RESPONSES_PER_PROMPT,
    train_batch_size_expert: PROMPTS.length,
  };
  if (algorithm === 'mix') config.policy_loss_fn_args = sizes;
  if (algorithm === 'mix_chord')
    config.policy_loss_fn_args = { ...sizes, mu_warmup_steps: 5, mu_decay_steps: 30, mu_peak: 0.5 };
  // With 0, the divergence is KL(policy ‖ teacher), which is a mean over the policy's samples. Any other value adds a
  // mean over the teacher's samples, which this example does not have. If that mean were computed on the policy's
  // samples, it would lead the policy away from the teacher.
  if (algorithm === 'jsd') config.advantage_fn_args = { lambda_coef: 0 };
  return config;
}

/**
 * Returns the rows of one batch. Depending on the algorithm, they are the policy's responses, right answers by experts,
 * or both.
 */
function experiences(algorithm: string, policy: Policy, random: () => number): Row[] {
  const cls = ALGORITHM_TYPE.get(algorithm);
  const { advantage_fn, sample_strategy } = cls.defaultConfig();
  if (cls.schema === 'sft') return experts();
  if (advantage_fn === 'step_wise_grpo') return runs(policy, random);
  const groups = [...PROMPTS.keys()].map((prompt) =>
    Array.from({ length: RESPONSES_PER_PROMPT }, () => rowOf(policy.respond(prompt, random))),
  );
  if (cls.schema === 'dpo') return groups.flatMap(pairs);
  if (algorithm === 'raft') return groups.map((rows) => rows.reduce((a, b) => (b.reward > a.reward ? b : a)));
  return sample_strategy === 'mix' ? [...groups.flat(), ...experts()] : groups.flat();
}

function rowOf(response: Response): Row {
  const { prompt, tokens } = response;
  return { ...response, reward: rewardOf(prompt, tokens), group: prompt, run: 0, expert: false };
}

/**
 * Returns the right answer to each prompt, as an expert's row. Each row has a group of its own, so its reward is not
 * compared with others.
 */
function experts(): Row[] {
  return [...PROMPTS.keys()].map((prompt) => ({
    ...rowOf({ prompt, tokens: answerTo(prompt) }),
    group: PROMPTS.length + prompt,
    expert: true,
  }));
}

/**
 * Returns preference pairs, each with the chosen row before the rejected one. The best row is paired with the worst,
 * the second best with the second worst, and so on. Pairs with equal rewards are left out.
 */
function pairs(group: readonly Row[]): Row[] {
  const ranked = group.toSorted((a, b) => b.reward - a.reward);
  return ranked
    .slice(0, ranked.length / 2)
    .flatMap((chosen, i) => [chosen, ranked.at(-1 - i)!])
    .filter((_, i, rows) => rows[i & ~1]!.reward > rows[i | 1]!.reward);
}

/**
 * Returns runs of two steps, with one row per step. The two steps answer different prompts. The last row has the mean
 * reward of both, and the first row has the reward 0.
 */
function runs(policy: Policy, random: () => number): Row[] {
  return [...PROMPTS.keys()].flatMap((group) =>
    Array.from({ length: RESPONSES_PER_PROMPT }, (_, run) => {
      const steps = [group, (group + 1) % PROMPTS.length].map((prompt) =>
        rowOf(policy.respond(prompt, random)),
      );
      const earned = steps.reduce((sum, { reward }) => sum + reward, 0) / steps.length;
      return steps.map((row, i) => ({ ...row, group, run, reward: i === steps.length - 1 ? earned : 0 }));
    }).flat(),
  );
}

/** Turns rows into a batch of packed tokens. The columns that policies compute are added later. */
function layOut(rows: readonly Row[]): Batch {
  const cuSeqlens = [0];
  for (const { tokens } of rows) cuSeqlens.push(cuSeqlens.at(-1)! + tokens.length);
  return {
    cuSeqlens,
    actionMask: new Uint8Array(cuSeqlens.at(-1)!).fill(1),
    rewards: rows.map(({ reward }) => reward),
    groupIds: rows.map(({ group }) => group),
    runIds: rows.map(({ run }) => run),
    expertMask: rows.map(({ expert }) => expert),
  };
}

/**
 * The optimizer Adam (arXiv 1412.6980). Its steps do not depend on the scale of the loss, so one learning rate suits
 * all algorithms.
 */
class Adam {
  readonly #mean: Float64Array;
  readonly #square: Float64Array;
  readonly #rate: number;
  #steps = 0;

  constructor(parameters: number, rate: number) {
    this.#mean = new Float64Array(parameters);
    this.#square = new Float64Array(parameters);
    this.#rate = rate;
  }

  /** Takes one step against the gradient. Changes `parameters` in place. */
  step(parameters: Float64Array, grad: Float64Array): void {
    const [keptOfMean, keptOfSquare] = [0.9, 0.99];
    this.#steps++;
    grad.forEach((g, i) => {
      this.#mean[i] = keptOfMean * this.#mean[i]! + (1 - keptOfMean) * g;
      this.#square[i] = keptOfSquare * this.#square[i]! + (1 - keptOfSquare) * g * g;
      const mean = this.#mean[i]! / (1 - keptOfMean ** this.#steps);
      const square = this.#square[i]! / (1 - keptOfSquare ** this.#steps);
      parameters[i]! -= (this.#rate * mean) / (Math.sqrt(square) + 1e-8);
    });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const names = process.argv.slice(2);
  console.log(`${'algorithm'.padEnd(20)}reward before  after`);
  for (const name of names.length > 0 ? names : ALGORITHMS) {
    const { algorithm, before, after } = train(name);
    console.log(`${algorithm.padEnd(20)}${before.toFixed(3).padStart(13)}${after.toFixed(3).padStart(7)}`);
  }
}
