/**
 * Tests objectives against the float64 reference for all combinations of functions, and against their three terms (policy
 * loss, KL loss, entropy loss) computed one by one. The matrix compares them with Trinity-RFT's results.
 */

import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type Batch, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import type { Args } from '../reference/index.js';
import {
  klStandsOnEdge,
  objectiveStandsOnEdge,
  type Parts,
  referenceObjective,
} from '../reference/objective.js';
import { camelCase, renamed } from '../support/batch-keys.js';
import { inHalf, laidOut, layOut, makeBatch, makeBatchOffEdges, rewardSpec } from '../support/draw.js';
import { ARGUMENTS, fitting } from '../support/draw-arguments.js';
import { modesOf } from '../support/functions.js';
import { algorithmCases, goldenBatch, referenceBatch } from '../support/golden.js';
import {
  assertObjective,
  assertSameObjective,
  configOf,
  EVERY_POLICY,
  objectiveOf,
  partsOf,
} from '../support/objective.js';
import { subject } from '../support/subject.js';
import { assertArray, assertNumber, assertSameArray } from '../support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

describe('golden cases of objectives', () => {
  it('agree with the reference of objectives', () => {
    for (const golden of algorithmCases) {
      const { loss_agg_mode, inputs, expected } = golden;
      const parts: Parts = {
        policy: { name: golden.policy_loss_fn, args: golden.policy_loss_fn_args },
        kl: { name: golden.kl_loss_fn, args: { kl_coef: golden.kl_coef, loss_agg_mode } },
        entropy: {
          name: golden.entropy_loss_fn,
          args: { entropy_coef: golden.entropy_coef, loss_agg_mode },
        },
      };
      const { loss, metrics, grad, gradEntropy } = referenceObjective(parts, referenceBatch(inputs));
      assertNumber(loss, expected.loss, golden.id);
      assert.deepEqual(Object.keys(metrics).sort(), Object.keys(expected.metrics).sort());
      for (const [name, value] of Object.entries(expected.metrics)) assertNumber(metrics[name], value, name);
      assertArray(grad, expected.grad_logprob.data, golden.id);
      assertArray(gradEntropy, expected.grad_entropy.data, golden.id);
    }
  });

  for (const golden of algorithmCases) {
    const { id, algorithm, inputs } = golden;
    const config = {
      policy_loss_fn: golden.policy_loss_fn,
      policy_loss_fn_args: golden.policy_loss_fn_args,
      kl_loss_fn: golden.kl_loss_fn,
      kl_loss_fn_args: { kl_coef: golden.kl_coef },
      entropy_loss_fn: golden.entropy_loss_fn,
      entropy_loss_fn_args: { entropy_coef: golden.entropy_coef },
      loss_agg_mode: golden.loss_agg_mode,
    };
    it(id, () => {
      const objective = objectiveOf(algorithm, config);
      const result = objective.computeSync(goldenBatch(inputs), { grad: true });
      // The configuration names the algorithm's default functions, so without these names the result is the same.
      const { policy_loss_fn: _p, kl_loss_fn: _k, entropy_loss_fn: _e, ...rest } = config;
      assertSameObjective(
        objectiveOf(algorithm, rest).computeSync(goldenBatch(inputs), { grad: true }),
        result,
      );
      assertSameObjective(
        objectiveOf(algorithm, renamed(config, camelCase) as Args).computeSync(goldenBatch(inputs), {
          grad: true,
        }),
        result,
      );
    });
  }
});

describe('cross-validation: objectives', () => {
  it('covers every function of the registries', () => {
    assert.deepEqual([...POLICY_LOSS_FN.names()].sort(), [...EVERY_POLICY, 'oat/bnf'].sort());
    assert.deepEqual([...KL_FN.names()].sort(), Object.keys(ARGUMENTS.kl).sort());
    assert.deepEqual([...ENTROPY_LOSS_FN.names()].sort(), Object.keys(ARGUMENTS.entropy).sort());
  });

  /** Computes the KL loss and the entropy loss one by one, with the library's own functions. */
  function oneByOne({ kl, entropy }: Parts, mode: string, batch: Batch) {
    const lossAggMode = mode as 'token-mean';
    const { loss_agg_mode: _k, ...klArgs } = kl.args;
    const { loss_agg_mode: _e, ...entropyArgs } = entropy.args;
    return {
      kl: KL_FN.create(kl.name, klArgs).calculateKlLossSync(batch, { lossAggMode, grad: true }),
      entropy: ENTROPY_LOSS_FN.create(entropy.name, entropyArgs).computeSync(batch, {
        lossAggMode,
        grad: true,
      }),
    };
  }

  const policyOf = ({ policy }: Parts) => POLICY_LOSS_FN.create(policy.name, policy.args);

  function agrees(
    parts: Parts,
    mode: string,
    config: Args,
    batch: RewardedBatch,
    laid = layOut(batch),
    policyFn = policyOf(parts),
  ) {
    const result = objectiveOf('ppo', config).computeSync(laid, { grad: true });
    const expected = referenceObjective(parts, batch);
    assertObjective(batch, result, expected);

    const policy = policyFn.computeSync(laid, { grad: true, gradEntropy: true });
    const { kl, entropy } = oneByOne(parts, mode, laid);
    const { magnitude } = expected;
    assertNumber(result.loss, policy.loss - entropy.loss + kl.loss, 'loss', magnitude.loss);
    const metrics = { ...policy.metrics, ...entropy.metrics, ...kl.metrics } as Record<string, number>;
    assert.deepEqual(Object.keys(result.metrics).sort(), Object.keys(metrics).sort());
    for (const [name, value] of Object.entries(metrics))
      assertNumber(result.metrics[name], value, name, magnitude.metrics[name]);
    const sum = Float64Array.from(policy.grad!, (g, i) => g + kl.grad![i]!);
    assertArray(result.grad!, sum, 'grad', undefined, expected.gradMagnitude);
    if (result.gradEntropy)
      assertArray(
        result.gradEntropy,
        entropy.grad!.map((g, i) => policy.gradEntropy![i]! - g),
        'gradEntropy',
      );
  }

  const KLS = KL_FN.names();
  const ENTROPIES = ENTROPY_LOSS_FN.names();

  for (const [p, policy] of EVERY_POLICY.entries())
    it(`${policy} with every two of a KL loss, an entropy loss and an aggregation`, () => {
      const [args] = fc.sample(ARGUMENTS.policy[policy]!, { seed: SEED, numRuns: 1 }) as [Args];
      const modes = modesOf('policy', policy, args);
      let [drawn, compared] = [0, 0];
      for (const [m, loss_agg_mode] of modes.entries()) {
        const named = 'loss_agg_mode' in args ? { ...args, loss_agg_mode } : args;
        const on = subject('policy', policy, named);
        const batches = [false, true].map((packed) => {
          const spec = {
            seed: SEED + m,
            rows: 5,
            columns: 9,
            values: 'moderate',
            mask: 'random',
            packed,
          } as const;
          return makeBatchOffEdges(fitting(policy, args, spec), on);
        });
        const policyFn = POLICY_LOSS_FN.create(policy, named);
        for (const [k, kl] of KLS.entries())
          for (const [e, entropy] of ENTROPIES.entries()) {
            // A third of the combinations is enough for every two to meet. Each policy loss takes another third than the
            // one before.
            if (modes.length >= ENTROPIES.length && (k + e + m + p) % ENTROPIES.length > 0) continue;
            drawn++;
            const parts: Parts = {
              policy: { name: policy, args: named },
              kl: { name: kl, args: { kl_coef: 0.3, loss_agg_mode } },
              entropy: { name: entropy, args: { entropy_coef: 0.7, loss_agg_mode } },
            };
            const batch = batches[drawn % 2]!;
            if (klStandsOnEdge(parts, batch)) continue;
            agrees(
              parts,
              loss_agg_mode,
              configOf(parts, loss_agg_mode, false),
              batch,
              laidOut(batch),
              policyFn,
            );
            compared++;
          }
      }
      assert.ok(compared >= 0.6 * drawn, `only ${compared} of ${drawn} batches are off every threshold`);
    });

  it('random functions, arguments and batches', () => {
    fc.assert(
      fc.property(partsOf(EVERY_POLICY), rewardSpec, ({ parts, mode, config }, spec) => {
        const batch = makeBatch(fitting(parts.policy.name, parts.policy.args, spec));
        fc.pre(!objectiveStandsOnEdge(parts, batch));
        agrees(parts, mode, config, batch);
      }),
      { numRuns: 250, seed: SEED },
    );
  });

  it('columns of 16 bits', () => {
    fc.assert(
      fc.property(
        partsOf(EVERY_POLICY),
        rewardSpec,
        fc.constantFrom('float16', 'bfloat16'),
        ({ parts, mode, config }, spec, dtype) => {
          const { rounded, laid } = inHalf(
            makeBatch(fitting(parts.policy.name, parts.policy.args, spec)),
            dtype,
          );
          fc.pre(!objectiveStandsOnEdge(parts, rounded));
          agrees(parts, mode, config, rounded, laid);
        },
      ),
      { numRuns: 80, seed: SEED },
    );
  });

  it('compute equals computeSync, and gradients are written into given arrays, or not computed unless requested', async () => {
    for (const { parts, config } of fc.sample(partsOf(EVERY_POLICY), { seed: SEED, numRuns: 40 })) {
      const spec = {
        seed: 5,
        rows: 6,
        columns: 40,
        values: 'moderate',
        mask: 'random',
        packed: false,
      } as const;
      const batch = layOut(makeBatch(spec));
      const objective = objectiveOf('ppo', config);
      const result = objective.computeSync(batch, { grad: true });
      assertSameObjective(await objective.compute(batch, { grad: true }), result);

      for (const none of [
        objective.computeSync(batch),
        objective.computeSync(batch, { grad: false }),
        await objective.compute(batch),
      ]) {
        assert.ok(!none.grad && !none.gradEntropy);
        assertNumber(none.loss, result.loss, 'loss');
        assert.deepEqual(Object.keys(none.metrics), Object.keys(result.metrics));
        for (const [name, value] of Object.entries(result.metrics))
          assertNumber(none.metrics[name], value, name);
      }

      const grad = new Float32Array(240).fill(7);
      const gradEntropy = new Float32Array(240).fill(7);
      const into = objective.computeSync(batch, { grad, gradEntropy });
      assert.equal(into.grad, grad);
      assert.equal(into.gradEntropy, gradEntropy);
      assertSameArray(grad, result.grad!, 'grad');
      assertSameArray(gradEntropy, result.gradEntropy ?? new Float32Array(240), 'gradEntropy');
      assert.equal(parts.policy.name, config.policy_loss_fn);
    }
  });
});
