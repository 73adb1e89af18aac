// Trains a small softmax policy by every algorithm that needs no critic, on this package's gradients alone, and prints
// what each makes of the reward:
//
//   npx tsx examples/train-policy.ts [algorithm…]
//
// The loop is the same for all: sample, lay the rows out as a batch, and take a few steps down the gradient that the
// algorithm's objective gives. What differs is which rows an algorithm learns from, and its class says most of that.
import { fileURLToPath } from 'node:url';
import { ALGORITHM_TYPE, type Batch, type ObjectiveConfig } from 'policy-loss';
import { answerTo, Policy, PROMPTS, type Response, rewardOf } from './counting.js';

/** The algorithms without a critic, which this example trains by. */
export const ALGORITHMS = ALGORITHM_TYPE.names().filter((name) => !ALGORITHM_TYPE.get(name).useCritic);

const BATCHES = 60;
/** Steps on each batch. After the first the policy is no longer the one that sampled: ratios leave 1. */
const UPDATES = 3;
const RESPONSES_PER_PROMPT = 16;
const LEARNING_RATE = 0.05;

/** A response, and what else an algorithm may want to know of it. */
interface Row extends Response {
  reward: number;
  /** The same in rows that are compared with each other. */
  group: number;
  /** The same in rows that earn one reward together. */
  run: number;
  expert: boolean;
}

/** What training came to: the mean reward of the policy's responses, from 0 to 1. */
export interface Training {
  algorithm: string;
  before: number;
  after: number;
}

/** Trains a new policy by an algorithm. The same seed gives the same training to the bit. */
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
      // For small batches; compute() does the same on threads of its own.
      const { grad, gradEntropy } = objective.computeSync(batch, { grad: true });
      optimizer.step(policy.logits, policy.backward(rows, grad!, gradEntropy!));
    }
  }
  return { algorithm, before, after: policy.expectedReward() };
}

/** What the distillations learn from: it answers nearly always right. */
const TEACHER = Policy.knowing(6);

/** The algorithm's own functions and arguments, with some entropy and with what the task asks for. */
function configOf(algorithm: string): ObjectiveConfig {
  const config: ObjectiveConfig = {
    kl_loss_fn_args: { kl_coef: 0.001 },
    entropy_loss_fn_args: { entropy_coef: 0.001 },
  };
  // The mixed losses take the sizes of a training batch, to weigh each kind of rows by its own.
  const sizes = {
    train_batch_size_usual: PROMPTS.length * RESPONSES_PER_PROMPT,
    train_batch_size_expert: PROMPTS.length,
  };
  if (algorithm === 'mix') config.policy_loss_fn_args = sizes;
  if (algorithm === 'mix_chord')
    config.policy_loss_fn_args = { ...sizes, mu_warmup_steps: 5, mu_decay_steps: 30, mu_peak: 0.5 };
  // At 0 the divergence is KL(policy ‖ teacher), whose mean over the policy's own samples this is. The teacher's share of
  // any other is a mean over samples of the teacher's; over the policy's it leads away from the teacher.
  if (algorithm === 'jsd') config.advantage_fn_args = { lambda_coef: 0 };
  return config;
}

/** The rows of one batch: what the policy now answers, what experts answer, or both. */
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

/** The right answer to each prompt. They are compared with no other: each is a group of its own. */
function experts(): Row[] {
  return [...PROMPTS.keys()].map((prompt) => ({
    ...rowOf({ prompt, tokens: answerTo(prompt) }),
    group: PROMPTS.length + prompt,
    expert: true,
  }));
}

/** Preferences, the chosen row before the rejected: the best of a group and its worst, the next best and next worst, … */
function pairs(group: readonly Row[]): Row[] {
  const ranked = group.toSorted((a, b) => b.reward - a.reward);
  return ranked
    .slice(0, ranked.length / 2)
    .flatMap((chosen, i) => [chosen, ranked.at(-1 - i)!])
    .filter((_, i, rows) => rows[i & ~1]!.reward > rows[i | 1]!.reward);
}

/** Runs of two steps, a row each: an answer to a prompt and one to the next, rewarded for both at the end alone. */
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

/** Rows as a batch of packed tokens, but for what policies say of them. */
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

/** Adam (arXiv 1412.6980). Its steps do not depend on a loss's scale: one learning rate does for all algorithms. */
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

  /** Moves the parameters against their gradient. */
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

/** Numbers from 0 up to 1, the same for the same seed: mulberry32. */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const names = process.argv.slice(2);
  console.log(`${'algorithm'.padEnd(20)}reward before  after`);
  for (const name of names.length > 0 ? names : ALGORITHMS) {
    const { algorithm, before, after } = train(name);
    console.log(`${algorithm.padEnd(20)}${before.toFixed(3).padStart(13)}${after.toFixed(3).padStart(7)}`);
  }
}
