/** Tests policy-loss/tfjs: gradients against finite differences and against losses in operations of TensorFlow.js. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import * as tf from '@tensorflow/tfjs-core';
import '@tensorflow/tfjs-backend-cpu';
import '@tensorflow/tfjs-core/dist/register_all_gradients.js';
import {
  ALGORITHM_TYPE,
  logprobsSync,
  type Objective,
  POLICY_LOSS_FN,
  type PolicyLossFn,
  PPOPolicyLossFn,
  SFTLossFn,
  sumCounts,
} from '../../lib/index.js';
import {
  type LogitsLossOptions,
  lossFromLogits,
  lossFromLogprobs,
  type TokenBatch,
} from '../../lib/tfjs/index.js';
import { isLossError } from '../support/loss-error.js';
import { generator } from '../support/random.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

type Fn = PolicyLossFn<Partial<Record<string, number>>> | Objective;

const [B, T, V] = [6, 5, 7];
const N = B * T;
const { normal, uniform, integer } = generator(7);
const numbers = (count: number, scale = 1) => Float32Array.from({ length: count }, () => scale * normal());
const LOGITS = numbers(N * V);
const TARGETS = Int32Array.from({ length: N }, () => integer(0, V - 1));
const MASK = Uint8Array.from({ length: N }, (_, i) => Number(i % T < 3 || uniform() < 0.5));
const { logprob: LOGPROB } = logprobsSync(LOGITS, { shape: [N, V], targets: TARGETS });
const near = () => LOGPROB.map((x) => x + 0.05 * normal());
const BATCH: TokenBatch = {
  targets: TARGETS,
  oldLogprob: near(),
  refLogprob: near(),
  actionMask: MASK,
};
const ADVANTAGES = { advantages: numbers(N) };
const REWARDS = { rewards: [1, 0, 0.5, 0.25, 2, 1], groupIds: [0, 0, 1, 1, 2, 2] };

/** Losses that are smooth where the tests evaluate them, with the columns that they read in addition to BATCH. */
const CASES: Record<string, { fn: Fn; columns: object; options?: LogitsLossOptions }> = {
  ppo: { fn: POLICY_LOSS_FN.create('ppo', { clip_range: 0.9 }), columns: ADVANTAGES },
  sft: { fn: POLICY_LOSS_FN.create('sft'), columns: {} },
  'ppo, with a temperature and a softcap': {
    fn: POLICY_LOSS_FN.create('ppo', { clip_range: 0.99 }),
    columns: { advantages: [1, -1, 0.5, 2, -0.3, 0], oldLogprob: LOGPROB },
    options: { temperature: 0.8, softcap: 5 },
  },
  'dpo, of pairs of rows': { fn: POLICY_LOSS_FN.create('dpo'), columns: {} },
  'an objective from rewards, with terms for the KL and the entropy': {
    fn: ALGORITHM_TYPE.get('grpo').objective({
      policy_loss_fn_args: { clip_range_low: 1, clip_range_high: 100, clip_ratio_c: 100 },
      kl_loss_fn_args: { kl_coef: 0.3 },
      entropy_loss_fn_args: { entropy_coef: 0.2 },
    }),
    columns: REWARDS,
  },
};

const logitsTensor = () => tf.tensor3d(LOGITS, [B, T, V]);
/** Returns the loss in float64. */
function lossOf(fn: Fn, logits: tf.Tensor, batch: TokenBatch, options?: LogitsLossOptions): number {
  let loss = Number.NaN;
  lossFromLogits(fn as Objective, logits, batch, { ...options, onResult: (result) => (loss = result.loss) });
  return loss;
}
/** Returns the log-probabilities and the entropies in operations of TensorFlow.js. */
function inOperations(logits: tf.Tensor): { logprob: tf.Tensor; entropy: tf.Tensor } {
  const log = tf.logSoftmax(logits);
  const picked = tf.cast(tf.oneHot(tf.tensor2d(TARGETS, [B, T], 'int32'), V), 'float32');
  return {
    logprob: tf.sum(tf.mul(log, picked), -1),
    entropy: tf.neg(tf.sum(tf.mul(tf.exp(log), log), -1)),
  };
}

describe('policy-loss/tfjs', () => {
  let tensors = 0;

  before(async () => {
    tf.enableProdMode(); // prints no advertisement
    await tf.setBackend('cpu');
  });
  beforeEach(() => {
    tensors = tf.memory().numTensors;
    tf.engine().startScope();
  });
  afterEach(() => tf.engine().endScope());

  for (const [name, { fn, columns, options }] of Object.entries(CASES)) {
    const batch = { ...BATCH, ...columns };

    it(`differentiates ${name} with respect to logits`, () => {
      const [grad] = tf.grads((logits) => lossFromLogits(fn as Objective, logits, batch, options))([
        logitsTensor(),
      ]);
      assert.deepEqual(grad!.shape, [B, T, V]);
      const actual = grad!.dataSync();
      const h = 1 / 64;
      const slopes = LOGITS.map((_, i) => {
        const [more, less] = [h, -h].map((by) => {
          const moved = LOGITS.slice();
          moved[i]! += by;
          return lossOf(fn, tf.tensor3d(moved, [B, T, V]), batch, options);
        });
        return (more! - less!) / (2 * h);
      });
      assert.ok(actual.some((g) => Math.abs(g) > 1e-3));
      const most = Math.max(...actual.map(Math.abs));
      slopes.forEach((slope, i) => {
        assert.ok(Math.abs(slope - actual[i]!) < 2e-3 * most, `${i}: ${actual[i]}, slope ${slope}`);
      });
    });

    if (options) continue;
    it(`gives the same gradient of ${name} through log-probabilities`, () => {
      const [direct] = tf.grads((x) => lossFromLogits(fn as Objective, x, batch))([logitsTensor()]);
      const [composed] = tf.grads((x) => {
        const { logprob, entropy } = inOperations(x);
        const { targets: _, ...others } = batch;
        return lossFromLogprobs(fn as Objective, logprob, { ...others, entropy });
      })([logitsTensor()]);
      assertArray(composed!.dataSync(), direct!.dataSync(), 'grad');
    });
  }

  it('agrees with PPO and an entropy bonus in operations of TensorFlow.js', () => {
    const objective = ALGORITHM_TYPE.get('grpo').objective({
      policy_loss_fn_args: { clip_range: 0.02, clip_ratio_c: 100, loss_agg_mode: 'token-mean' },
      kl_loss_fn_args: { kl_coef: 0 },
      entropy_loss_fn_args: { entropy_coef: 0.1 },
    });
    const batch = { ...BATCH, ...ADVANTAGES };
    const written = (logits: tf.Tensor) => {
      const { logprob, entropy } = inOperations(logits);
      const advantages = tf.tensor2d(ADVANTAGES.advantages, [B, T]);
      const mask = tf.tensor2d(Float32Array.from(MASK), [B, T]);
      const ratio = tf.exp(tf.sub(logprob, tf.tensor2d(BATCH.oldLogprob as Float32Array, [B, T])));
      const free = tf.mul(ratio, advantages);
      const gain = tf.minimum(free, tf.mul(tf.clipByValue(ratio, 0.98, 1.02), advantages));
      const perToken = tf.mul(tf.neg(tf.add(gain, tf.mul(entropy, 0.1))), mask);
      return tf.div(tf.sum(perToken), tf.sum(mask)) as tf.Scalar;
    };
    const expected = tf.valueAndGrad(written)(logitsTensor());
    const actual = tf.valueAndGrad((x: tf.Tensor) => lossFromLogits(objective, x, batch))(logitsTensor());
    assertNumber(actual.value.dataSync()[0], expected.value.dataSync()[0]!, 'loss');
    assertArray(actual.grad.dataSync(), expected.grad.dataSync(), 'grad');
  });

  it('differentiates with respect to a learned normaliser', () => {
    const fn = POLICY_LOSS_FN.create('verl/flowrl') as PolicyLossFn;
    const logZ = tf.tensor1d([0.1, -0.2, 0.3, 0, 1, -1]);
    const batch = { ...BATCH, ...ADVANTAGES };
    const { targets: _, ...others } = batch;
    const [x, z] = tf.grads((logits, logZ) => lossFromLogits(fn, logits, { ...batch, logZ }))([
      logitsTensor(),
      logZ,
    ]);
    const logprob = tf.tensor2d(LOGPROB, [B, T]);
    const [y, w] = tf.grads((lp, logZ) => lossFromLogprobs(fn, lp, { ...others, logZ }))([logprob, logZ]);
    const given = { ...others, logprob: LOGPROB, logZ: logZ.dataSync(), shape: [B, T] } as object;
    const expected = fn.computeSync(given, { grad: true, gradLogZ: true });
    assert.deepEqual(z!.dataSync(), expected.gradLogZ);
    assert.deepEqual(w!.dataSync(), expected.gradLogZ);
    assert.deepEqual(y!.dataSync(), expected.grad);
    assert.deepEqual(x!.shape, [B, T, V]);
    assert.ok(expected.gradLogZ!.some((g) => g !== 0));
  });

  it('differentiates with respect to a column under each of its keys', () => {
    const tokens = tf.tensor2d(LOGPROB, [B, T]);
    const rows = tf.tensor1d([0.1, -0.2, 0.3, 0, 1, -1]);
    const { targets: _, ...others } = { ...BATCH, ...ADVANTAGES };
    for (const [name, key, column, gradient] of [
      ['verl/flowrl', 'log_z', rows, 'gradLogZ'],
      ['oat/bnf', 'entropyOther', tokens.clone(), 'gradEntropy'],
      ['oat/bnf', 'entropy_other', tokens.clone(), 'gradEntropy'],
    ] as const) {
      const fn = POLICY_LOSS_FN.create(name) as PolicyLossFn;
      // oat/bnf does not read entropy, so its gradient by entropyOther is not one by it.
      const batch = { ...others, entropy: tf.zerosLike(tokens) };
      const [, found] = tf.grads((lp, column) => lossFromLogprobs(fn, lp, { ...batch, [key]: column }))([
        tokens,
        column,
      ]);
      const given = { ...others, logprob: LOGPROB, [key]: column.dataSync(), shape: [B, T] } as object;
      const expected = fn.computeSync(given, { gradEntropy: true, gradLogZ: true })[gradient]!;
      assert.deepEqual(found!.dataSync(), expected, key);
      assert.ok(expected.some((g) => g !== 0));
    }
    const bnf = POLICY_LOSS_FN.create('oat/bnf') as PolicyLossFn;
    const entropyOther = LOGPROB;
    const ofEntropy = tf.grads((lp, entropy) =>
      lossFromLogprobs(bnf, lp, { ...others, entropyOther, entropy }),
    );
    assert.throws(() => ofEntropy([tokens, tokens.clone()]), /Cannot compute gradient/);
  });

  it('takes columns as tensors, and packed tokens', () => {
    const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
    const plain = { ...BATCH, ...ADVANTAGES };
    const grad = (logits: tf.Tensor, batch: TokenBatch) =>
      tf
        .grads((x) => lossFromLogits(fn, x, batch))([logits])[0]!
        .dataSync();
    const expected = grad(logitsTensor(), plain);
    const tensorBatch: TokenBatch = {
      targets: tf.tensor2d(TARGETS, [B, T], 'int32'),
      oldLogprob: tf.tensor2d(BATCH.oldLogprob as Float32Array, [B, T]),
      advantages: tf.tensor2d(ADVANTAGES.advantages, [B, T]),
      actionMask: tf.tensor2d(MASK, [B, T], 'bool'),
    };
    assert.deepEqual(grad(logitsTensor(), tensorBatch), expected);
    const packed = { ...plain, cuSeqlens: Int32Array.from({ length: B + 1 }, (_, b) => b * T) };
    assert.deepEqual(grad(tf.reshape(logitsTensor(), [N, V]), packed), expected);
    assert.deepEqual(grad(tf.reshape(logitsTensor(), [N, V]), { ...plain, shape: [B, T] }), expected);
  });

  it('multiplies by the gradient of what follows', () => {
    const batch = { ...BATCH, ...ADVANTAGES };
    const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
    const loss = (x: tf.Tensor) => lossFromLogits(fn, x, batch);
    const [once] = tf.grads(loss)([logitsTensor()]);
    const [thrice] = tf.grads((x) => tf.mul(loss(x), -3))([logitsTensor()]);
    assertArray(thrice!.dataSync(), tf.mul(once!, -3).dataSync(), 'grad');
    const logprob = tf.tensor2d(LOGPROB, [B, T]);
    const { targets: _, ...others } = batch;
    const [single] = tf.grads((x) => lossFromLogprobs(fn, x, others))([logprob]);
    const [double] = tf.grads((x) => tf.mul(lossFromLogprobs(fn, x, others), 2))([logprob]);
    assert.deepEqual(double!.dataSync(), tf.mul(single!, 2).dataSync());
  });

  it('reads nothing under the mask, and its gradient there is 0', () => {
    const { fn, columns } = CASES['an objective from rewards, with terms for the KL and the entropy']!;
    const batch = { ...BATCH, ...columns };
    const gradOf = (logits: Float32Array, targets: Int32Array) =>
      tf
        .grads((x) => lossFromLogits(fn as Objective, x, { ...batch, targets }))([
          tf.tensor3d(logits, [B, T, V]),
        ])[0]!
        .dataSync();
    const poisoned = LOGITS.map((x, i) => (MASK[Math.floor(i / V)] ? x : Number.NaN));
    const unnamed = TARGETS.map((target, i) => (MASK[i] ? target : -100));
    const expected = gradOf(LOGITS, TARGETS);
    assert.ok(MASK.includes(0));
    for (const targets of [TARGETS, unnamed]) assert.deepEqual(gradOf(poisoned, targets), expected);
    expected.forEach((g, i) => {
      if (!MASK[Math.floor(i / V)]) assert.equal(g, 0);
    });
  });

  it('reports the loss and the metrics of each call', () => {
    const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
    const seen: { loss: number; metrics: { pg_clipfrac: number } }[] = [];
    const batch = { ...BATCH, ...ADVANTAGES };
    const loss = lossFromLogits(fn, logitsTensor(), batch, { onResult: (result) => seen.push(result) });
    const { targets: _, ...others } = batch;
    const expected = fn.computeSync({ ...others, logprob: LOGPROB, shape: [B, T] } as object);
    assert.deepEqual(seen, [{ loss: expected.loss, metrics: expected.metrics }]);
    assert.equal(loss.dataSync()[0], Math.fround(expected.loss));
    assert.deepEqual(loss.shape, []);
  });

  it('requests no gradient where TensorFlow.js records none', () => {
    const requested: unknown[] = [];
    const fn = {
      keysOf: () => [],
      fromLogitsSync(_batch: object, { gradLogits }: { gradLogits?: unknown }) {
        requested.push(gradLogits);
        return { loss: 1, metrics: {}, gradLogits: new Float32Array(N * V) };
      },
    } as unknown as PolicyLossFn;
    const loss = (x: tf.Tensor) => lossFromLogits(fn, x, BATCH);
    loss(logitsTensor());
    tf.grad(loss)(logitsTensor());
    assert.deepEqual(requested, [false, true]);
  });

  it('adds micro-batches up to the whole', () => {
    const fn = new SFTLossFn();
    const batch = { targets: TARGETS, actionMask: MASK };
    const half = (from: number) => ({
      targets: TARGETS.subarray(from, from + N / 2),
      actionMask: MASK.subarray(from, from + N / 2),
    });
    const shape: [number, number] = [B / 2, T];
    const halves = [0, N / 2].map(half);
    const normalizer = sumCounts(halves.map(({ actionMask }) => fn.countSync({ actionMask, shape })));
    const [whole] = tf.grads((x) => lossFromLogits(fn, x, batch))([logitsTensor()]);
    const parts = halves.map(
      (part, i) =>
        tf.grads((x) => lossFromLogits(fn, x, part, { normalizer }))([
          tf.slice(logitsTensor(), [(i * B) / 2, 0, 0], [B / 2, T, V]),
        ])[0]!,
    );
    assertArray(tf.concat(parts).dataSync(), whole!.dataSync(), 'grad');
  });

  it('passes the seed to the advantage function', () => {
    const objective = ALGORITHM_TYPE.get('grpo').objective({
      advantage_fn_args: { std_threshold: 0.1, duplicate_experiences: true },
      kl_loss_fn_args: { kl_coef: 0 },
    });
    const { targets, ...others } = { ...BATCH, ...REWARDS, rewards: [1, 0, 0.5, 0.5, 2, 1] };
    const { entropy } = logprobsSync(LOGITS, { shape: [N, V], targets: TARGETS, entropy: true });
    const given = { ...others, logprob: LOGPROB, entropy, shape: [B, T] } as object;
    const losses = [1, 2, 3, 4].map((seed) => {
      const loss = lossOf(objective, logitsTensor(), { targets, ...others }, { seed });
      assert.equal(loss, objective.computeSync(given, { seed }).loss);
      return loss;
    });
    assert.ok(new Set(losses).size > 1);
  });

  it('lets an optimizer raise the probability of the targets', () => {
    const fn = new SFTLossFn();
    const variable = tf.variable(logitsTensor());
    const optimizer = tf.train.sgd(5);
    const losses = Array.from(
      { length: 20 },
      () =>
        optimizer
          .minimize(() => lossFromLogits(fn, variable, { targets: TARGETS, actionMask: MASK }), true)!
          .dataSync()[0]!,
    );
    assert.deepEqual(
      losses,
      losses.toSorted((a, b) => b - a),
    );
    assert.ok(losses.at(-1)! < losses[0]! / 4, `${losses}`);
    variable.dispose();
    optimizer.dispose();
  });

  it('keeps no tensors', () => {
    const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
    const batch = { ...BATCH, ...ADVANTAGES };
    const { targets: _, ...others } = batch;
    const logits = logitsTensor();
    const logprob = tf.tensor2d(LOGPROB, [B, T]);
    const before = tf.memory();
    for (const dispose of [
      () => lossFromLogits(fn, logits, batch).dispose(),
      () => lossFromLogprobs(fn, logprob, others).dispose(),
      () => tf.dispose({ ...tf.valueAndGrad((x: tf.Tensor) => lossFromLogits(fn, x, batch))(logits) }),
      () => tf.dispose({ ...tf.valueAndGrad((x: tf.Tensor) => lossFromLogprobs(fn, x, others))(logprob) }),
      () => assert.throws(() => lossFromLogits(fn, logits, { targets: TARGETS })),
    ]) {
      dispose();
      const { numTensors, numDataBuffers } = tf.memory();
      assert.deepEqual(
        [numTensors, numDataBuffers],
        [before.numTensors, before.numDataBuffers],
        `${dispose}`,
      );
    }
  });

  it('throws LossErrors', () => {
    const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
    const batch = { ...BATCH, ...ADVANTAGES };
    const { targets: _, ...others } = batch;
    const logits = logitsTensor();
    const wrong: [() => unknown, Parameters<typeof isLossError>[0], RegExp][] = [
      [() => lossFromLogits(fn, LOGITS as never, batch), 'ERR_INVALID_INPUT', /^logits: expected a tensor/],
      [
        () => lossFromLogits(fn, tf.cast(logits, 'int32'), batch),
        'ERR_INVALID_INPUT',
        /^logits: .* got dtype int32/,
      ],
      [
        () => lossFromLogits(fn, tf.reshape(logits, [-1]), batch),
        'ERR_SHAPE_MISMATCH',
        /^logits: expected \[B, T, V\]/,
      ],
      [() => lossFromLogits(fn, tf.reshape(logits, [N, V]), batch), 'ERR_MISSING_INPUT', /^shape: /],
      [() => lossFromLogits(fn, logits, { ...batch, targets: [1] }), 'ERR_SHAPE_MISMATCH', /^targets: /],
      [
        () => lossFromLogits(fn, logits, { ...batch, targets: TARGETS.map((t, i) => (i === 2 ? V : t)) }),
        'ERR_INVALID_INPUT',
        /^targets\[2\]: expected a token id from 0 to 6/,
      ],
      [
        () => lossFromLogits(fn, logits, { ...batch, targets: tf.ones([B, T]) }),
        'ERR_INVALID_INPUT',
        /^targets: expected an Int32Array or whole numbers, got a Float32Array/,
      ],
      [
        () => lossFromLogits(fn, logits, { ...batch, advantages: tf.ones([T, B]) }),
        'ERR_SHAPE_MISMATCH',
        /^advantages: expected \[6, 5\], got \[5, 6\]/,
      ],
      [
        () => lossFromLogits(fn, logits, { targets: TARGETS, actionMask: MASK }),
        'ERR_MISSING_INPUT',
        /^oldLogprob: /,
      ],
      [
        () => lossFromLogits(fn, logits, { ...batch, entropy: LOGPROB } as never),
        'ERR_INVALID_INPUT',
        /^entropy: expected a batch without it/,
      ],

      [() => lossFromLogits(fn, logits, batch, { temperature: 0 }), 'ERR_INVALID_OPTION', /^temperature: /],
      [() => lossFromLogits(fn, logits, null as never), 'ERR_INVALID_INPUT', /./],
      [() => lossFromLogits(fn, logits, batch, null as never), 'ERR_INVALID_INPUT', /./],
      [() => lossFromLogits({} as never, logits, batch), 'ERR_INVALID_INPUT', /./],
      [() => lossFromLogprobs(fn, tf.ones([B, T]), others, null as never), 'ERR_INVALID_INPUT', /./],
      [() => lossFromLogprobs(fn, logits, others), 'ERR_SHAPE_MISMATCH', /^logprob: expected \[B, T\]/],
      [() => lossFromLogprobs(fn, tf.ones([B, T, 1]), others), 'ERR_SHAPE_MISMATCH', /^logprob: /],
      [() => lossFromLogprobs(fn, tf.ones([B]), others), 'ERR_MISSING_INPUT', /^shape: /],
    ];
    for (const [call, code, pattern] of wrong) assert.throws(call, isLossError(code, pattern), `${call}`);
    const own = new Error('own');
    const onResult = () => {
      throw own;
    };
    assert.throws(() => lossFromLogits(fn, logits, batch, { onResult }), own);
    const disposed = logitsTensor();
    disposed.dispose();
    assert.throws(() => lossFromLogits(fn, disposed, batch), isLossError('ERR_INVALID_INPUT', /disposed/));
  });

  it('is not loaded by the main entry', () => {
    const program = `
      await import('./lib/index.ts');
      const { createRequire } = await import('node:module');
      const { cache } = createRequire(process.cwd() + '/lib/index.ts');
      console.log(Object.keys(cache).filter((file) => file.includes('@tensorflow')).length);
      await import('./lib/tfjs/index.ts');
      console.log(Object.keys(cache).filter((file) => file.includes('@tensorflow')).length > 0);
    `;
    const words = ['--import', 'tsx', '--input-type=module', '--eval', program];
    assert.equal(execFileSync(process.execPath, words, { cwd: ROOT, encoding: 'utf8' }), '0\ntrue\n');
  });

  it('leaves the other tests’ tensors alone', () => assert.equal(tf.memory().numTensors, tensors));
});
