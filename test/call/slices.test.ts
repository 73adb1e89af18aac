/**
 * Tests that asynchronous calls convert long columns in slices, with turns of the event loop between them, and what
 * happens if the caller aborts the call or changes the batch in the meantime. A getter in a column's last element shows
 * when the conversion reaches the end.
 */
import assert from 'node:assert/strict';
import { setImmediate } from 'node:timers/promises';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type Batch,
  ENTROPY_LOSS_FN,
  KL_FN,
  POLICY_LOSS_FN,
} from '../../lib/index.js';
import { isLossError } from '../support/loss-error.js';

// Long enough for several turns even if the elements of most columns are converted in a few nanoseconds.
const ROWS = 40_000;
const COLUMNS = 6;
const TOKENS = ROWS * COLUMNS;

const column = (scale: number) => Array.from({ length: TOKENS }, (_, i) => -(((i * 7) % 11) + 1) * scale);
const perRow = (modulus: number) => Array.from({ length: ROWS }, (_, row) => row % modulus);
const rowsOf = <T>(list: readonly T[]) =>
  Array.from({ length: ROWS }, (_, b) => list.slice(b * COLUMNS, (b + 1) * COLUMNS));
const offsets = Array.from({ length: ROWS + 1 }, (_, row) => row * COLUMNS);
const mask = Array.from({ length: TOKENS }, (_, i) => i % 3 !== 0);

const lists = {
  shape: [ROWS, COLUMNS] as const,
  logprob: column(0.1),
  oldLogprob: column(0.11),
  refLogprob: column(0.12),
  advantages: column(-0.3),
  entropy: column(-0.2),
  tokenLevelScores: column(0.4),
  actionMask: mask,
  expertMask: perRow(2),
  step: Array.from({ length: ROWS }, () => 7),
  rewards: perRow(5),
  groupIds: Array.from({ length: ROWS }, (_, row) => `group ${row >> 2}`),
} satisfies Batch;
const { advantages: _, ...rewarded } = lists;
const f32 = (values: readonly number[]) => Float32Array.from(values);
const inPlace = {
  shape: lists.shape,
  logprob: f32(lists.logprob),
  oldLogprob: f32(lists.oldLogprob),
  advantages: f32(lists.advantages),
  actionMask: Uint8Array.from(mask, Number),
} satisfies Batch;

/**
 * Replaces the element before the last one of a list by a getter of the same value, and says whether the getter was called.
 * The last offset of packed rows is read first.
 */
function watched<T>(list: readonly T[]): { list: T[]; wasRead: () => boolean } {
  const copy = list.slice();
  const index = copy.length - 2;
  const value = copy[index];
  let read = false;
  const get = () => {
    read = true;
    return value;
  };
  Object.defineProperty(copy, index, { get, enumerable: true });
  return { list: copy, wasRead: () => read };
}

const ppo = POLICY_LOSS_FN.create('ppo');
const mixChord = POLICY_LOSS_FN.create('mix_chord');
const kl = KL_FN.create('k3', { kl_coef: 0.1 });
const entropy = ENTROPY_LOSS_FN.create('default', { entropy_coef: 0.1 });
const grpo = ADVANTAGE_FN.create('grpo');
const gdpo = ADVANTAGE_FN.create('verl/gdpo', { gdpo_reward_keys: ['correctness', 'format'] });
const objective = ALGORITHM_TYPE.get('grpo').objective();
const penalised = ALGORITHM_TYPE.get('ppo').objective({
  advantage_fn: 'reinforceplusplus',
  kl_penalty_fn: 'k2',
});
const grad = { grad: true } as const;

type Call = [keyof typeof lists, (batch: Batch) => Promise<unknown>, (batch: Batch) => unknown, Batch?];
const CALLS: Record<string, Call> = {
  'a policy loss': ['logprob', (b) => ppo.compute(b, grad), (b) => ppo.computeSync(b, grad)],
  "a policy loss's mask": ['actionMask', (b) => ppo.compute(b), (b) => ppo.computeSync(b)],
  'a mask of rows': ['expertMask', (b) => mixChord.compute(b), (b) => mixChord.computeSync(b)],
  'the steps of mix_chord': ['step', (b) => mixChord.compute(b), (b) => mixChord.computeSync(b)],
  'count()': ['actionMask', (b) => ppo.count(b), (b) => ppo.countSync(b)],
  'a KL loss': ['refLogprob', (b) => kl.calculateKlLoss(b, grad), (b) => kl.calculateKlLossSync(b, grad)],
  'estimates of KL': ['refLogprob', (b) => kl.calculateKl(b), (b) => kl.calculateKlSync(b)],
  'a KL penalty': [
    'tokenLevelScores',
    (b) => kl.applyKlPenaltyToReward(b),
    (b) => kl.applyKlPenaltyToRewardSync(b),
  ],
  'an entropy loss': ['entropy', (b) => entropy.compute(b, grad), (b) => entropy.computeSync(b, grad)],
  'rewards of an advantage function': ['rewards', (b) => grpo.compute(b), (b) => grpo.computeSync(b)],
  'ids of an advantage function': ['groupIds', (b) => grpo.compute(b), (b) => grpo.computeSync(b)],
  'an objective': [
    'logprob',
    (b) => objective.compute(b, grad),
    (b) => objective.computeSync(b, grad),
    rewarded,
  ],
  "an objective's rewards": [
    'rewards',
    (b) => objective.compute(b, grad),
    (b) => objective.computeSync(b, grad),
    rewarded,
  ],
  "an objective's KL penalty": [
    'actionMask',
    (b) => penalised.compute(b, grad),
    (b) => penalised.computeSync(b, grad),
    rewarded,
  ],
};

describe('long conversions', () => {
  for (const [what, [key, compute, computeSync, whole = lists]] of Object.entries(CALLS))
    it(`${what}: take several turns, and give the result of the synchronous call`, async () => {
      const expected = computeSync(whole);
      const { list, wasRead } = watched(whole[key] as unknown[]);
      const promise = compute({ ...whole, [key]: list } as Batch);
      assert.equal(wasRead(), false, 'within the call');
      await setImmediate();
      assert.equal(wasRead(), false, 'within the first turn');
      assert.deepEqual(await promise, expected);
      assert.equal(wasRead(), true);
    });

  it('rows of nested arrays, offsets and float64 columns take several turns too', async () => {
    const expected = ppo.computeSync(lists, grad);
    const nestedRows = watched(rowsOf(lists.logprob));
    const nested = { logprob: nestedRows.list, oldLogprob: lists.oldLogprob, advantages: lists.advantages };
    const nestedMask = watched(rowsOf(mask));
    const cuSeqlens = watched(offsets);
    const { shape: _s, ...packed } = { ...lists, cuSeqlens: cuSeqlens.list };
    const float64 = Float64Array.from(lists.logprob);
    for (const [batch, wasRead] of [
      [{ ...nested, actionMask: mask }, nestedRows.wasRead],
      [{ ...inPlace, actionMask: nestedMask.list }, nestedMask.wasRead],
      [packed, cuSeqlens.wasRead],
    ] as const) {
      const promise = ppo.compute(batch, grad);
      assert.equal(wasRead(), false);
      assert.deepEqual(await promise, expected);
    }
    assert.deepEqual(await ppo.compute({ ...inPlace, logprob: float64 }, grad), expected);
  });

  it('many calls share the turns, and each gets its own result', async () => {
    const expected = ppo.computeSync(lists, grad);
    let done = 0;
    const calls = Array.from({ length: 12 }, async () => {
      const result = await ppo.compute(lists, grad);
      done++;
      return result;
    });
    await setImmediate();
    assert.equal(done, 0);
    for (const result of await Promise.all(calls)) assert.deepEqual(result, expected);
  });

  it('end when the signal aborts', async () => {
    for (const compute of [
      (batch: Batch, signal: AbortSignal) => ppo.compute(batch, { signal }),
      (batch: Batch, signal: AbortSignal) => kl.calculateKlLoss(batch, { signal }),
      (batch: Batch, signal: AbortSignal) => grpo.compute(batch, { signal }),
      (batch: Batch, signal: AbortSignal) => objective.compute(batch, { signal }),
    ]) {
      const controller = new AbortController();
      const { list, wasRead } = watched(mask);
      const promise = compute(
        { ...rewarded, advantages: lists.advantages, actionMask: list },
        controller.signal,
      );
      controller.abort('no longer wanted');
      await assert.rejects(promise, (error: Error) => {
        assert.equal(error.cause, 'no longer wanted');
        return isLossError('ERR_ABORTED')(error);
      });
      assert.equal(wasRead(), false);
    }
  });

  it('report an element that is not a number, with its index', async () => {
    const logprob: unknown[] = lists.logprob.slice();
    logprob[TOKENS - 1] = 'x';
    for (const batch of [
      { ...lists, logprob },
      { ...lists, logprob: rowsOf(logprob) },
    ] as Batch[])
      await assert.rejects(
        ppo.compute(batch),
        isLossError('ERR_INVALID_INPUT', new RegExp(`logprob\\[${TOKENS - 1}\\].*'x'`)),
      );
  });

  it('use the arrays and options that were passed, even if the caller then replaces them', async () => {
    const expected = ppo.computeSync(lists, grad);
    const [own, other] = [new Float32Array(TOKENS), new Float32Array(TOKENS)];
    const batch: Batch = { ...lists };
    const options = { grad: own };
    const promise = ppo.compute(batch, options);
    options.grad = other;
    batch.logprob = lists.oldLogprob;
    batch.actionMask = inPlace.actionMask.slice().fill(0);
    assert.equal((await promise).grad, own);
    assert.deepEqual(own, expected.grad);
    assert.ok(other.every((x) => x === 0));
    const stepped: Batch = { ...lists, step: 7 };
    const result = mixChord.compute(stepped);
    stepped.step = 9;
    assert.deepEqual(await result, mixChord.computeSync(lists));
  });

  describe('use the arrays of columns with a dtype, even if the caller then puts others into them:', () => {
    const half = (bits: number) => ({ data: new Uint16Array(TOKENS).fill(bits), dtype: 'bfloat16' as const });
    // The bits of −0.5, −1 and 0.25.
    const columns = () => ({
      oldLogprob: half(0xbf00),
      refLogprob: half(0xbf80),
      advantages: half(0x3e80),
      entropy: half(0x3e80),
      tokenLevelScores: { data: Float32Array.from(lists.tokenLevelScores), dtype: 'float32' as const },
    });
    const gspo = POLICY_LOSS_FN.create('gspo');
    const { logprob: _l, entropy: _e, ...others } = lists;
    const tokens = {
      logits: Float32Array.from({ length: 2 * TOKENS }, (_, i) => i % 7),
      targets: new Array<number>(TOKENS).fill(0),
      vocabulary: 2,
    };
    const calls: Record<string, (batch: ReturnType<typeof columns>) => Promise<unknown>> = {
      'a policy loss': (batch) => ppo.compute({ ...lists, ...batch }, grad),
      'a KL loss': (batch) => kl.calculateKlLoss({ ...lists, ...batch }, grad),
      'a KL penalty': (batch) => kl.applyKlPenaltyToReward({ ...lists, ...batch }),
      'an objective': (batch) => objective.compute({ ...lists, ...batch }, grad),
      'an objective with advantages to compute': ({ advantages: _, ...batch }) =>
        objective.compute({ ...rewarded, ...batch }, grad),
      'an objective with a KL penalty': ({ advantages: _, ...batch }) =>
        penalised.compute({ ...rewarded, ...batch }, grad),
      'a loss from logits': ({ oldLogprob, advantages }) =>
        ppo.fromLogits({ ...others, ...tokens, oldLogprob, advantages }, { gradLogits: true }),
      'a loss from logits that are read twice': ({ oldLogprob, advantages }) =>
        gspo.fromLogits({ ...others, ...tokens, oldLogprob, advantages }, { gradLogits: true }),
    };
    for (const [what, compute] of Object.entries(calls))
      it(what, async () => {
        const expected = await compute(columns());
        const batch = columns();
        const promise = compute(batch);
        for (const column of Object.values(batch))
          Object.assign(column, { data: new Uint16Array(TOKENS), dtype: 'float16' });
        assert.deepEqual(await promise, expected);
      });
  });

  it('use the inputs that were passed, even if an objective reads them after it computed advantages', async () => {
    const dropping = ALGORITHM_TYPE.get('grpo').objective({ advantage_fn_args: { std_threshold: 0.5 } });
    const calls: [(batch: Batch) => Promise<unknown>, unknown][] = [
      [(batch) => objective.compute(batch, grad), objective.computeSync(rewarded, grad)],
      [(batch) => dropping.count(batch), dropping.countSync(rewarded)],
    ];
    for (const [compute, expected] of calls) {
      const batch: Batch = { ...rewarded };
      const promise = compute(batch);
      Object.assign(batch, {
        shape: [1, 1],
        logprob: lists.oldLogprob,
        oldLogprob: lists.refLogprob,
        refLogprob: lists.logprob,
        actionMask: inPlace.actionMask.slice().fill(0),
      });
      assert.deepEqual(await promise, expected);
    }
  });

  it('use the named rewards that were passed', async () => {
    const named = { ...rewarded, correctness: perRow(3), format: perRow(2) };
    const expected = gdpo.computeSync(named);
    const batch = { ...named };
    const promise = gdpo.compute(batch);
    Object.assign(batch, { correctness: perRow(5), format: perRow(7) });
    assert.deepEqual(await promise, expected);
  });

  it('read elements that changed in the meantime', async () => {
    const logprob = lists.logprob.slice();
    const promise = ppo.compute({ ...lists, logprob }, grad);
    logprob[TOKENS - 1] = -3;
    assert.deepEqual(await promise, ppo.computeSync({ ...lists, logprob }, grad));
  });

  it('report arrays that become shorter or are transferred in the meantime', async () => {
    const shorter = lists.logprob.slice();
    const nested = rowsOf(lists.logprob);
    const float64 = Float64Array.from(lists.logprob);
    const float32 = inPlace.logprob.slice();
    const changes: [Batch, () => void, RegExp][] = [
      [{ ...lists, logprob: shorter }, () => shorter.pop(), /logprob\[\d+\].*undefined/],
      [{ ...lists, logprob: nested }, () => nested[ROWS - 1]!.pop(), /logprob\[39999\].*a row of 6/],
      [
        { ...lists, logprob: nested.slice() },
        () => nested[ROWS - 1]!.push(0, 0),
        /logprob\[39999\].*a row of 6/,
      ],
      [
        { ...lists, logprob: float64 },
        () => structuredClone(float64.buffer, { transfer: [float64.buffer] }),
        /detached/,
      ],
      [
        { ...lists, logprob: float32 },
        () => structuredClone(float32.buffer, { transfer: [float32.buffer] }),
        /array/,
      ],
    ];
    for (const [batch, change, message] of changes) {
      const promise = ppo.compute(batch);
      change();
      await assert.rejects(promise, isLossError(['ERR_INVALID_INPUT', 'ERR_SHAPE_MISMATCH'], message));
    }
  });
});
