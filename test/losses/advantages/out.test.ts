/** Tests the option `out` of advantage functions: results are written to the caller's arrays, which are checked first. */
import assert from 'node:assert/strict';
import { type AdvantageResult, LossError } from '../../../lib/index.js';
import {
  assertSameAdvantages,
  create,
  NAMES,
  OF_ROW_REWARDS,
  WITH_RETURNS,
} from '../../support/advantages.js';
import { layOut, makeRewarded, type RewardSpec } from '../../support/draw.js';

const SPEC: RewardSpec = {
  seed: 5,
  rows: 6,
  columns: 40,
  values: 'moderate',
  mask: 'emptyrows',
  packed: false,
  groups: 'some',
  rewards: 'normal',
  perToken: true,
};
const TOKENS = SPEC.rows * SPEC.columns;
const batchOf = (name: string) => layOut(makeRewarded({ ...SPEC, perToken: !OF_ROW_REWARDS.includes(name) }));
const full = () => new Float32Array(TOKENS).fill(Number.NaN);

describe("advantages in the caller's arrays", () => {
  for (const name of NAMES)
    it(name, async () => {
      const fn = create(name);
      const batch = batchOf(name);
      const expected = fn.computeSync(batch);
      const hasReturns = WITH_RETURNS.includes(name);
      const check = (result: AdvantageResult, { advantages, returns }: ReturnType<typeof outputs>) => {
        assert.equal(result.advantages, advantages);
        assert.equal(result.returns, returns ?? advantages);
        assertSameAdvantages(result, expected);
      };
      const outputs = () => ({ advantages: full(), ...(hasReturns && { returns: full() }) });
      const [out, sync] = [outputs(), outputs()];
      check(fn.computeSync(batch, { out: sync }), sync);
      const promise = fn.compute(batch, { out });
      // The call has read the option already.
      const { advantages, returns } = out;
      out.advantages = full();
      check(await promise, { advantages, ...(returns && { returns }) });
      assertSameAdvantages(fn.computeSync(batch, { out: {} }), expected);
    });

  it('one array alone', () => {
    const fn = create('ppo');
    const batch = batchOf('ppo');
    const expected = fn.computeSync(batch);
    for (const key of ['advantages', 'returns'] as const) {
      const array = full();
      const result = fn.computeSync(batch, { out: { [key]: array } });
      assert.equal(result[key], array);
      assertSameAdvantages(result, expected);
    }
  });

  const batch = batchOf('ppo');
  const detached = full();
  structuredClone(detached, { transfer: [detached.buffer] });
  const Resizable = ArrayBuffer as unknown as new (n: number, o: { maxByteLength: number }) => ArrayBuffer;
  const shared = new Float32Array(TOKENS + 1);
  const wrong: [what: string, name: string, out: unknown, error: Partial<LossError>][] = [
    ['a number', 'ppo', 5, { code: 'ERR_INVALID_INPUT', key: 'out' }],
    ['null', 'ppo', null, { code: 'ERR_INVALID_INPUT', key: 'out' }],
    ['another type', 'ppo', { advantages: new Float64Array(TOKENS) }, { code: 'ERR_INVALID_INPUT' }],
    [
      'another length',
      'ppo',
      { returns: new Float32Array(3) },
      { code: 'ERR_SHAPE_MISMATCH', key: 'out.returns' },
    ],
    [
      'a detached array',
      'ppo',
      { advantages: detached },
      { code: 'ERR_INVALID_INPUT', key: 'out.advantages' },
    ],
    [
      'a resizable array',
      'ppo',
      { advantages: new Float32Array(new Resizable(4 * TOKENS, { maxByteLength: 8 * TOKENS })) },
      { code: 'ERR_INVALID_INPUT', key: 'out.advantages' },
    ],
    [
      'arrays that overlap',
      'ppo',
      { advantages: shared.subarray(1), returns: shared.subarray(0, -1) },
      { code: 'ERR_INVALID_INPUT', key: 'out.returns' },
    ],
    [
      'a column of the batch',
      'ppo',
      { advantages: batch.values },
      { code: 'ERR_INVALID_INPUT', key: 'out.advantages' },
    ],
    [
      'returns of a function that has none of its own',
      'rloo',
      { returns: full() },
      { code: 'ERR_INVALID_INPUT', key: 'out.returns' },
    ],
  ];
  for (const [what, name, out, error] of wrong)
    it(`refuses ${what}`, async () => {
      const fn = create(name);
      const options = { out: out as { advantages: Float32Array } };
      const isRight = (thrown: unknown) => {
        assert.ok(thrown instanceof LossError);
        for (const [key, value] of Object.entries(error)) assert.equal(thrown[key as 'code'], value);
        return true;
      };
      assert.throws(() => fn.computeSync(batch, options), isRight);
      await assert.rejects(fn.compute(batch, options), isRight);
    });
});
