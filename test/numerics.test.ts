/**
 * docs/numerics.md: every function of the registries is in it, no measured error exceeds the bounds that it states, and
 * what it says of inputs beyond a function's range is so.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { ADVANTAGE_FN, type Batch, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN } from '../lib/index.js';
import { BOUNDS, everyFunction, RANGES } from '../scripts/numerics/measure.js';
import { WORDS } from '../scripts/numerics/ranges.js';

const TOKENS = 1000;
const text = readFileSync(new URL('../docs/numerics.md', import.meta.url), 'utf8');
const REGISTRIES = { policy: POLICY_LOSS_FN, kl: KL_FN, entropy: ENTROPY_LOSS_FN, advantage: ADVANTAGE_FN };
const TITLES = {
  policy: 'Policy losses',
  kl: 'KL estimators',
  entropy: 'Entropy losses',
  advantage: 'Advantage functions',
};
const section = (title: string) => text.split(`## ${title}\n`)[1]!.split('\n## ')[0]!;

describe('numerics', () => {
  for (const [family, registry] of Object.entries(REGISTRIES) as [
    keyof typeof TITLES,
    typeof POLICY_LOSS_FN,
  ][])
    it(`${family}: every function is in the tables, and none beside`, () => {
      const names = registry.names();
      const said = Object.keys(WORDS).filter((key) => key.startsWith(`${family} `));
      assert.deepEqual(said.map((key) => key.slice(family.length + 1)).sort(), [...names].sort());
      const rows = [...section(TITLES[family]).matchAll(/^\| `(\w+)`/gm)].map(([, name]) => name!);
      assert.deepEqual([...new Set(rows)].sort(), [...names].sort());
      // Once among the ranges, and once at least among the errors.
      for (const name of names) assert.ok(rows.filter((row) => row === name).length >= 2, name);
    });

  it('states the bounds', () => {
    const { near, wide } = BOUNDS;
    const words = text.replaceAll(/\s+/g, ' ');
    assert.ok(words.includes(`near ${near.value} ulp of a value and ${near.grad} of a gradient`));
    assert.ok(
      words.includes(`wide ${wide.value} and ${wide.grad}, and of a sum ${near.sum} and ${wide.sum}`),
    );
  });

  for (const { family, name, args, measure } of everyFunction())
    it(`${family} ${name} ${JSON.stringify(args)}: errors are within bounds`, () => {
      const ranges = measure(TOKENS);
      for (const range of RANGES)
        for (const [what, errors] of Object.entries(ranges[range])) {
          const bound = BOUNDS[range][what as 'value' | 'grad' | 'sum'];
          assert.ok(errors.most <= bound, `${range} ${what}: ${errors.most} ulp`);
        }
    });

  describe('beyond the range', () => {
    // Logprobs of −1, a hundred above (the ratio) and below (the reference) the others.
    const far = (advantage: number): Batch => ({
      shape: [2, 1],
      logprob: Float32Array.of(-1, -1),
      oldLogprob: Float32Array.of(-101, -101),
      refLogprob: Float32Array.of(99, 99),
      advantages: Float32Array.of(advantage, advantage),
      entropy: Float32Array.of(1, 1),
      actionMask: Uint8Array.of(1, 1),
      expertMask: Uint8Array.of(0, 1),
      step: 1,
    });
    for (const family of ['policy', 'kl', 'entropy'] as const)
      for (const name of REGISTRIES[family].names())
        it(`${family} ${name} ends as it says`, () => {
          const { finite } = WORDS[`${family} ${name}`]!;
          for (const [sign, advantage] of [
            ['positive', 1],
            ['negative', -1],
          ] as const) {
            const { loss, grad } =
              family === 'kl'
                ? KL_FN.create(name, { kl_coef: 1 }).calculateKlLossSync(far(advantage), { grad: true })
                : REGISTRIES[family].create(name).computeSync(far(advantage), { grad: true });
            assert.equal(Number.isFinite(loss), finite[sign], `${sign}: ${loss}`);
            assert.equal(grad!.every(Number.isFinite), finite[sign], `${sign}: ${grad}`);
          }
        });

    it('saturates where it is clipped, and has no gradient there', () => {
      for (const name of ['ppo', 'importance_sampling']) {
        const at = (old: number) =>
          POLICY_LOSS_FN.create(name).computeSync(
            { ...far(-1), oldLogprob: Float32Array.of(old, old) },
            { grad: true },
          );
        assert.equal(at(-101).loss, at(-31).loss);
        assert.ok(at(-101).grad!.every((slope) => slope === 0));
      }
      const clipped = KL_FN.create('low_var_kl', { kl_coef: 1 }).calculateKlLossSync(far(1), { grad: true });
      assert.ok(Math.abs(clipped.loss - 10) < 1e-6);
      assert.ok(clipped.grad!.every((slope) => slope === 0));
    });

    it('overflows to Infinity where an exponential does', () => {
      const weighted = POLICY_LOSS_FN.create('rec', { weight: 'importance_sampling' });
      assert.equal(weighted.computeSync(far(1)).loss, Number.POSITIVE_INFINITY);
      assert.equal(POLICY_LOSS_FN.create('gspo').computeSync(far(-1)).loss, Number.POSITIVE_INFINITY);
      assert.equal(KL_FN.create('k3').calculateKlLossSync(far(1)).loss, Number.POSITIVE_INFINITY);
      for (const name of ['topr', 'sapo'])
        assert.equal(
          POLICY_LOSS_FN.create(name).computeSync(far(1)).metrics.avg_ratio,
          Number.POSITIVE_INFINITY,
        );
      const never = { ...far(1), oldLogprob: Float32Array.of(119, 119) };
      assert.ok(Number.isNaN(KL_FN.create('corrected_k3').calculateKlLossSync(never).loss));
    });

    it('is 0 where an exponential is below the smallest normal number', () => {
      const unlikely = { ...far(1), logprob: Float32Array.of(-88, -88) };
      for (const name of ['sft_is', 'sft_phi'])
        assert.equal(POLICY_LOSS_FN.create(name).computeSync(unlikely).loss + 0, 0);
    });

    it('is an error where rewards are not finite', () => {
      const rows = { rewards: [1, Number.NaN], groupIds: [1, 1], runIds: [1, 2], rewardBaselines: [0, 0] };
      for (const name of ADVANTAGE_FN.names()) {
        if (!WORDS[`advantage ${name}`]!.outside.includes('ERR_INVALID_INPUT')) continue;
        const call = () =>
          ADVANTAGE_FN.create(name).computeSync({ ...far(1), ...rows, values: new Float32Array(2) });
        assert.throws(call, { code: 'ERR_INVALID_INPUT' }, name);
      }
    });
  });
});
