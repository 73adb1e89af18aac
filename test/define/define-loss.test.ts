/** Tests the losses that users define: lossFromExpression() and defineLoss(), and where their losses can be used. */
import assert from 'node:assert/strict';
import {
  ALGORITHM_TYPE,
  type Batch,
  defineLoss,
  type LossSymbols,
  lossFromExpression,
  POLICY_LOSS_FN,
  type PolicyLossFn,
  PPOPolicyLossFn,
  type RegisteredClass,
  Registry,
} from '../../lib/index.js';
import { lossSubject } from '../../lib/tools/parts/subject.js';
import { isLossError } from '../support/loss-error.js';

const BATCH = {
  shape: [2, 3] as const,
  logprob: Float32Array.of(-1.1, -0.4, -2, -0.3, -0.9, Number.NaN),
  oldLogprob: Float32Array.of(-1, -0.7, -2.1, -0.3, -1.2, Number.NaN),
  advantages: Float32Array.of(0.8, 0.8, 0.8, -0.8, -0.8, Number.NaN),
  actionMask: Uint8Array.of(1, 1, 1, 1, 1, 0),
} satisfies Batch;

const CLIPPED = 'max(-A*r, -A*clip(r, 1-low, 1+high))';
const NUMBERS = { low: 0.2, high: 0.28 };

const Clipped = defineLoss('clipped', {
  summary: 'the clipped surrogate',
  source: ['arXiv 1707.06347'],
  options: {
    low: { type: 'number', default: 0.2, above: 0, help: 'lower clip range' },
    high: { type: 'number', default: 0.28, above: 0, help: 'upper clip range' },
  },
  metrics: {
    pg_clipfrac: { unit: 'fraction of tokens', value: ({ r, abs }, { low }) => abs(r.sub(1)).gt(low) },
    'kl/mean': { unit: 'nats per token', value: 'old - lp' },
  },
  loss: ({ lp, old, A, exp, max, clip }, { low, high }) => {
    const ratio = exp(lp.sub(old));
    return max(A.neg().mul(ratio), A.neg().mul(clip(ratio, 1 - low, 1 + high)));
  },
});

/** The name under which tests register a loss for a moment. Other tests see only the package's own losses. */
const REPLACED = 'sft';

function registered<T>(cls: RegisteredClass<PolicyLossFn<Partial<Record<string, number>>>>, use: () => T): T {
  const before = POLICY_LOSS_FN.get(REPLACED);
  POLICY_LOSS_FN.register(REPLACED, cls, { replace: true });
  try {
    return use();
  } finally {
    POLICY_LOSS_FN.register(REPLACED, before, { replace: true });
  }
}

describe('lossFromExpression', () => {
  it('computes what the loss of the same formula computes', () => {
    const fn = lossFromExpression(CLIPPED, { options: NUMBERS, metrics: { first: 'A', second: '-d' } });
    const builtIn = new PPOPolicyLossFn({ clipRangeLow: 0.2, clipRangeHigh: 0.28, clipRatioC: 1e6 });
    const [a, b] = [fn, builtIn].map((loss) => loss.computeSync(BATCH, { grad: true }));
    assert.ok(Math.abs(a!.loss - b!.loss) < 1e-7, `${a!.loss} and ${b!.loss}`);
    a!.grad!.forEach((x, i) => {
      assert.ok(Math.abs(x - b!.grad![i]!) < 1e-7, `token ${i}: ${x} and ${b!.grad![i]}`);
    });
    const { metrics } = fn.computeSync(BATCH);
    const [first, second]: [number, number] = [metrics.first, metrics.second];
    assert.ok(Math.abs(first - (3 * 0.8 - 2 * 0.8) / 5) < 1e-7);
    assert.ok(Math.abs(second + (-0.1 + 0.3 + 0.1 + 0 + 0.3) / 5) < 1e-6);
    // @ts-expect-error: only the declared metrics are known
    assert.equal(metrics.third, undefined);
  });

  it('reads only the columns that the expression uses', () => {
    assert.deepEqual(lossFromExpression('A*lp').selectKeys, ['advantages', 'response_mask']);
    assert.deepEqual(lossFromExpression('d').selectKeys, ['old_log_probs', 'response_mask']);
    assert.deepEqual(lossFromExpression('d', { backend: 'tinker' }).selectKeys, [
      'old_logprob',
      'action_mask',
    ]);
    assert.deepEqual(lossFromExpression('lp', { metrics: { entropy: 'H' } }).selectKeys, [
      'entropy',
      'response_mask',
    ]);
  });

  it('names a column that the batch lacks', () => {
    for (const [text, key] of [
      ['ref', /ref_?logprob/i],
      ['H*A', /entropy/],
      ['rollout', /rollout_?logprob/i],
    ] as const)
      assert.throws(() => lossFromExpression(text).computeSync(BATCH), isLossError('ERR_MISSING_INPUT', key));
  });

  it('aggregates as every loss does', () => {
    const means = {
      'token-mean': 1,
      'seq-mean-token-sum': 2.5,
      'seq-mean-token-mean': 1,
      'seq-mean-token-sum-norm': 5 / 3,
    };
    for (const [mode, expected] of Object.entries(means)) {
      const fn = lossFromExpression('1', { lossAggMode: mode as keyof typeof means });
      assert.ok(Math.abs(fn.computeSync(BATCH).loss - expected) < 1e-7, mode);
    }
  });

  it('says which text and which option is wrong', () => {
    assert.throws(
      () => lossFromExpression('A*lpp'),
      isLossError(
        'ERR_UNKNOWN_NAME',
        /^Did you mean 'lp'\? lossFromExpression: .*'lpp' at character 3\. .*\n {2}A\*lpp\n {4}\^$/,
      ),
    );
    assert.throws(
      () => lossFromExpression('A', { metrics: { first: 'A +' } }),
      isLossError(
        'ERR_INVALID_OPTION',
        /^lossFromExpression: metric first: .*the end of the text at character 4\n/,
      ),
    );
    for (const [options, pattern] of [
      [{ options: { low: Number.NaN } }, /low: expected a finite number, got number NaN/],
      [{ options: { low: '1' } }, /low: expected a finite number, got '1'/],
      [{ options: { A: 1 } }, /A: expected a name that no column/],
      [{ options: { 'a-b': 1 } }, /a-b: expected a name of/],
      [{ options: { lossAggMode: 1 } }, /lossAggMode: expected a name of/],
      [{ options: 1 }, /options: expected an object, got number 1/],
      [{ option: {} }, /^Did you mean 'options'\? lossFromExpression: option: got an unknown name$/],
      [{ lossAggMode: 'mean' }, /lossAggMode: expected one of token-mean/],
      [{ metrics: { 'a b': 'A' } }, /metrics: expected names/],
      [{ metrics: { ['__proto__']: 'A' } }, /metrics: expected names/],
      [{ metrics: { first: 1 } }, /metric first: expected the text of an expression/],
      [{ name: 1 }, /name: expected a text of at most 100 characters, got number 1/],
      [{ name: '' }, /name: expected a text of at most 100 characters, got ''/],
      [{ name: 'x'.repeat(101) }, /name: expected a text of at most 100 characters/],
    ] as const)
      assert.throws(
        () => lossFromExpression('A', options as never),
        isLossError('ERR_INVALID_OPTION', pattern),
      );
    assert.throws(
      () => lossFromExpression('A', { backend: 'none' }),
      isLossError('ERR_UNKNOWN_NAME', /none/),
    );
    assert.throws(
      () => lossFromExpression(1 as never),
      isLossError('ERR_INVALID_OPTION', /text of an expression/),
    );
  });

  it('has at most 8 metrics', () => {
    const named = (count: number) =>
      Object.fromEntries(Array.from({ length: count }, (_, i) => [`m${i}`, `lp*${i}`]));
    const { metrics } = lossFromExpression('A', { metrics: named(8) }).computeSync(BATCH);
    assert.deepEqual(Object.keys(metrics), Object.keys(named(8)));
    assert.ok(Math.abs(metrics.m7! + 0.94 * 7) < 1e-5);
    assert.throws(
      () => lossFromExpression('A', { metrics: named(9) }),
      isLossError('ERR_INVALID_OPTION', /at most 8/),
    );
  });
});

describe('a loss with a batch reduction', () => {
  const fn = lossFromExpression('-A*(r - batch_mean(r))', { name: 'centred' });
  const normalizer = { tokens: 5, rows: 2, columns: 3 };

  it('is computed in one call', async () => {
    const sync = fn.computeSync(BATCH, { grad: true });
    assert.deepEqual(await fn.compute(BATCH, { grad: true }), sync);
    const mean = lossFromExpression('r').computeSync(BATCH).loss;
    const expected = lossFromExpression('-A*(r - mean)', { options: { mean } }).computeSync(BATCH).loss;
    assert.ok(Math.abs(sync.loss - expected) < 1e-6);
  });

  it('refuses normalizer, part and merge()', async () => {
    const message = /whole batch in one call/;
    assert.throws(
      () => fn.computeSync(BATCH, { normalizer }),
      isLossError('ERR_INVALID_OPTION', /^normalizer/, message),
    );
    assert.throws(
      () => fn.computeSync(BATCH, { part: true }),
      isLossError('ERR_INVALID_OPTION', /^part/, message),
    );
    await assert.rejects(fn.compute(BATCH, { normalizer }), isLossError('ERR_INVALID_OPTION', message));
    await assert.rejects(fn.compute(BATCH, { part: true }), isLossError('ERR_INVALID_OPTION', message));
    const { part } = lossFromExpression('A').computeSync(BATCH, { part: true });
    assert.throws(() => fn.merge([part!], normalizer), isLossError('ERR_INVALID_OPTION', message));
  });
});

describe('defineLoss', () => {
  it('builds the same loss as a text', () => {
    const text = lossFromExpression(CLIPPED, {
      options: NUMBERS,
      metrics: { pg_clipfrac: 'abs(r-1) > low', 'kl/mean': 'old-lp' },
    });
    assert.deepEqual(
      new Clipped().computeSync(BATCH, { grad: true }),
      text.computeSync(BATCH, { grad: true }),
    );
  });

  it('has typed options and metrics', () => {
    const narrow = new Clipped({ low: 0.01, high: 0.01, lossAggMode: 'seq-mean-token-sum' });
    const { loss, metrics } = narrow.computeSync(BATCH);
    const clipped: number = metrics.pg_clipfrac;
    assert.notEqual(loss, new Clipped({ lossAggMode: 'seq-mean-token-sum' }).computeSync(BATCH).loss);
    assert.ok(clipped > new Clipped().computeSync(BATCH).metrics.pg_clipfrac);
    assert.throws(
      () => new Clipped({ lwo: 0.1 } as never),
      isLossError('ERR_INVALID_OPTION', /^Did you mean 'low'\? clipped: lwo/),
    );
    assert.throws(
      () => new Clipped({ low: -1 }),
      isLossError('ERR_INVALID_OPTION', /^clipped: low: .* above 0/),
    );
  });

  it('declares itself', () => {
    const { name, summary, source, reads, metrics } = Clipped.declaration;
    assert.deepEqual(Clipped.defaultArgs(), { low: 0.2, high: 0.28, loss_agg_mode: 'token-mean' });
    assert.deepEqual([Clipped.name, name, summary], ['clipped', 'clipped', 'the clipped surrogate']);
    assert.deepEqual([source, reads], [['arXiv 1707.06347'], ['old_logprob', 'advantages', 'action_mask']]);
    assert.deepEqual(metrics, {
      pg_clipfrac: { unit: 'fraction of tokens' },
      'kl/mean': { unit: 'nats per token' },
    });
    assert.deepEqual(new Clipped().selectKeys, ['old_log_probs', 'advantages', 'response_mask']);
  });

  it('takes its formula as text, and names itself after it', () => {
    const Text = defineLoss('text', {
      options: {
        beta: { type: 'number', default: 2, help: '' },
        on: { type: 'boolean', default: true, help: '' },
      },
      lossAggMode: 'seq-mean-token-sum',
      loss: 'on ? beta*lp : 0',
    });
    assert.equal(Text.declaration.summary, 'ℓ = on ? beta*lp : 0');
    assert.ok(Math.abs(new Text().computeSync(BATCH).loss + 4.7) < 1e-6);
    assert.equal(new Text({ on: false }).computeSync(BATCH).loss, 0);
  });

  it('lets the formula depend on the options, and reads the columns of each', () => {
    const Either = defineLoss('either', {
      options: { mode: { type: 'choice', choices: ['plain', 'weighted'], default: 'plain', help: '' } },
      loss: ({ lp, A }, { mode }) => (mode === 'plain' ? lp : lp.mul(A)),
    });
    assert.deepEqual(Either.declaration.reads, ['action_mask']);
    assert.deepEqual(new Either().selectKeys, ['response_mask']);
    assert.deepEqual(new Either({ mode: 'weighted' }).selectKeys, ['advantages', 'response_mask']);
  });

  it('can have options without a default', () => {
    const Needs = defineLoss('needs', {
      options: { beta: { type: 'number', above: 0, required: true, help: '' } },
      loss: ({ lp }, { beta }) => lp.mul(beta),
    });
    assert.throws(() => new Needs(undefined as never), isLossError('ERR_INVALID_OPTION', /^needs: beta/));
    assert.ok(Math.abs(new Needs({ beta: 10 }).computeSync(BATCH).loss + 9.4) < 1e-5);
  });

  it('can be registered', () => {
    const registry = new Registry<PolicyLossFn<object>>('policy loss');
    registry.register('clipped', Clipped);
    const args = { low: 0.1, loss_agg_mode: 'seq-mean-token-sum' };
    const fn = new Clipped({ low: 0.1, lossAggMode: 'seq-mean-token-sum' });
    assert.deepEqual(registry.create('clipped', args).computeSync(BATCH), fn.computeSync(BATCH));
  });

  it('can be the loss of an objective', () => {
    const objective = registered(Clipped, () =>
      ALGORITHM_TYPE.get('grpo').objective({
        policy_loss_fn: REPLACED,
        policy_loss_fn_args: { high: 0.1 },
        kl_loss_fn: 'none',
      }),
    );
    const expected = new Clipped({ high: 0.1 }).computeSync(BATCH, { grad: true });
    const { loss, grad, metrics } = objective.computeSync(BATCH, { grad: true });
    assert.deepEqual([loss, grad], [expected.loss, expected.grad]);
    assert.equal(metrics.pg_clipfrac, expected.metrics.pg_clipfrac);
  });

  it('can be computed in parts of files, unless it has a batch reduction', () => {
    const Whole = defineLoss('whole', { loss: 'A*lp - batch_max(A)' });
    const [clipped, whole] = [Clipped, Whole].map((cls) => registered(cls, () => lossSubject(REPLACED)));
    assert.deepEqual([clipped!.readsRatio, clipped!.obstacle(BATCH)], [true, undefined]);
    assert.equal(whole!.obstacle(BATCH), `${REPLACED} reduces over all rows of a batch`);
  });

  it('refuses invalid definitions', () => {
    const option = { type: 'number', default: 1, help: '' };
    for (const [definition, pattern] of [
      [undefined, /^mine: expected an object, got undefined/],
      [{ loss: 'A', los: 1 }, /^Did you mean 'loss'\? mine: los: /],
      [{ loss: undefined }, /^mine: expected the text of an expression, or a function/],
      [{ loss: () => 'A' }, /^mine: expected an expression of this loss or a finite number, got 'A'/],
      [{ loss: () => Number.NaN }, /^mine: expected an expression/],
      [{ loss: async () => 1 }, /^mine: expected an expression .* Promise/],
      [{ loss: () => Object.create(null).x.y }, /^mine: expected a function that returns .* got the error/],
      [{ loss: 'A', options: { clip_range: option } }, /^mine: clip_range: expected a name in camelCase/],
      [{ loss: 'A', options: { lossAggMode: option } }, /^mine: lossAggMode: expected another name/],
      [{ loss: 'A', options: { low: 0.2 } }, /^mine: low: expected a declaration whose type/],
      [{ loss: 'A', options: { low: { ...option, default: 'x' } } }, /^mine: low: expected a number/],
      [{ loss: 'A', options: { d: option } }, /^mine: d: expected a name that no column/],
      [{ loss: 'A', metrics: { first: { unit: '' } } }, /^mine: metric first: expected the text/],
    ] as const)
      assert.throws(
        () => defineLoss('mine', definition as never),
        isLossError('ERR_INVALID_OPTION', pattern),
      );
    assert.throws(() => defineLoss('', { loss: 'A' }), isLossError('ERR_INVALID_OPTION', /name of the loss/));
  });

  it('refuses operators of JavaScript, other losses and wrong operands', () => {
    let other: LossSymbols | undefined;
    defineLoss('other', {
      loss: (symbols) => {
        other = symbols;
        return symbols.lp;
      },
    });
    const formulas: Record<string, (symbols: LossSymbols) => unknown> = {
      'methods \\(a.add': ({ lp }) => (lp as unknown as number) * 2,
      'got an expression of another loss': ({ lp }) => lp.add(other!.old),
      'add: expected .* got number NaN': ({ lp }) => lp.add(Number.NaN),
      'rowMean: expected .* got undefined': ({ rowMean }) => rowMean(undefined as never),
      'clip: expected 3 arguments': ({ clip, lp }) => (clip as (...args: unknown[]) => unknown)(lp, 1),
      'at most': ({ lp }) =>
        Array.from({ length: 5000 }, (_, i) => lp.mul(i).not()).reduce((a, b) => a.add(b)),
    };
    for (const [pattern, loss] of Object.entries(formulas))
      assert.throws(
        () => defineLoss('mine', { loss: loss as never }),
        isLossError('ERR_INVALID_OPTION', new RegExp(pattern)),
      );
  });

  it('compiles expressions of any depth', () => {
    const loss = ({ lp }: LossSymbols) =>
      Array.from({ length: 20_000 }).reduce<typeof lp>((x) => x.add(1).sub(1), lp);
    assert.throws(() => defineLoss('deep', { loss }), isLossError('ERR_INVALID_OPTION', /at most/));
  });
});
