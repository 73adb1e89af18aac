/**
 * Tests losses of pairs, groups, values and rewards that are written in one line: against golden cases of the frameworks
 * that have these losses, and in the ways in which losses are called.
 */
import assert from 'node:assert/strict';
import {
  type Batch,
  checkLoss,
  DPOLossFn,
  defineLoss,
  type ExpressionOptions,
  LOSS_FN,
  LossError,
  lossFromExpression,
  PolicyLossFn,
  RewardLossFn,
  sumCounts,
  ValueLossFn,
} from '../../lib/index.js';
import { EDGE_LENGTHS, makeBatch } from '../support/draw.js';
import { familyCases, goldenBatch, policyLossCases, trlCases } from '../support/golden.js';
import { toHalf } from '../support/half.js';
import { isLossError } from '../support/loss-error.js';
import { packedBatch } from '../support/subject.js';
import { assertArray, assertNumber, assertSameArray } from '../support/tolerance.js';

type Args = Record<string, unknown>;
type Cases = readonly { fn: string; id: string; args: Args; inputs: object; expected: object }[];
interface Written {
  readonly text: string;
  readonly cases: Cases;
  /** The arguments of the cases that the text can compute. */
  readonly covers?: (args: Args) => boolean;
  /** The names of the text's options, and the arguments of the case that give their values. */
  readonly options?: Readonly<Record<string, string>>;
  readonly mode?: string;
  readonly grad: 'logprob' | 'values' | 'rewards';
}

const SMOOTHED = (h: string) => `-(1 - e)*logsigmoid(${h}) - e*logsigmoid(-(${h}))`;
const LOSSES: Record<string, Written> = {
  dpo: {
    text: SMOOTHED('beta*(chosen(row_sum(lp - ref)) - rejected(row_sum(lp - ref)))'),
    cases: policyLossCases as unknown as Cases,
    covers: ({ pairwise }) => pairwise === true,
    options: { beta: 'beta', e: 'label_smoothing' },
    grad: 'logprob',
  },
  simpo: {
    text: SMOOTHED('beta*(chosen(row_mean(lp)) - rejected(row_mean(lp))) - gamma'),
    cases: trlCases as unknown as Cases,
    covers: ({ cpo_alpha, alpha }) => cpo_alpha === 0 && alpha === 0,
    options: { beta: 'beta', e: 'label_smoothing', gamma: 'simpo_gamma' },
    grad: 'logprob',
  },
  'verl/value': {
    text: '0.5*max(square(value - returns), square(clip(value, old_value - c, old_value + c) - returns))',
    cases: familyCases as unknown as Cases,
    covers: ({ batch_num_tokens, loss_scale_factor }) => !batch_num_tokens && !loss_scale_factor,
    options: { c: 'cliprange_value' },
    mode: 'loss_agg_mode',
    grad: 'values',
  },
  'trl/reward': {
    text: '-logsigmoid(chosen(reward) - rejected(reward) - margin) + k*square(chosen(reward) + rejected(reward))',
    cases: familyCases as unknown as Cases,
    options: { k: 'center_rewards_coefficient' },
    grad: 'rewards',
  },
};

const KEYS = { logprob: 'grad', values: 'gradValues', rewards: 'gradRewards' } as const;

/** Computes a loss of any kind, and its gradient. */
function computed(fn: unknown, batch: Batch): { loss: number; grad: Float32Array; metrics: object } {
  const result = (fn as PolicyLossFn).computeSync(batch, { grad: true }) as unknown as Record<
    string,
    unknown
  >;
  const grad = Object.values(KEYS).flatMap((key) => (result[key] as Float32Array | undefined) ?? []);
  assert.equal(grad.length, 1);
  return { loss: result.loss as number, grad: grad[0]!, metrics: result.metrics as object };
}

describe('losses in one line', () => {
  for (const [name, { text, cases, covers = () => true, options = {}, mode, grad }] of Object.entries(
    LOSSES,
  )) {
    const own = cases.filter((each) => each.fn === name && covers(each.args));
    it(`${name} has the results of its ${own.length} golden cases`, () => {
      assert.ok(own.length >= 4);
      for (const { id, args, inputs, expected } of own) {
        const fn = lossFromExpression(text, {
          options: Object.fromEntries(Object.entries(options).map(([x, arg]) => [x, Number(args[arg] ?? 0)])),
          ...(mode && ({ lossAggMode: args[mode] } as ExpressionOptions)),
        });
        const actual = computed(fn, goldenBatch(inputs as never));
        const wanted = expected as { loss: number } & Record<string, { data: number[] }>;
        assertNumber(actual.loss, wanted.loss, `${id}: loss`);
        assertArray(actual.grad, wanted[`grad_${grad}`]!.data, `${id}: gradient`);
      }
    });
  }

  const batch = makeBatch(EDGE_LENGTHS);
  const laid = packedBatch(batch);
  const DPO = '-logsigmoid(0.1*(chosen(row_sum(lp - ref)) - rejected(row_sum(lp - ref))))';

  it('are the means over all rows, also over those without tokens', () => {
    const empty = {
      shape: [4, 2] as const,
      logprob: row(-1, -2, -3, -1, 0, 0, 0, 0),
      refLogprob: row(-2, -2, -1, -1, 0, 0, 0, 0),
    };
    const masked: Batch = { ...empty, actionMask: [1, 1, 1, 1, 0, 0, 0, 0] };
    const { loss, grad } = computed(lossFromExpression(DPO), masked);
    const own = computed(new DPOLossFn({ beta: 0.1 }), masked);
    assertNumber(loss, own.loss, 'loss');
    assertArray(grad, own.grad, 'grad');
    const ofTokens = computed(lossFromExpression(DPO, { lossAggMode: 'token-mean' }), masked);
    assertNumber(ofTokens.loss, -Math.log(1 / (1 + Math.exp(-0.3))), 'with an aggregation mode');
  });

  it('have metrics that are means over the rows, if these have one value per row', () => {
    const fn = lossFromExpression(DPO, {
      metrics: { margin: 'chosen(row_sum(lp)) - rejected(row_sum(lp))', ofTokens: 'lp' },
    });
    const { metrics } = fn.computeSync({
      shape: [2, 2],
      logprob: row(-1, -2, -4, -100),
      refLogprob: row(0, 0, 0, 0),
      actionMask: [1, 1, 1, 0],
    });
    assertNumber(metrics.margin, 1, 'margin');
    assertNumber(metrics.ofTokens, -7 / 3, 'ofTokens');
  });

  const KINDS: Record<string, string> = {
    pairs: DPO,
    ranks: '-A*r*(row_rank(A) >= 2) + t*lp*(lp > row_quantile(lp, 0.3))',
    values: 'square(value - returns)/n',
    rewards: '-logsigmoid(chosen(reward) - rejected(reward))',
  };
  for (const [kind, text] of Object.entries(KINDS)) {
    const fn = lossFromExpression(text) as PolicyLossFn;

    it(`of ${kind} have the same bits in all forms of a call`, async () => {
      const here = computed(fn, laid);
      const later = (await fn.compute(laid, { grad: true })) as unknown as Record<string, Float32Array>;
      assert.equal(later.loss, here.loss);
      assertSameArray((later.grad ?? later.gradValues ?? later.gradRewards)!, here.grad, 'gradient');
    });

    it(`of ${kind} add up over parts`, () => {
      const middle = 4;
      const parts = [partOf(laid, 0, middle), partOf(laid, middle, batch.rows)];
      const normalizer = sumCounts(parts.map((part) => fn.countSync(part)));
      const results = parts.map((part) => fn.computeSync(part, { normalizer, part: true }));
      const whole = computed(fn, laid);
      const merged = fn.merge(
        results.map(({ part }) => part!),
        normalizer,
      );
      assert.equal(merged.loss, whole.loss);
    });
  }

  it('take values and returns in 16 bits', () => {
    const half = (numbers: ArrayLike<number>) => ({
      data: Uint16Array.from(numbers, (x) => toHalf(x, 'bfloat16')),
      dtype: 'bfloat16' as const,
    });
    const exact = {
      shape: [1, 3] as const,
      values: row(1, -2, 0.5),
      returns: row(0.5, 1, 0.25),
    };
    const fn = lossFromExpression('0.5*square(value - returns)', { variable: 'values' });
    const inHalf = { ...exact, values: half(exact.values), returns: half(exact.returns) };
    assert.deepEqual(fn.computeSync(inHalf, { grad: true }), fn.computeSync(exact, { grad: true }));
  });

  it('give 0 where 0 meets an exponential that overflows', () => {
    const far: Batch = {
      shape: [4, 1],
      logprob: row(100, 0, 0, 0),
      oldLogprob: row(0, 0, 0, 0),
      groupIds: [0, 0, 1, 1],
      rewards: [0, 0, 1, 0],
    };
    const centred = '(reward - group_mean(reward))*row_mean(r)*group_max(row_mean(r))';
    const { loss, grad } = computed(lossFromExpression(centred), far);
    assert.equal(loss, 0);
    assert.deepEqual(grad, row(0, 0, 0.125, -0.125));
  });

  it('of pairs and groups pass the checks of losses', async () => {
    for (const text of [
      DPO,
      '-(A - group_mean(row_mean(A)))*lp*group_size',
      'group_max(row_mean(d))*d - group_min(row_sum(lp))/10',
      '-A*lp*(t < 3) + row_rank(lp)*d*0.01',
      'square(lp - row_quantile(lp, 0.5))',
    ]) {
      const report = await checkLoss(lossFromExpression(text));
      assert.ok(report.ok, `${text}\n${report}`);
    }
  });
});

function row(...numbers: number[]): Float32Array {
  return Float32Array.from(numbers);
}

/** Returns some rows of a packed batch. */
function partOf(batch: Batch & Record<string, unknown>, first: number, last: number): Batch {
  const offsets = batch.cuSeqlens as Int32Array;
  const rows = offsets.length - 1;
  const tokens = offsets[rows]!;
  const entries = Object.entries(batch).map(([key, value]) => {
    const values = value as Float32Array;
    if (key === 'cuSeqlens') return [key, offsets.slice(first, last + 1).map((x) => x - offsets[first]!)];
    if (values.length === tokens) return [key, values.slice(offsets[first], offsets[last])];
    return [key, values.length === rows ? values.slice(first, last) : value];
  });
  return Object.fromEntries(entries);
}

describe('the kind of a loss', () => {
  const TEXTS: Record<string, [kind: abstract new (...args: never) => unknown, keys: readonly string[]]> = {
    '-A*r': [PolicyLossFn, ['old_log_probs', 'advantages', 'response_mask']],
    '-(returns - value)*r': [PolicyLossFn, ['old_log_probs', 'values', 'returns', 'response_mask']],
    '(reward - group_mean(reward))*lp': [PolicyLossFn, ['rewards', 'group_ids', 'response_mask']],
    A: [PolicyLossFn, ['advantages', 'response_mask']],
    '-H': [PolicyLossFn, ['entropy', 'response_mask']],
    'square(value - returns)': [ValueLossFn, ['returns', 'response_mask']],
    'sg(r)*square(value - returns)': [ValueLossFn, ['log_prob', 'old_log_probs', 'returns', 'response_mask']],
    '-logsigmoid(chosen(reward) - rejected(reward) - margin)': [RewardLossFn, ['margin', 'pair_ids']],
    'square(reward)': [RewardLossFn, []],
  };
  for (const [text, [Kind, keys]] of Object.entries(TEXTS))
    it(`${text} is a ${Kind.name}`, () => {
      const fn = lossFromExpression(text);
      assert.ok((fn as unknown) instanceof Kind);
      assert.deepEqual([...fn.selectKeys].sort(), keys.toSorted());
    });

  it('is what the variable says', () => {
    const text = '0.5*square(value - lp)';
    const given = {
      shape: [1, 1] as const,
      logprob: row(-1),
      values: row(2),
    };
    const byLogprob = lossFromExpression(text).computeSync(given, { grad: true });
    assert.deepEqual(byLogprob.grad, row(-3));
    const byValue = lossFromExpression(text, { variable: 'values' }).computeSync(given, { grad: true });
    assert.deepEqual(byValue.gradValues, row(3));
  });

  it('can be that of a class with options, which is registered', () => {
    const HuberValue = defineLoss('huber_value', {
      variable: 'values',
      options: { delta: { type: 'number', default: 1, help: 'where it becomes linear' } },
      metrics: { error: { unit: 'value', value: ({ value, returns }) => value.sub(returns) } },
      loss: ({ value, returns, abs, select, square }, { delta }) => {
        const error = abs(value.sub(returns));
        return select(error.lt(delta), square(error).mul(0.5), error.sub(delta / 2).mul(delta));
      },
    });
    const fn = new HuberValue({ delta: 2, lossAggMode: 'token-sum' });
    const given = {
      shape: [1, 2] as const,
      values: row(1, 5),
      returns: row(0, 0),
    };
    const { loss, metrics, gradValues } = fn.computeSync(given, { grad: true });
    assert.deepEqual([loss, Math.round(metrics.error)], [0.5 + 2 * 4, 3]);
    assert.deepEqual(gradValues, row(1, 2));
    // It takes the place of another loss for a moment, because other suites walk the registry.
    const original = LOSS_FN.get('trl/value');
    LOSS_FN.register('trl/value', HuberValue, { replace: true });
    assert.ok(LOSS_FN.create('trl/value', { delta: 3 } as never) instanceof HuberValue);
    LOSS_FN.register('trl/value', original, { replace: true });
    assert.deepEqual(HuberValue.defaultArgs(), { delta: 1, loss_agg_mode: 'token-mean' });
  });

  const REFUSED: Record<string, [text: string, options: object, message: RegExp, position?: number]> = {
    'a sum over a group of tokens': [
      'A*group_mean(d)',
      {},
      /group_mean: expected one value per row, got a value for each token at character 14\. Reduce it first/,
      13,
    ],
    'a pair of tokens': ['chosen(lp)', {}, /chosen: expected one value per row/, 7],
    'a quantile that differs among tokens': [
      'row_quantile(A, lp)',
      {},
      /row_quantile: expected one value per row/,
      16,
    ],
    'tokens of a reward model': ['reward*A', {}, /has no tokens/],
    'means of tokens of a reward model': ['reward - row_mean(A)', {}, /has no tokens/],
    'a metric of tokens of a reward model': [
      'square(reward)',
      { metrics: { x: 'n' } },
      /metric x.*has no tokens/,
    ],
    'an aggregation of a reward model': [
      'square(reward)',
      { lossAggMode: 'token-sum' },
      /lossAggMode: expected no mode/,
    ],
    'a correction of a value loss': ['square(value)', { masks: { delta: 2 } }, /masks/],
    'another variable': [
      'A',
      { variable: 'advantages' },
      /variable: expected one of logprob, values, rewards/,
    ],
    'more columns than a program reads': [
      'lp + old + ref + rollout + prox + teacher + A + H + old_entropy + value',
      {},
      /at most 9 columns, got 10/,
    ],
  };
  for (const [what, [text, options, message, position]] of Object.entries(REFUSED))
    it(`refuses ${what}`, () => {
      assert.throws(
        () => lossFromExpression(text, options),
        (error: unknown) => {
          assert.ok(error instanceof LossError && error.code === 'ERR_INVALID_OPTION', String(error));
          assert.match(error.message, message);
          assert.equal(error.position, position);
          return true;
        },
      );
    });

  it('leaves rows without tokens out of extremes of the batch', () => {
    const shape = [3, 2] as const;
    const logprob = row(-1, -2, -3, -4, -5, -6);
    const actionMask = [1, 1, 0, 0, 1, 0];
    const of = (text: string, mask = actionMask) =>
      lossFromExpression(`row_sum(0*lp) + ${text}`).computeSync(
        { shape, logprob, actionMask: mask, rewards: [1, 9, 4] },
        { grad: true },
      );
    const { loss, grad } = of('batch_max(lp)');
    assert.deepEqual([loss, [...grad]], [-1, [1, 0, 0, 0, 0, 0]]);
    assert.equal(of('batch_min(-lp)').loss, 1);
    assert.equal(of('batch_max(reward)').loss, 4);
    assert.equal(of('batch_max(lp)', [0, 0, 0, 0, 0, 0]).loss, 0);
  });

  it('weighs the tokens of a loss that names pairs, and refuses weights for one of rows', () => {
    const batch = {
      shape: [2, 2] as const,
      logprob: row(-1, -2, -3, -4),
      values: row(-1, -2, -3, -4),
      tokenWeights: row(1, 0, 2, 0.5),
    };
    for (const text of ['-lp*rejected(row_sum(lp))', '-value*rejected(row_sum(value))'])
      assert.equal(
        lossFromExpression(text, { lossAggMode: 'token-sum' }).computeSync(batch).loss,
        -7 * (1 + 0 + 6 + 2),
      );
    const metrics = { m: 'chosen(n)' };
    assert.ok(Math.abs(lossFromExpression('-lp', { metrics }).computeSync(batch).loss - 9 / 4) < 1e-6);
    for (const text of ['-chosen(row_sum(lp))', 'row_sum(lp)', 'row_mean(value)'])
      assert.throws(
        () => lossFromExpression(text).computeSync(batch),
        isLossError('ERR_INVALID_INPUT', /tokenWeights: expected a batch without it/),
      );
  });

  it('refuses an odd number of rows and parts of groups', () => {
    const three = {
      shape: [3, 1] as const,
      logprob: row(1, 2, 3),
      rewards: [1, 2, 3],
      groupIds: [0, 0, 1],
    };
    const pairs = lossFromExpression('chosen(row_sum(lp))');
    assert.throws(
      () => pairs.computeSync(three),
      isLossError('ERR_SHAPE_MISMATCH', /an even number of rows/),
    );
    const ofRewards = lossFromExpression('chosen(reward)', { variable: 'rewards' });
    assert.throws(
      () => ofRewards.computeSync(three),
      isLossError('ERR_SHAPE_MISMATCH', /an even number of rows/),
    );
    const groups = lossFromExpression('lp*group_size');
    assert.equal(groups.computeSync(three).loss > 0, true);
    assert.throws(
      () => groups.computeSync(three, { part: true }),
      isLossError('ERR_INVALID_OPTION', /the whole batch/),
    );
  });
});
