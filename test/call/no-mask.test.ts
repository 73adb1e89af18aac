/** Tests batches without a mask in the calls that the matrix does not make. All their tokens count. */
import assert from 'node:assert/strict';
import { ADVANTAGE_FN, ALGORITHM_TYPE, checkLoss, KL_FN, POLICY_LOSS_FN } from '../../lib/index.js';

const shape = [2, 2] as const;
const ONES = { actionMask: [1, 1, 1, 1] };
const COLUMNS = {
  oldLogprob: [-1, -2, -1, -0.5],
  refLogprob: [-1, -1, -2, -1],
  rewards: [1, 0],
  groupIds: [0, 0],
};
const LOGITS = { logits: Float32Array.from({ length: 12 }, (_, i) => Math.sin(i)), targets: [0, 1, 2, 1] };
const ppo = POLICY_LOSS_FN.create('ppo');

describe('batches without a mask', () => {
  it('give logits the same losses as a mask of ones', () => {
    const batch = { shape, ...COLUMNS, ...LOGITS, advantages: [1, -1] };
    const wanted = { gradLogits: true } as const;
    assert.deepEqual(ppo.fromLogitsSync(batch, wanted), ppo.fromLogitsSync({ ...batch, ...ONES }, wanted));
  });

  it('have the KL penalty subtracted, from their rewards too', () => {
    const scored = { shape, ...COLUMNS, tokenLevelScores: [1, 2, 3, 4] };
    const penalise = KL_FN.create('k2');
    assert.deepEqual(
      penalise.applyKlPenaltyToRewardSync(scored),
      penalise.applyKlPenaltyToRewardSync({ ...scored, ...ONES }),
    );
    const objective = ALGORITHM_TYPE.get('reinforceplusplus').objective({ kl_penalty_fn: 'k2' });
    const rewarded = { shape, ...COLUMNS, logprob: [-1, -1.5, -1, -1] };
    assert.deepEqual(objective.computeSync(rewarded), objective.computeSync({ ...rewarded, ...ONES }));
  });

  it('get their shape from any nested array', () => {
    const nested = [
      [-1, -2],
      [-3, -1],
    ];
    assert.deepEqual(ppo.countSync({ logprob: nested }), ppo.countSync({ shape, ...ONES }));
    const { advantages } = ADVANTAGE_FN.create('grpo').computeSync({ ...COLUMNS, logprob: nested });
    assert.equal(advantages.length, 4);
  });

  it('pass checkLoss()', async () => {
    const report = await checkLoss(ppo, {
      shape,
      ...COLUMNS,
      logprob: [-1, -1.5, -1, -1],
      advantages: [1, -1],
    });
    assert.ok(report.ok, String(report));
  });
});
