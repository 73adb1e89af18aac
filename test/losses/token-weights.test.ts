/** Tests the column token_weights, which multiplies the losses of tokens. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ALGORITHM_TYPE,
  type Batch,
  CORRECTION_FN,
  checkLoss,
  LOSS_FN,
  lossFromExpression,
  POLICY_LOSS_FN,
  VALUE_LOSS_FN,
} from '../../lib/index.js';
import type { Formula } from '../reference/batch.js';
import { type Args, evaluator, formulas, type ReferenceBatch, standsOnEdge } from '../reference/index.js';
import { countable } from '../support/countable.js';
import { batchSpec, makeBatch, three } from '../support/draw.js';
import { ARGUMENTS, OF_ROWS, OF_WEIGHTS, requiredArgs } from '../support/draw-arguments.js';
import { isLossError } from '../support/loss-error.js';
import { poison } from '../support/poison.js';
import { type Computed, packedBatch, paddedBatch, unpack } from '../support/subject.js';
import { assertArray, assertComputed, assertNumber } from '../support/tolerance.js';

const MULTIPLIED = [
  ...POLICY_LOSS_FN.names()
    .filter((name) => !OF_ROWS.includes(name) && !OF_WEIGHTS.includes(name))
    .map((name) => ['policy', name] as const),
  ...VALUE_LOSS_FN.names().map((name) => ['value', name] as const),
];

const TINY = { seed: 6, rows: 3, columns: 4, values: 'moderate', mask: 'random', packed: false } as const;
const weightsFrom = (seed: number) =>
  Float32Array.from(makeBatch({ ...TINY, seed, weights: true }).tokenWeights!);

const argumentsOf = (family: 'policy' | 'value', name: string) =>
  fc.sample(ARGUMENTS[family][name]!, { seed: 3, numRuns: 3 });

describe('token_weights', () => {
  for (const [family, name] of MULTIPLIED) {
    it(`${family} ${name}: the loss is the sum of those of single tokens, times their weights`, () => {
      const batch = paddedBatch(makeBatch(TINY));
      const weights = weightsFrom(6);
      for (const args of argumentsOf(family, name)) {
        const on = countable(family, name, args);
        const weighted = (tokenWeights: ArrayLike<number>) =>
          on.sync({ ...batch, tokenWeights: Float32Array.from(tokenWeights) });
        const plain = on.sync(batch);
        const ones = weighted(weights.map(() => 1));
        assertNumber(ones.loss, plain.loss, 'loss with weights of 1');
        assertArray(ones.grad!, plain.grad!, 'grad with weights of 1');
        const alone = Array.from(weights, (_, i) => weighted(weights.map((_, j) => Number(i === j))));
        const sum = (of: (result: Computed) => number) =>
          alone.reduce((total, each, i) => total + weights[i]! * of(each as Computed), 0);
        const size = sum(({ loss }) => Math.abs(loss));
        const result = weighted(weights);
        assertNumber(
          result.loss,
          sum(({ loss }) => loss),
          'loss',
          size,
        );
        assertArray(
          result.grad!,
          Array.from(weights, (_, i) => sum(({ grad }) => grad[i]!)),
          'grad',
        );
        for (const [key, value] of Object.entries(plain.metrics)) {
          const isLoss = Math.abs(value - plain.loss) < 1e-9 * Math.abs(value);
          // The losses of the rows of one kind.
          if (/^(usual|expert)\//.test(key)) continue;
          if (!isLoss) assert.equal(result.metrics[key], value, key);
          else if (result.metrics[key] !== value) assertNumber(result.metrics[key], result.loss, key, size);
        }
      }
    });

    it(`${family} ${name}: weights of 0 give exactly 0`, () => {
      const far = { ...makeBatch(TINY), actionMask: new Uint8Array(12).fill(1) } as Required<ReferenceBatch>;
      for (const column of ['oldLogprob', 'rolloutLogprob', 'proxLogprob', 'refLogprob'] as const)
        far[column] = Array.from(far.logprob, (x, i) => x + (i % 2 === 0 ? 200 : -200));
      for (const args of argumentsOf(family, name)) {
        const batch = { ...paddedBatch(far), tokenWeights: new Float32Array(12) };
        const { loss, grad } = countable(family, name, args).sync(batch);
        assert.deepEqual([loss, ...grad!].map(Math.abs), new Array(13).fill(0), JSON.stringify(args));
      }
    });
  }

  // The references of the other losses do not multiply all tokens' losses by weights.
  const WITHOUT_WEIGHTS = ['decoupled_ppo', 'clipped_pg', 'prime_rl', 'prime_rl_ipo', 'ref_kl', 'm2po'];
  WITHOUT_WEIGHTS.push('verl/bypass_mode');
  const isReferenced = (name: string) => !name.startsWith('trl/') && !WITHOUT_WEIGHTS.includes(name);
  /** Multiplies the losses of the tokens. The formula's metrics then repeat the weighted loss. */
  const withWeights =
    (formula: Formula): Formula =>
    (x, args) =>
      formula(x.corrected(x.batch.actionMask, x.leaf('tokenWeights')), args);

  for (const [family, name] of MULTIPLIED.filter(
    ([family, name]) => family === 'policy' && isReferenced(name),
  ))
    it(`policy ${name}: agrees with the reference`, () => {
      const formula = withWeights(formulas.policy[name]!);
      let compared = 0;
      fc.assert(
        fc.property(ARGUMENTS[family][name]!, three(batchSpec), (args, specs) => {
          const own = Object.fromEntries(
            Object.entries(args).filter(([key]) => !key.startsWith('rollout_')),
          ) as Args;
          for (const spec of specs) {
            const batch = makeBatch({ ...spec, weights: true });
            if (standsOnEdge(formula, own, batch)) continue;
            compared++;
            const lay = spec.packed ? packedBatch : paddedBatch;
            const hostile = poison(batch, Number.NaN, name === 'ppo');
            const { grad, ...computed } = countable(family, name, own).sync(lay(hostile));
            const { metrics: _, ...expected } = evaluator(formula, 'logprob')(own, batch);
            const laid = spec.packed ? unpack(batch, grad!) : grad!;
            assertComputed({ ...computed, grad: laid, metrics: {} }, { ...expected, metrics: {} });
          }
        }),
        { seed: 9, numRuns: 5 },
      );
      assert.ok(compared > 7, `compared only ${compared} batches`);
    });

  const batch = paddedBatch(makeBatch(TINY));
  const tokenWeights = weightsFrom(7);

  for (const name of OF_ROWS.filter((each) => !OF_WEIGHTS.includes(each)))
    it(`${name} refuses them`, () => {
      const refused = isLossError('ERR_INVALID_INPUT', new RegExp(`tokenWeights: .*a row of ${name}`));
      const pairs = paddedBatch(makeBatch({ ...TINY, rows: 6 }));
      const given = { ...pairs, tokenWeights: new Float32Array(24).fill(1) };
      const fn = POLICY_LOSS_FN.create(name, requiredArgs(POLICY_LOSS_FN.get(name).declaration));
      assert.throws(() => fn.computeSync(given), refused);
    });

  it('may be one per row', () => {
    const perRow = [0.5, 0, 2];
    const spread = Float32Array.from({ length: 12 }, (_, i) => perRow[Math.floor(i / 4)]!);
    for (const name of ['sft', 'ppo', 'trl/grpo', 'tinker/cross_entropy', 'verl/value']) {
      const made = LOSS_FN.create(name, name === 'ppo' ? { clip_range: 0.2 } : {});
      const fn = made as ReturnType<typeof POLICY_LOSS_FN.create>;
      assert.deepEqual(
        fn.computeSync({ ...batch, tokenWeights: perRow } as Batch, { grad: true }),
        fn.computeSync({ ...batch, tokenWeights: spread }, { grad: true }),
        name,
      );
    }
  });

  it('multiply the weights of a correction', () => {
    const correction = { rollout_is: 'token', rollout_is_threshold: 1.1, rollout_rs: 'token_k1' } as const;
    const all = { ...correction, rollout_rs_threshold: 1.1 };
    const { weights, keptMask } = CORRECTION_FN.create('verl/rollout_correction', all).computeSync({
      ...batch,
      tokenWeights,
    });
    const product = tokenWeights.map((w, i) => w * weights![i]!);
    for (const name of ['sft', 'trl/bnpo', 'verl/gpg']) {
      const corrected = POLICY_LOSS_FN.create(name, { correction: all });
      const { loss, grad } = corrected.computeSync({ ...batch, tokenWeights }, { grad: true });
      const plain = POLICY_LOSS_FN.create(name);
      const kept = { ...batch, actionMask: keptMask, tokenWeights: product };
      const expected = plain.computeSync(kept, { grad: true });
      assertNumber(loss, expected.loss, name);
      assertArray(grad!, expected.grad!, name);
    }
  });

  it('do not change the KL and entropy losses of an objective', () => {
    const objective = ALGORITHM_TYPE.get('ppo').objective({ kl_loss_fn: 'k3', entropy_loss_fn: 'default' });
    const plain = objective.computeSync(batch);
    const weighted = objective.computeSync({ ...batch, tokenWeights });
    const policy = objective.policyLossFn.computeSync({ ...batch, tokenWeights });
    assert.equal(weighted.metrics.kl_loss, plain.metrics.kl_loss);
    assert.equal(weighted.metrics.entropy_loss, plain.metrics.entropy_loss);
    assertNumber(
      weighted.loss - plain.loss,
      policy.loss - objective.policyLossFn.computeSync(batch).loss,
      'loss',
    );
  });

  it('are read by expressions that name them, and multiply the others', async () => {
    const given = { ...batch, tokenWeights };
    const named = lossFromExpression('-A*r*weights');
    const other = lossFromExpression('-A*r');
    const { loss, grad } = named.computeSync(given, { grad: true });
    const expected = other.computeSync(given, { grad: true });
    assertNumber(loss, expected.loss, 'loss');
    assertArray(grad!, expected.grad!, 'grad');
    assert.ok(named.selectKeys.includes('token_weights'));
    assert.ok(!other.selectKeys.includes('token_weights'));
    assert.throws(() => named.computeSync(batch), isLossError('ERR_MISSING_INPUT', /a weight per token/));
    const report = await checkLoss(named);
    assert.ok(report.ok, String(report));
  });

  it('are divided by the sum of their row if it is positive', () => {
    const fn = POLICY_LOSS_FN.create('tinker/cross_entropy', { reduction: 'mean' });
    const { grad } = fn.computeSync(
      { shape: [4, 2], logprob: new Float32Array(8), tokenWeights: [1, 3, -1, -3, 1, -1, 0, 0] },
      { grad: true },
    );
    assert.deepEqual(
      [...grad].map((g) => g + 0),
      [-0.25, -0.75, 1, 3, -1, 1, 0, 0],
    );
  });

  it('are 1 for losses that read them, if they are absent', () => {
    const ones = new Float32Array(16).fill(1);
    const batch = paddedBatch(makeBatch({ ...TINY, rows: 4 }));
    for (const name of OF_WEIGHTS) {
      const fn = POLICY_LOSS_FN.create(name);
      const { loss, grad } = fn.computeSync(batch, { grad: true });
      const expected = fn.computeSync({ ...batch, tokenWeights: ones }, { grad: true });
      assertNumber(loss, expected.loss, name);
      assertArray(grad!, expected.grad!, name);
    }
  });

  it('multiply the gradient with respect to logits', () => {
    const logits = Float32Array.from({ length: 12 * 5 }, (_, i) => Math.sin(3 * i));
    const given = { shape: [3, 4] as const, logits, targets: Array.from({ length: 12 }, (_, i) => i % 5) };
    const mask = { actionMask: batch.actionMask! };
    const compute = (weights: ArrayLike<number>) =>
      POLICY_LOSS_FN.create('sft').fromLogitsSync(
        { ...given, ...mask, tokenWeights: Float32Array.from(weights) },
        { gradLogits: true },
      ).gradLogits;
    const ones = compute(new Float32Array(12).fill(1));
    assertArray(
      compute(tokenWeights),
      Array.from(ones, (g, i) => g * tokenWeights[Math.floor(i / 5)]!),
      'gradLogits',
    );
  });
});
