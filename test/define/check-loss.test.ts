/** Tests checkLoss(): correct losses pass, and each kind of mistake fails the check for it. */
import assert from 'node:assert/strict';
import { types } from 'node:util';
import fc from 'fast-check';
import {
  type Batch,
  checkLoss,
  DPOLossFn,
  lossFromExpression,
  POLICY_LOSS_FN,
  type PolicyLossFn,
  PPOPolicyLossFn,
  SAPOPolicyLossFn,
} from '../../lib/index.js';
import type { Args } from '../reference/index.js';
import { ARGUMENTS } from '../support/draw-arguments.js';
import { modesOf } from '../support/functions.js';
import { isLossError } from '../support/loss-error.js';

type Computed = { loss: number; metrics: object; grad?: Float32Array };

/** Returns a change that adds a number to the loss. */
const plus = (addend: () => number) => (result: Computed) => {
  result.loss += addend();
};

/** Returns a loss whose results are changed by `change`. It gets the logprobs and the mask of the batch. */
function broken(
  text: string,
  change: (result: Computed, batch: Required<Batch>) => void,
  kinds = { sync: true, async: true },
): PolicyLossFn<object> {
  const fn: PolicyLossFn<object> = lossFromExpression(text);
  const changed = (result: Computed, batch: unknown) => {
    change(result, batch as Required<Batch>);
    return result;
  };
  return new Proxy(fn, {
    get(target, key) {
      const value = Reflect.get(target, key, target) as unknown;
      if (typeof value !== 'function') return value;
      const method = value.bind(target);
      if (key === 'computeSync' && kinds.sync)
        return (batch: Batch, options: object) => changed(method(batch, options), batch);
      if (key === 'compute' && kinds.async)
        return async (batch: Batch, options: object) => changed(await method(batch, options), batch);
      return method;
    },
  });
}

async function failures(fn: PolicyLossFn<object>, batch?: Batch): Promise<string[]> {
  const { ok, checks } = await checkLoss(fn, batch);
  assert.equal(
    ok,
    checks.every((check) => check.ok),
  );
  return checks.filter((check) => !check.ok).map(({ name }) => name);
}

describe('checkLoss', () => {
  for (const name of POLICY_LOSS_FN.names())
    it(`passes ${name}, with each aggregation`, async () => {
      // Some losses of frameworks have required arguments.
      const drawn = fc.sample(ARGUMENTS.policy[name]!, { seed: 1, numRuns: 1 });
      const args: Args = name.includes('/') ? drawn[0]! : {};
      const aggregates = 'loss_agg_mode' in POLICY_LOSS_FN.get(name).defaultArgs();
      for (const mode of aggregates ? modesOf('policy', name, args) : [undefined]) {
        const fn = POLICY_LOSS_FN.create(name, mode === undefined ? args : { ...args, loss_agg_mode: mode });
        const report = await checkLoss(fn as PolicyLossFn<object>);
        assert.ok(report.ok, `${mode}\n${report}`);
      }
    });

  const PASSING = [
    ...['-A*r', 'lp', '0', 'max(-A*r, -A*clip(r, 0.8, 1.2))', '-A*exp(row_mean(d))', '-A*r/row_max(r)'],
    ...['-A*r + batch_mean(square(lp-ref))', 'sg(r)*A*lp', '(lp-teacher)**2 + H + rollout*prox', 'abs(d)'],
  ];
  for (const text of PASSING)
    it(`passes ${text}`, async () => {
      const report = await checkLoss(lossFromExpression(text));
      assert.ok(report.ok, String(report));
    });

  it('compares the gradient of a loss only where it is smooth and complete', async () => {
    const detail = async (fn: PolicyLossFn<object>) =>
      (await checkLoss(fn)).checks.find(({ name }) => name === 'gradient')!.detail;
    assert.match(await detail(lossFromExpression('-A*r')), /^32 tokens compared; the largest/);
    assert.match(await detail(lossFromExpression('sg(r)*lp')), /^32 tokens compared/);
    assert.match(await detail(new SAPOPolicyLossFn()), /^the loss stops gradients, and its stopped values/);
    assert.match(await detail(new SAPOPolicyLossFn({ differentiateGate: true })), /^32 tokens compared/);
  });

  it('leaves out tokens at a kink', async () => {
    const logprob = Float32Array.of(-1, -1.5, -0.5, -2);
    const oldLogprob = Float32Array.of(-1, -1.1, -0.5, -0.5);
    const batch = { shape: [1, 4] as const, logprob, oldLogprob, actionMask: new Uint8Array(4).fill(1) };
    const report = await checkLoss(lossFromExpression('abs(d)'), batch);
    assert.ok(report.ok);
    assert.match(String(report), /gradient: 2 tokens compared; 2 at kinks left out/);
  });

  it('finds a wrong gradient, even at one token', async () => {
    const wrong = broken('-A*r', ({ grad }) => {
      if (grad) grad[0]! *= 1.01;
    });
    assert.ok((await failures(wrong)).includes('gradient'));
    const none = broken('-A*r', ({ grad }) => grad?.fill(0));
    assert.ok((await failures(none)).includes('gradient'));
  });

  it('finds a gradient at a masked token', async () => {
    const fn = broken('lp', ({ grad }, { actionMask }) => {
      const masked = (actionMask as Uint8Array).indexOf(0);
      if (grad && masked >= 0) grad[masked] = 1e-9;
    });
    assert.ok((await failures(fn)).includes('mask'));
  });

  it('finds a loss that reads masked tokens', async () => {
    const fn = broken('lp', (result, { logprob, actionMask }) => {
      const masked = (actionMask as Uint8Array).indexOf(0);
      if (masked >= 0) result.loss += 1e-3 * (logprob as Float32Array)[masked]!;
    });
    assert.ok((await failures(fn)).includes('mask'));
  });

  it('finds a loss that depends on the layout', async () => {
    const padding = broken('lp', (result, { shape }) => {
      result.loss += 1e-3 * (shape?.[1] ?? 13);
    });
    assert.deepEqual(await failures(padding), ['padding', 'parts']);
    const packing = broken('lp', (result, { cuSeqlens }) => {
      if (cuSeqlens) result.loss *= 1.001;
    });
    assert.deepEqual(await failures(packing), ['packing']);
  });

  it('finds parts that do not add up', async () => {
    const fn = broken('lp', (result, { shape }) => {
      if (shape?.[0] === 6) result.loss += 1;
    });
    assert.deepEqual(await failures(fn), ['parts']);
  });

  it('finds results that differ between calls', async () => {
    const asynchronous = broken(
      'lp',
      plus(() => 1e-12),
      { sync: false, async: true },
    );
    assert.deepEqual(await failures(asynchronous), ['sync and async']);
    let calls = 0;
    const random = broken(
      'lp',
      plus(() => 1e-15 * calls++),
    );
    assert.ok((await failures(random)).includes('repetition'));
  });

  it('finds numbers that are not finite', async () => {
    assert.ok((await failures(lossFromExpression('log(A)'))).includes('finite'));
    assert.ok((await failures(lossFromExpression('exp(100*(lp + 5))'))).includes('finite'));
  });

  it('computes pairs in parts with both rows of a pair', async () => {
    const report = await checkLoss(new DPOLossFn({ beta: 0.1 }));
    assert.match(String(report), /ok {6}parts: two halves add up/);
    const whole = await checkLoss(new DPOLossFn({ pairwise: false }));
    assert.match(String(whole), /skipped parts: the loss needs the whole batch/);
  });

  it('holds stopped values constant', async () => {
    const right = 'sg(r)*A*lp + row_mean(sg(lp)*d)*sg(batch_max(d))';
    assert.deepEqual(await failures(lossFromExpression(right)), []);
    const wrong = broken('sg(r)*lp', ({ grad }) => {
      if (grad) grad[0]! *= 1.01;
    });
    assert.ok((await failures(wrong)).includes('gradient'));
    // Three of the 16 losses that stop gradients in kernels.
    for (const name of ['cispo', 'topr', 'sapo']) {
      const { checks } = await checkLoss(POLICY_LOSS_FN.create(name));
      const { ok, skipped } = checks.find((check) => check.name === 'gradient')!;
      assert.deepEqual({ ok, skipped }, { ok: true, skipped: true });
    }
  });

  for (const [text, failing] of [
    ['-A*log(-expm1(lp))', ['certain tokens']],
    ['A*sqrt(-lp)', ['certain tokens']],
    ['exp(5*(lp - ref))', ['far ratios']],
    ['exp(exp(abs(d)))', ['far ratios']],
    ['A*r - A*expm1(d) + A*(r - r)', ['advantages of 0']],
  ] as const)
    it(`finds where ${text} is not a number`, async () => {
      assert.deepEqual(await failures(lossFromExpression(text)), failing);
    });

  it('takes a batch in any layout of float32 columns', async () => {
    const columns = {
      cuSeqlens: [0, 3, 4, 4],
      logprob: [-1, -2, -0.5, -1.5],
      oldLogprob: [-1.1, -1.9, -0.4, -1.3],
      advantages: [1, -1, 0.5],
      actionMask: [1, 0, 1, 1],
    };
    const report = await checkLoss(lossFromExpression('-A*r'), columns);
    assert.ok(report.ok, String(report));
    assert.match(String(report), /gradient: 3 tokens compared/);
    const logprob = { data: new Uint16Array(4), dtype: 'float16' } as const;
    await assert.rejects(
      checkLoss(lossFromExpression('lp'), { ...columns, logprob }),
      isLossError('ERR_INVALID_INPUT', /checkLoss: logprob/, /float32/),
    );
    await assert.rejects(
      checkLoss(lossFromExpression('H'), columns),
      isLossError('ERR_MISSING_INPUT', /entropy/),
    );
  });

  it('takes only policy losses', async () => {
    for (const fn of [undefined, {}, PPOPolicyLossFn])
      await assert.rejects(
        checkLoss(fn as never),
        isLossError('ERR_INVALID_INPUT', /checkLoss: expected a policy loss/),
      );
  });

  it('draws the same batch in each call, and reports in lines', async () => {
    const [first, second] = [
      await checkLoss(lossFromExpression('r')),
      await checkLoss(lossFromExpression('r')),
    ];
    assert.equal(String(first), String(second));
    assert.equal(String(first).split('\n').length, first.checks.length);
    assert.ok(first.checks.every(({ detail }) => detail.length > 0));
    assert.ok(!types.isPromise(first));
  });
});
