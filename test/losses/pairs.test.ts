/** How losses find the pairs of rows that they compare, and what else they take of a batch besides token columns. */
import assert from 'node:assert/strict';
import {
  ALGORITHM_TYPE,
  type Batch,
  LOSS_FN,
  logprobsBackwardSync,
  logprobsSync,
  POLICY_LOSS_FN,
  TRLBCOLossFn,
  TRLDPOLossFn,
  TRLKTOLossFn,
  TRLORPOLossFn,
} from '../../lib/index.js';
import { takeRows } from '../reference/objective.js';
import { makeBatch } from '../support/draw.js';
import { readsPairs, requiredArgs } from '../support/draw-arguments.js';
import { isLossError } from '../support/loss-error.js';
import { paddedBatch } from '../support/subject.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const SPEC = { seed: 11, rows: 6, columns: 9, values: 'moderate', mask: 'random', packed: false } as const;
const drawn = makeBatch(SPEC);
/** The rows of three pairs in another order. Each chosen row is still before its rejected one. */
const ORDER = [2, 0, 3, 4, 1, 5];
const IDS = ORDER.map((row) => `pair ${Math.floor(row / 2)}`);

const inOrder = paddedBatch(drawn);
const mixed = { ...paddedBatch(takeRows(drawn, ORDER)), pairIds: IDS } as Batch;

const LOSSES = LOSS_FN.names().filter((name) => readsPairs(name));

interface Computed {
  loss: number;
  metrics: Record<string, number>;
  grad?: Float32Array;
  gradRewards?: Float32Array;
}

function compute(name: string, batch: Batch): Computed {
  const args = {
    ...requiredArgs(LOSS_FN.get(name).declaration),
    ...(name === 'trl/tpo' && { tpo_alpha: 0 }),
  };
  return LOSS_FN.create(name, args).computeSync(batch, { grad: true }) as Computed;
}

describe('pairs of rows', () => {
  for (const name of LOSSES)
    it(`${name} finds them by pair_ids`, () => {
      const expected = compute(name, inOrder as Batch);
      const { loss, metrics, grad, gradRewards } = compute(name, mixed);
      assertNumber(loss, expected.loss, 'loss');
      for (const [metric, value] of Object.entries(expected.metrics))
        assertNumber(metrics[metric], value, metric);
      const columns = gradRewards ? 1 : SPEC.columns;
      const wanted = (gradRewards ? expected.gradRewards : expected.grad)!;
      const moved = ORDER.flatMap((row) => Array.from(wanted.subarray(row * columns, (row + 1) * columns)));
      assertArray((gradRewards ?? grad)!, moved, 'grad');
    });

  it('number their margins in the order of their first rows', () => {
    const margin = [0.1, 0.2, 0.3];
    const loss = LOSS_FN.create('openrlhf/reward');
    const rewards = Float64Array.from(drawn.rewards!);
    const expected = loss.computeSync({ rewards, margin });
    const found = loss.computeSync({
      rewards: ORDER.map((row) => rewards[row]!),
      // The pairs begin with rows 0 (pair 1), 1 (pair 0) and 3 (pair 2).
      margin: [0.2, 0.1, 0.3],
      pair_ids: IDS,
    } as Batch);
    assertNumber(found.loss, expected.loss, 'loss');
  });

  it('have two rows each', () => {
    for (const [pairIds, count] of [
      [['a', 'a', 'b', 'b', 'b', 'c'], /2 rows with the id 'b'.*got 3/],
      [[1, 1, 2, 2, 3, 4], /2 rows with the id 3.*got 1/],
    ] as const)
      for (const name of ['dpo', 'trl/dpo', 'oat/reward'])
        assert.throws(
          () => compute(name, { ...inOrder, pairIds } as unknown as Batch),
          isLossError('ERR_INVALID_INPUT', count),
          name,
        );
    const odd = paddedBatch(takeRows(drawn, [0, 1, 2])) as Batch;
    assert.throws(() => compute('trl/dpo', odd), isLossError('ERR_SHAPE_MISMATCH', /even number of rows/));
  });

  it('name the input that has an odd number of rows', () => {
    const named = (key: string) => isLossError('ERR_SHAPE_MISMATCH', new RegExp(`^${key}: expected an even`));
    const columns = { logprob: [-1, -2, -3], ref_logprob: [-1, -2, -3] };
    const nested = { logprob: [[-1], [-2], [-3]], refLogprob: [[-1], [-2], [-3]] };
    for (const [batch, key] of [
      [{ ...columns, shape: [3, 1] }, 'shape'],
      [{ ...columns, cu_seqlens: [0, 1, 2, 3] }, 'cu_seqlens'],
      [{ ...columns, cuSeqlens: [0, 1, 2, 3] }, 'cuSeqlens'],
      [nested, 'logprob'],
    ] as const)
      assert.throws(() => compute('trl/dpo', batch as unknown as Batch), named(key));
    assert.throws(() => compute('openrlhf/reward_logexp', { rewards: [1, 2, 3] } as Batch), named('rewards'));
    const offsets = { ...columns, cu_seqlens: [0, 2, 1, 3] };
    assert.throws(() => compute('trl/dpo', offsets as unknown as Batch), /^LossError: cu_seqlens/);
  });

  it('of TPO have three rows each', () => {
    const loss = POLICY_LOSS_FN.create('trl/tpo', { beta: 0.2 });
    const expected = loss.computeSync(inOrder as Batch, { grad: true });
    const order = [3, 0, 1, 4, 5, 2];
    const pairIds = order.map((row) => Math.floor(row / 3));
    const batch = { ...paddedBatch(takeRows(drawn, order)), pairIds } as Batch;
    const { loss: found, grad } = loss.computeSync(batch, { grad: true });
    assertNumber(found, expected.loss, 'loss');
    const moved = order.flatMap((row) => [...expected.grad!.subarray(row * 9, (row + 1) * 9)]);
    assertArray(grad!, moved, 'grad');
    assert.throws(
      () => loss.computeSync({ ...inOrder, pairIds: IDS } as Batch),
      isLossError('ERR_INVALID_INPUT', /3 rows with the id/),
    );
  });
});

describe('other inputs of preference losses', () => {
  it('ref_logps stand for ref_logprob', () => {
    const { refLogprob, actionMask, ...others } = inOrder as Record<string, Float32Array>;
    const refLogps = Array.from({ length: SPEC.rows }, (_, row) => {
      let sum = 0;
      for (let i = row * 9; i < (row + 1) * 9; i++) if (actionMask![i]) sum += refLogprob![i]!;
      return sum;
    });
    const fn = new TRLDPOLossFn();
    const expected = fn.computeSync(inOrder as Batch, { grad: true });
    const found = fn.computeSync({ ...others, actionMask, refLogps } as unknown as Batch, { grad: true });
    assertNumber(found.loss, expected.loss, 'loss');
    assertArray(found.grad, expected.grad, 'grad');
    assert.throws(
      () => fn.computeSync({ ...others, actionMask } as unknown as Batch),
      isLossError('ERR_MISSING_INPUT', /ref_?log_?prob/i),
    );
  });

  it('the state of a loss is the options of the next call', () => {
    const { loss, state } = new TRLBCOLossFn({ beta: 0.5 }).computeSync(inOrder as Batch);
    assert.deepEqual(Object.keys(state!), ['runningMean', 'runningCount']);
    assert.equal(state!.runningCount, 6);
    const next = new TRLBCOLossFn({ beta: 0.5, ...state }).computeSync(inOrder as Batch);
    // The same rewards leave the mean as it is.
    assertNumber(next.loss, loss, 'loss');
    assertNumber(next.state!.runningMean, state!.runningMean!, 'runningMean');
    assert.equal(next.state!.runningCount, 12);
  });

  it('kl_estimate stands for the mismatched rows, of any length, and allows parts', async () => {
    const fn = new TRLKTOLossFn();
    const rows = (inOrder as { klLogprob: Float32Array }).klLogprob;
    const nested = Array.from({ length: SPEC.rows }, (_, row) => [...rows.subarray(row * 9, row * 9 + 4)]);
    const { klActionMask: _, ...others } = inOrder as Record<string, unknown>;
    const batch = {
      ...others,
      klLogprob: nested,
      klRefLogprob: nested.map((row) => row.map((x) => x - 0.1)),
    };
    const expected = await fn.compute(batch as Batch);
    assertNumber(expected.metrics.kl!, 0.4, 'kl');
    const given = { ...others, klEstimate: new Float64Array(6).fill(expected.metrics.kl!) } as Batch;
    assert.equal((await fn.compute(given)).loss, expected.loss);
    await assert.rejects(
      fn.compute(batch as Batch, { part: true }),
      isLossError('ERR_INVALID_OPTION', /kl_estimate/),
    );
    const { klLogprob: __, ...lacking } = others;
    await assert.rejects(fn.compute(lacking as Batch), isLossError('ERR_MISSING_INPUT', /kl_?logprob/i));
    await assert.rejects(
      fn.compute({ ...batch, klRefLogprob: [[1]] } as Batch),
      isLossError('ERR_SHAPE_MISMATCH', /kl_ref/),
    );
  });

  it('ORPO reads the logits of the tokens of attention_mask too', () => {
    const shape = [2, 3] as const;
    const vocabulary = 5;
    const logits = Float32Array.from({ length: 30 }, (_, i) => 2 * Math.sin(i * i));
    const targets = [0, 3, 2, 4, 1, 0];
    const masks = { action_mask: [0, 1, 1, 0, 1, 1], attention_mask: [1, 1, 1, 0, 1, 1] };
    const { logprob, logsumexp } = logprobsSync(logits, { shape: [6, vocabulary], targets });
    const fn = new TRLORPOLossFn();
    const expected = fn.computeSync({ shape, ...masks, logprob }, { grad: true });
    const { loss, metrics, gradLogits } = fn.fromLogitsSync(
      { shape, ...masks, logits, targets },
      { gradLogits: true },
    );
    assert.equal(loss, expected.loss);
    assert.deepEqual(metrics, expected.metrics);
    const backward = logprobsBackwardSync(logits, {
      shape: [6, vocabulary],
      targets,
      logsumexp,
      gradLogprob: expected.grad,
    });
    assertArray(gradLogits as Float32Array, backward as Float32Array, 'gradLogits');
    assert.ok((gradLogits as Float32Array)[0] !== 0);
  });

  it('ORPO in an objective with a KL or entropy loss takes no prompts', () => {
    const column = [-1, -2, -0.5, -1, -0.25, -3];
    const batch = {
      shape: [2, 3] as const,
      refLogprob: column.map((x) => x - 0.1),
      action_mask: [0, 1, 1, 0, 1, 1],
    };
    const logits = new Float32Array(12).fill(1);
    const of = (parts: object) =>
      ALGORITHM_TYPE.get('sft').objective({ policy_loss_fn: 'trl/orpo', entropy_loss_fn: 'none', ...parts });
    const parts = [
      { kl_loss_fn: 'k2', kl_loss_fn_args: { kl_coef: 0.1 } },
      { entropy_loss_fn: 'default', entropy_loss_fn_args: { entropy_coef: 0.1 } },
    ];
    const prompts = { ...batch, attention_mask: [1, 1, 1, 0, 1, 1] };
    const answers = { ...batch, attention_mask: [0, 1, 1, 0, 1, 0] };
    const refused = isLossError(
      'ERR_INVALID_INPUT',
      /attention_mask\[0\]: expected 0 outside the action mask/,
    );
    for (const objective of parts.map(of)) {
      const logprob = { logprob: column, entropy: column.map((x) => -x) };
      assert.throws(() => objective.computeSync({ ...prompts, ...logprob }), refused);
      const fromLogits = { logits, targets: [0, 1, 0, 1, 0, 1] };
      assert.throws(() => objective.fromLogitsSync({ ...prompts, ...fromLogits }), refused);
      assert.ok(Number.isFinite(objective.computeSync({ ...answers, ...logprob }).loss));
      assert.ok(Number.isFinite(objective.fromLogitsSync({ ...answers, ...fromLogits }).loss));
    }
    const alone = of({}).computeSync({ ...prompts, logprob: column });
    assert.equal(alone.loss, new TRLORPOLossFn().computeSync({ ...prompts, logprob: column }).loss);
  });

  it('loss types come alone or in lists, with as many weights', () => {
    const of = (options: object) => new TRLDPOLossFn(options).computeSync(inOrder as Batch).loss;
    const sum = of({ lossType: ['sigmoid', 'hinge'], lossWeights: [2, 3] });
    assertNumber(sum, 2 * of({ lossType: 'sigmoid' }) + 3 * of({ lossType: ['hinge'] }), 'loss');
    assert.throws(
      () => of({ lossType: ['sigmoid'], lossWeights: [1, 2] }),
      isLossError('ERR_INVALID_OPTION', /lossWeights.*1 number/),
    );
    assert.throws(() => of({ lossType: 'none' }), isLossError('ERR_INVALID_OPTION', /one of sigmoid, hinge/));
    assert.throws(
      () => of({ lossType: 'robust', labelSmoothing: 0.5 }),
      isLossError('ERR_INVALID_OPTION', /½/),
    );
  });

  it('terms that count above 0 only have no gradient at 0, where the policy is the reference', () => {
    const rows = [[-1], [-2]];
    const gradOf = (name: string, args: Record<string, unknown>, refLogprob = rows) => [
      ...POLICY_LOSS_FN.create(name, args).computeSync({ logprob: rows, refLogprob }, { grad: true }).grad,
    ];
    assertArray(
      gradOf('oat/dpo', { beta: 0.1, dpo_positive_lambda: 5 }),
      [-0.05, 0.05],
      'grad of DPO-positive',
    );
    assertArray(gradOf('openrlhf/vanilla_kto', { beta: 0.1 }), [-0.0125, 0.0125], 'grad of KTO');
    const hinge = { loss_type: ['hinge'], beta: 1 };
    assert.deepEqual(gradOf('trl/dpo', hinge, [[-1], [-1]]), [0, 0]);
  });

  it('the NLL of LLaMA-Factory’s KTO leaves out rows without tokens', () => {
    const logprob = [-1, -2, -3, -1, -2, -4];
    const batch: Batch = {
      shape: [3, 2],
      logprob,
      refLogprob: logprob,
      actionMask: [0, 0, 1, 1, 1, 1],
      label: [true, false, true],
      klEstimate: [0, 0, 0],
    };
    const fn = POLICY_LOSS_FN.create('llamafactory/kto', { pref_ftx: 1 });
    const { loss, grad } = fn.computeSync(batch, { grad: true });
    // KTO's loss is ½. The mean NLL is 3, that of the last row, and two of three rows are desirable.
    assertNumber(loss, 0.5 + 3 * 1.5, 'loss');
    assertArray(grad.subarray(4), [-0.0083333333 - 0.75, -0.0083333333 - 0.75], 'grad');
  });

  it('the loss type alphapo of CPO is simpo without its NLL', () => {
    const of = (args: Record<string, unknown>) =>
      POLICY_LOSS_FN.create('trl/cpo', { alpha: 0.25, beta: 2, ...args }).computeSync(inOrder as Batch);
    assert.deepEqual(of({ loss_type: 'alphapo' }), of({ loss_type: 'simpo', cpo_alpha: 0 }));
  });

  it('the loss types of ms-swift have its names, and exo_pair smooths the labels of the others', () => {
    const of = (args: Record<string, unknown>) =>
      POLICY_LOSS_FN.create('swift/dpo', args).computeSync(inOrder as Batch).loss;
    assert.equal(of({ loss_type: ['aot_unpaired'] }), of({ loss_type: ['aot_pair'] }));
    const sum = of({ loss_type: ['sigmoid', 'exo_pair'], beta: 2 });
    const smoothed = of({ loss_type: ['sigmoid'], label_smoothing: 1e-3, beta: 2 });
    assertNumber(sum, smoothed + of({ loss_type: ['exo_pair'], beta: 2 }), 'loss');
  });

  it('saturated and equal margins are finite', () => {
    for (const name of LOSSES) {
      for (const far of [0, 1e4, -1e4]) {
        const logprob = (inOrder.logprob as Float32Array).map((_, i) => (i < 9 && far < 0 ? far : -1));
        const refLogprob = logprob.map((x, i) => (i < 9 && far > 0 ? -far : x));
        const { loss, grad } = compute(name, { ...inOrder, logprob, refLogprob } as Batch);
        assert.ok(Number.isFinite(loss), `${name} of ${far} is ${loss}`);
        assert.ok(
          !grad || grad.every(Number.isFinite),
          `${name} of ${far} has a gradient that is not finite`,
        );
      }
    }
  });
});
