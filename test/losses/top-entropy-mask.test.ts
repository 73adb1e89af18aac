/** Tests the mask `top_entropy_quantile`, which every policy loss accepts. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { defineLoss, lossFromExpression, POLICY_LOSS_FN } from '../../lib/index.js';
import { withTopEntropy } from '../reference/frameworks/masks.js';
import { type Args, evaluator, formulas, standsOnEdge } from '../reference/index.js';
import { reported } from '../reference/verl.js';
import { batchSpec, makeBatch } from '../support/draw.js';
import { ARGUMENTS, fitting, OF_ROWS, OF_WEIGHTS } from '../support/draw-arguments.js';
import { isLossError } from '../support/loss-error.js';
import { poison } from '../support/poison.js';
import { type Computed, packedBatch, paddedBatch, unpack, withState } from '../support/subject.js';
import { assertArray, assertComputed, assertNumber } from '../support/tolerance.js';

// The references of these losses do not multiply all tokens' losses by weights.
const WITHOUT_WEIGHTS = [
  'decoupled_ppo',
  'clipped_pg',
  'prime_rl',
  'prime_rl_ipo',
  'ref_kl',
  'm2po',
  'verl/bypass_mode',
];
// Losses that read token_weights themselves are refused.
const isComparable = (name: string) =>
  OF_ROWS.includes(name) || !(name.startsWith('trl/') || [...WITHOUT_WEIGHTS, ...OF_WEIGHTS].includes(name));

const withoutCorrection = (args: Args): Args =>
  Object.fromEntries(Object.entries(args).filter(([name]) => !name.startsWith('rollout_')));

describe('the mask top_entropy_quantile', () => {
  for (const name of Object.keys(formulas.policy).filter(isComparable))
    it(`gives ${name} the tokens with the highest entropies, as in the reference`, () => {
      let compared = 0;
      const shares = fc.constantFrom(0, 0.2, 0.5, 0.8);
      fc.assert(
        fc.property(ARGUMENTS.policy[name]!, shares, batchSpec, (args, share, spec) => {
          const own = withoutCorrection(args);
          const { attentionMask: _, ...batch } = makeBatch(fitting(name, own, spec));
          const formula = withTopEntropy(formulas.policy[name]!, share, OF_ROWS.includes(name));
          if (standsOnEdge(formula, own, batch)) return;
          compared++;
          const loss = POLICY_LOSS_FN.create(name, { ...own, masks: { top_entropy_quantile: share } });
          const lay = spec.packed ? packedBatch : paddedBatch;
          const computed = loss.computeSync(lay(poison(batch, Number.NaN, name === 'ppo')), {
            grad: true,
          }) as Computed;
          const grad = spec.packed ? unpack(batch, computed.grad) : computed.grad;
          const expected = evaluator(formula, 'logprob')(own, batch);
          assertComputed(
            { ...withState(computed), grad },
            { ...expected, metrics: reported(expected.metrics, own) },
          );
        }),
        { seed: 6, numRuns: 12 },
      );
      assert.ok(compared > 4, `compared only ${compared} batches`);
    });

  const drawn = makeBatch({
    seed: 4,
    rows: 7,
    columns: 30,
    values: 'moderate',
    mask: 'random',
    packed: false,
  });
  const batch = paddedBatch(drawn);
  const masks = { topEntropyQuantile: 0.3 };

  for (const name of ['trl/grpo', 'trl/bnpo', 'trl/dapo', 'trl/cispo', 'trl/sapo', 'trl/gmpo'])
    it(`does the same as the option of ${name}`, () => {
      const perRow = { ...batch, advantages: Array.from(drawn.advantages!).slice(0, drawn.rows) };
      const own = POLICY_LOSS_FN.create(name, masks).computeSync(perRow, { grad: true });
      const { loss, grad } = POLICY_LOSS_FN.create(name, { masks }).computeSync(perRow, { grad: true });
      assertNumber(loss, own.loss, 'loss');
      assertArray(grad!, own.grad!, 'grad');
      assert.notDeepEqual(grad, POLICY_LOSS_FN.create(name).computeSync(perRow, { grad: true }).grad);
    });

  for (const name of WITHOUT_WEIGHTS)
    it(`leaves the gradients of the other tokens of ${name} as they are`, () => {
      const plain = POLICY_LOSS_FN.create(name).computeSync(batch, { grad: true });
      const masked = POLICY_LOSS_FN.create(name, { masks }).computeSync(batch, { grad: true });
      const least = threshold(0.3);
      const expected = plain.grad!.map((g, i) => (drawn.entropy![i]! >= least ? g : 0));
      assertArray(masked.grad!, expected, 'grad');
      assert.ok(expected.some((g) => g !== 0));
    });

  // The quantile of the unmasked tokens' entropies at 1 − share.
  function threshold(share: number): number {
    const sorted = Array.from(drawn.entropy!)
      .filter((_, i) => drawn.actionMask[i])
      .sort((a, b) => a - b);
    const rank = (1 - share) * (sorted.length - 1);
    const low = sorted[Math.floor(rank)]!;
    return low + (sorted[Math.ceil(rank)]! - low) * (rank % 1);
  }

  const kept = (
    entropy: readonly number[],
    topEntropyQuantile: number,
    actionMask = entropy.map(() => 1),
  ) => {
    const column = (x: number) => Float32Array.from(entropy, () => x);
    const loss = POLICY_LOSS_FN.create('sft', { masks: { topEntropyQuantile } });
    const { grad, metrics } = loss.computeSync(
      {
        shape: [1, entropy.length],
        logprob: column(-1),
        entropy: Float32Array.from(entropy),
        actionMask: Uint8Array.from(actionMask),
      },
      { grad: true },
    );
    return {
      tokens: Array.from(grad!, (g) => (g === 0 ? 0 : 1)),
      metrics: metrics as Record<string, number>,
    };
  };

  it('interpolates between entropies, and keeps those that are equal to the quantile', () => {
    // The quantiles are 2.5, 2.8, 4 and 1.
    assert.deepEqual(kept([1, 2, 3, 4], 0.5).tokens, [0, 0, 1, 1]);
    assert.deepEqual(kept([3, 1, 4, 2], 0.4).tokens, [1, 0, 1, 0]);
    assert.deepEqual(kept([3, 1, 4, 2], 0).tokens, [0, 0, 1, 0]);
    assert.deepEqual(kept([1, 2, 1, 4], 0.7).tokens, [1, 1, 1, 1]);
    // The ranks 1 and 2 are both 2.
    assert.deepEqual(kept([2, 1, 2, 2, 5], 0.6).tokens, [1, 0, 1, 1, 1]);
    assertNumber(kept([2, 1, 2, 2, 5], 0.6).metrics['mask/low_entropy_fraction'], 0.2, 'fraction');
  });

  it('ranks unmasked tokens only, of which there may be one or none', () => {
    assert.deepEqual(kept([9, 1, 2, Number.NaN], 0.5, [0, 1, 1, 0]).tokens, [0, 0, 1, 0]);
    assert.deepEqual(kept([9, 1], 0.5, [0, 1]).tokens, [0, 1]);
    const none = kept([9, 1], 0.5, [0, 0]);
    assert.deepEqual(none.tokens, [0, 0]);
    assert.equal(none.metrics['mask/low_entropy_fraction'], 0);
  });

  it('keeps all tokens with the quantile 1, for which no entropies are needed', () => {
    const fn = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2, masks: { topEntropyQuantile: 1 } });
    const { entropy: _, ...without } = batch;
    const plain = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2 });
    assert.deepEqual(fn.computeSync(without, { grad: true }), plain.computeSync(without, { grad: true }));
  });

  it('is the same for defined and written losses', () => {
    const Defined = defineLoss('defined', { loss: ({ A, r }) => A.neg().mul(r) });
    const wanted = POLICY_LOSS_FN.create('importance_sampling', { masks }).computeSync(batch, { grad: true });
    for (const fn of [new Defined({ masks }), lossFromExpression('-A*r', { masks })])
      assertComputed(fn.computeSync(batch, { grad: true }) as Computed, {
        ...(wanted as Computed),
        metrics: fractionOf(wanted.metrics),
      });
  });

  const NAME = 'mask/low_entropy_fraction';
  const fractionOf = (metrics: Partial<Record<string, number>>) => ({ [NAME]: metrics[NAME]! });

  it('combines with the other masks, whose tokens it ranks too', () => {
    const further = { delta: 1.05, offPolicyMaskThreshold: 0.001, overlongLength: 18 };
    const grad = (given: object) =>
      POLICY_LOSS_FN.create('importance_sampling', { masks: given, loss_agg_mode: 'token-sum' }).computeSync(
        batch,
        { grad: true },
      ).grad!;
    const [both, others, alone] = [grad({ ...masks, ...further }), grad(further), grad(masks)];
    assertArray(
      both,
      others.map((g, i) => (alone[i] === 0 ? 0 : g)),
      'grad',
    );
    assert.ok(both.some((g) => g !== 0));
  });

  it('needs the entropies and the whole batch', () => {
    const fn = POLICY_LOSS_FN.create('ppo', { clip_range: 0.2, masks });
    assert.ok(fn.selectKeys.includes('entropy'));
    const { entropy: _, ...lacking } = batch;
    assert.throws(
      () => fn.computeSync(lacking as never),
      isLossError('ERR_MISSING_INPUT', /entropy: expected an entropy per token/),
    );
    assert.throws(
      () => fn.computeSync(batch, { part: true }),
      isLossError('ERR_INVALID_OPTION', /the whole batch in one call/),
    );
    assert.throws(
      () => fn.computeSync(batch, { normalizer: fn.countSync(batch) }),
      isLossError('ERR_INVALID_OPTION', /the whole batch in one call/),
    );
    assert.throws(
      () => POLICY_LOSS_FN.create('sft', { masks: { top_entropy_quantile: 1.5 } }),
      isLossError('ERR_INVALID_OPTION', /masks: top_entropy_quantile: expected a number from 0 to 1/),
    );
  });
});
