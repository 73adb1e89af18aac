// Trains a character-level language model from random weights by GRPO, in TensorFlow.js: npx tsx train-tfjs.ts
//
// The model learns to continue the alphabet: "c" is to be answered with "defg" and a full stop. A response earns the
// fraction of this answer that comes before its first mistake. TensorFlow.js computes the model and its gradient;
// policy-loss/tfjs computes the loss and its gradient with respect to the logits.
import * as tf from '@tensorflow/tfjs';
import cliProgress from 'cli-progress';
import { ALGORITHM_TYPE, logprobsSync } from 'policy-loss';
import { lossFromLogits } from 'policy-loss/tfjs';
import { generator } from '../random.js';
import { plot } from './plot.js';

const VOCABULARY = '.abcdefgh';
/** The id of the full stop, which ends a response. It also stands before the beginning of a text. */
const STOP = 0;
const LETTERS = VOCABULARY.length - 1;
const ANSWER = 5;
/** The number of characters that the model sees. */
const CONTEXT = 5;
const RESPONSES_PER_PROMPT = 16;
const STEPS = 60;
const UPDATES = 2;
const SEED = 1;

/** A response to a prompt, which is a single letter. */
interface Response {
  prompt: number;
  tokens: number[];
}

function createModel(): tf.Sequential {
  const initializer = (seed: number) => tf.initializers.glorotUniform({ seed });
  const size = VOCABULARY.length;
  return tf.sequential({
    layers: [
      tf.layers.embedding({
        inputDim: size,
        outputDim: 8,
        inputLength: CONTEXT,
        embeddingsInitializer: tf.initializers.randomNormal({ stddev: 1, seed: SEED }),
      }),
      tf.layers.flatten(),
      tf.layers.dense({ units: 32, activation: 'tanh', kernelInitializer: initializer(SEED + 1) }),
      tf.layers.dense({ units: size, kernelInitializer: initializer(SEED + 2) }),
    ],
  });
}

/** Returns the model's input for the token that comes after a prompt and other tokens. */
function contextOf(prompt: number, before: readonly number[]): number[] {
  const text = [prompt, ...before];
  return Array.from({ length: CONTEXT }, (_, i) => text[text.length - CONTEXT + i] ?? STOP);
}

/** Returns the logits of shape [N, V] for N contexts. */
function logitsOf(model: tf.Sequential, contexts: number[][]): tf.Tensor {
  return model.apply(tf.tensor2d(contexts, [contexts.length, CONTEXT], 'int32')) as tf.Tensor;
}

/** Samples responses to all prompts, one token of every unfinished response at a time. */
function sample(model: tf.Sequential, random: () => number): Response[] {
  const responses = Array.from({ length: LETTERS * RESPONSES_PER_PROMPT }, (_, i): Response => {
    return { prompt: 1 + Math.floor(i / RESPONSES_PER_PROMPT), tokens: [] };
  });
  for (let t = 0; t <= ANSWER; t++) {
    const unfinished = responses.filter(({ tokens }) => tokens.at(-1) !== STOP);
    if (unfinished.length === 0) break;
    const probabilities = tf.tidy(() => {
      const contexts = unfinished.map(({ prompt, tokens }) => contextOf(prompt, tokens));
      return tf.softmax(logitsOf(model, contexts)).arraySync() as number[][];
    });
    unfinished.forEach(({ tokens }, i) => {
      let rest = random();
      const token = probabilities[i]!.findIndex((p) => {
        rest -= p;
        return rest < 0;
      });
      tokens.push(Math.max(token, STOP));
    });
  }
  return responses;
}

function rewardOf({ prompt, tokens }: Response): number {
  const answer = Array.from({ length: ANSWER - 1 }, (_, i) => 1 + ((prompt + i) % LETTERS)).concat(STOP);
  const mistake = answer.findIndex((token, t) => token !== tokens[t]);
  return (mistake < 0 ? ANSWER : mistake) / ANSWER;
}

/** Trains a model, and returns it and the mean reward of each step. */
function train(onStep: (reward: number) => void): tf.Sequential {
  const model = createModel();
  const random = generator(SEED);
  const optimizer = tf.train.adam(0.02);
  const objective = ALGORITHM_TYPE.get('grpo').objective({
    kl_loss_fn: 'none',
    entropy_loss_fn_args: { entropy_coef: 0.002 },
  });
  for (let step = 0; step < STEPS; step++) {
    const responses = sample(model, random);
    const rewards = responses.map(rewardOf);
    // All tokens of all responses are packed one after another.
    const targets = responses.flatMap(({ tokens }) => tokens);
    const contexts = responses.flatMap(({ prompt, tokens }) =>
      tokens.map((_, t) => contextOf(prompt, tokens.slice(0, t))),
    );
    const cuSeqlens = [0];
    for (const { tokens } of responses) cuSeqlens.push(cuSeqlens.at(-1)! + tokens.length);
    const sampled = tf.tidy(() => logitsOf(model, contexts).dataSync() as Float32Array);
    const batch = {
      cuSeqlens,
      targets,
      oldLogprob: logprobsSync(sampled, { shape: [targets.length, VOCABULARY.length], targets }).logprob,
      actionMask: targets.map(() => true),
      rewards,
      groupIds: responses.map(({ prompt }) => prompt),
    };
    for (let update = 0; update < UPDATES; update++)
      optimizer.minimize(() => lossFromLogits(objective, logitsOf(model, contexts), batch));
    onStep(rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length);
  }
  return model;
}

tf.enableProdMode();
await tf.setBackend('cpu');
const curve: number[] = [];
const bar = new cliProgress.SingleBar({ format: 'training {bar} {value}/{total}, reward {reward}' });
bar.start(STEPS, 0, { reward: '…' });
const model = train((reward) => {
  curve.push(reward);
  bar.update(curve.length, { reward: reward.toFixed(3) });
});
bar.stop();
console.log(plot(curve));
const [answer] = sample(model, () => 0.5);
console.log(`"a" is answered with "${answer!.tokens.map((token) => VOCABULARY[token]).join('')}"`);
console.log(`reward: ${curve[0]!.toFixed(3)} in the first step, ${curve.at(-1)!.toFixed(3)} in the last`);
