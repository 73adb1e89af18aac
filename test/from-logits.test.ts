/**
 * Tests losses and objectives that are computed from logits: they have the bits of logprobs() and compute(), and within
 * rounding the gradients of logprobsBackward(), for every policy loss, in every form in which logits can come.
 */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import {
  type FromLogitsOptions,
  type Logits,
  type LogitsBatch,
  type LogitsBatchSync,
  logprobsBackwardSync,
  logprobsSync,
  lossFromExpression,
  Objective,
  POLICY_LOSS_FN,
  type PolicyLossFn,
  setThreads,
} from '../lib/index.js';
import { without } from './support/batch-keys.js';
import { EDGE_LENGTHS, fitting, layOut, makeBatch } from './support/draw.js';
import { everyFunction } from './support/functions.js';
import { fromHalf } from './support/half.js';
import { copyOf, dataOf, type LogitsDType, stored } from './support/logits.js';
import { isLossError } from './support/loss-error.js';
import { objectiveOf, REWARDED, unadvised } from './support/objective.js';
import { generator } from './support/random.js';
import { assertArray, assertSameArray } from './support/tolerance.js';

type Fn = PolicyLossFn<Partial<Record<string, number>>> | Objective;

const V = 37;
const SPEC = { ...EDGE_LENGTHS, rows: 6, columns: 70, rowLengths: [1, 31, 70, 33, 64, 2] };

/** How much the gradients of one call and of three may differ, because they are rounded differently. */
const ROUNDING = { float32: 2e-6, float16: 2 ** -10, bfloat16: 2 ** -7 };

interface Made {
  dtype: LogitsDType;
  /** The batch without the columns that come from logits. */
  columns: Record<string, unknown>;
  mask: Uint8Array;
  logits: ReturnType<typeof stored>['logits'];
  targets: Int32Array;
}

/** Adds logits to a batch. The logits and targets of masked tokens are such that they must not be read. */
function withLogits(batch: object, dtype: LogitsDType = 'float32'): Made {
  const { normal, integer } = generator(77);
  const columns = without(batch, 'logprob', 'entropy') as Record<string, unknown>;
  const mask = columns.actionMask as Uint8Array;
  const numbers = Array.from({ length: mask.length * V }, (_, i) =>
    mask[Math.floor(i / V)] ? 3 * normal() : Number.NaN,
  );
  const targets = Int32Array.from(mask, (kept) => (kept ? integer(0, V - 1) : -7));
  return { dtype, columns, mask, logits: stored(numbers, dtype).logits, targets };
}

/** The numbers that an array of a dtype holds. */
function numbersOf(array: Logits | Uint16Array, dtype: LogitsDType): ArrayLike<number> {
  const data = array instanceof Uint16Array ? array : dataOf(array);
  return dtype === 'float32' ? data : Array.from(data, (bits) => fromHalf(bits, dtype));
}

const readsEntropy = (fn: Fn) =>
  fn instanceof Objective
    ? fn.entropyLossFn.entropyCoef !== 0 || fn.lossFn.reads.columns.includes('entropy')
    : fn.reads.columns.includes('entropy') && !fn.reads.optional.includes('entropy');

const dependsOnEntropy = (fn: Fn) => (fn instanceof Objective ? readsEntropy(fn) : fn.dependsOnEntropy);

/** Computes a loss from logits in three calls. */
function inThreeCalls(fn: Fn, { columns, mask, logits, targets }: Made, more: object = {}) {
  const shape = [mask.length, V] as const;
  const options = { ...more, shape, targets: targets.map((target, i) => (mask[i] ? target : -100)) };
  const { logprob, logsumexp, entropy } = logprobsSync(logits, { ...options, entropy: true });
  const batch = { ...columns, logprob, ...(readsEntropy(fn) && { entropy }) };
  const result = fn.computeSync(batch, { grad: true, gradEntropy: true });
  const gradLogits = logprobsBackwardSync(logits, {
    ...options,
    logsumexp,
    gradLogprob: result.grad!,
    ...(dependsOnEntropy(fn) && { entropy: entropy!, gradEntropy: result.gradEntropy! }),
    out: copyOf(logits),
  });
  return { ...result, logprob, gradLogits };
}

/** Divides logits into blocks of a number of rows, in memory of their own. */
function inBlocks(logits: Made['logits'], rows: number): Logits[] {
  const data = dataOf(logits);
  const blocks: Logits[] = [];
  for (let at = 0; at < data.length; at += rows * V) {
    const part = data.slice(at, at + rows * V);
    blocks.push('dtype' in logits ? { ...logits, data: part as Uint16Array } : (part as Float32Array));
  }
  return blocks;
}

async function assertSameAsThreeCalls(fn: Fn, made: Made, more: object = {}): Promise<void> {
  const expected = inThreeCalls(fn, made, more);
  const batch = (logits: LogitsBatch['logits']) =>
    ({ ...made.columns, ...more, logits, targets: made.targets, vocabulary: V }) as LogitsBatch;
  const check = (
    found: { loss: number; metrics: object; logprob: Float32Array; grad?: Float32Array },
    grad: Logits,
  ) => {
    assert.deepStrictEqual(
      { loss: found.loss, metrics: found.metrics },
      { loss: expected.loss, metrics: expected.metrics },
    );
    assertSameArray(found.logprob, expected.logprob, 'logprob');
    assertSameArray(dataOf(grad), dataOf(first), 'gradLogits');
    if (found.grad) assertSameArray(found.grad, expected.grad!, 'grad');
  };
  const first = copyOf(made.logits);
  await fn.fromLogits(batch(first), { gradLogits: first });
  const { dtype } = made;
  assertArray(numbersOf(first, dtype), numbersOf(expected.gradLogits, dtype), 'gradLogits', ROUNDING[dtype]);
  for (const grad of [false, true]) {
    const inPlace = copyOf(made.logits);
    check(await fn.fromLogits(batch(inPlace), { gradLogits: inPlace, grad }), inPlace);
    const out = copyOf(made.logits);
    const sync = fn.fromLogitsSync(batch(made.logits) as LogitsBatchSync, { gradLogits: out, grad });
    assert.equal(sync.gradLogits, out);
    assert.equal(sync.grad !== undefined, grad);
    check(sync, out);
  }
  const forward = await fn.fromLogits(batch(made.logits));
  assert.equal(forward.gradLogits, undefined);
  assert.equal(forward.loss, expected.loss);
  assertSameArray(forward.logprob, expected.logprob, 'logprob');

  let received: Logits[] = [];
  const receive: FromLogitsOptions['gradLogits'] = async (gradient, first) => {
    assert.equal(
      first * V,
      received.reduce((sum, block) => sum + dataOf(block).length, 0),
    );
    await null;
    received.push(copyOf(gradient as Made['logits']));
  };
  const joined = () => {
    const arrays = received.map(dataOf);
    received = [];
    return arrays.flatMap((array) => Array.from(array)) as unknown as Float32Array;
  };
  const blocks = () =>
    (async function* () {
      for (const block of inBlocks(made.logits, 23)) yield block;
    })();
  check(await fn.fromLogits(batch(blocks), { gradLogits: receive }), joined());
  const list = inBlocks(made.logits, 50);
  const gather = (gradient: Logits) => received.push(copyOf(gradient as Made['logits']));
  check(
    fn.fromLogitsSync(batch(() => inBlocks(made.logits, 50)) as LogitsBatchSync, { gradLogits: gather }),
    joined(),
  );
  assert.equal((await fn.fromLogits(batch(list))).loss, expected.loss);
}

describe('losses from logits', () => {
  for (const { family, name, args, title } of everyFunction(1))
    if (family === 'policy')
      for (const packed of [true, false])
        it(`${title}, ${packed ? 'packed' : 'padded'}`, () => {
          const { rowLengths: _, ...padded } = { ...SPEC, packed, mask: 'prefix' } as typeof SPEC;
          const spec = fitting(name, args, packed ? SPEC : (padded as typeof SPEC));
          return assertSameAsThreeCalls(
            POLICY_LOSS_FN.create(name, args),
            withLogits(layOut(makeBatch(spec))),
          );
        });

  for (const dtype of ['float16', 'bfloat16'] as const)
    for (const name of ['ppo', 'gspo', 'verl/clip_cov'])
      it(`${name}, ${dtype}`, () =>
        assertSameAsThreeCalls(POLICY_LOSS_FN.create(name), withLogits(layOut(makeBatch(SPEC)), dtype)));

  for (const name of ['ppo', 'gspo'])
    it(`${name}, with a temperature per token, a softcap and a support`, () => {
      const made = withLogits(layOut(makeBatch(SPEC)));
      const { uniform } = generator(3);
      const tokenIds: number[] = [];
      const offsets = [0];
      for (const target of made.targets) {
        for (let id = 0; id < V; id++) if (id === target || uniform() < 0.4) tokenIds.push(id);
        offsets.push(tokenIds.length);
      }
      const temperature = Array.from(made.targets, () => 0.5 + uniform());
      return assertSameAsThreeCalls(POLICY_LOSS_FN.create(name), made, {
        temperature,
        softcap: 20,
        support: { tokenIds, offsets },
      });
    });

  it('of few tokens', () => {
    const spec = { ...SPEC, rows: 1, rowLengths: [3], columns: 3, mask: 'ones' as const };
    return assertSameAsThreeCalls(POLICY_LOSS_FN.create('ppo'), withLogits(layOut(makeBatch(spec))));
  });

  it('of long rows, with the same bits for any number of threads and in parts of a batch', () => {
    const [tokens, vocabulary] = [48, 9001];
    const { normal, integer } = generator(5);
    const column = () => Float32Array.from({ length: tokens }, () => 0.3 * normal());
    const batch = {
      shape: [tokens / 8, 8] as const,
      logits: Float32Array.from({ length: tokens * vocabulary }, () => 3 * normal()),
      targets: Int32Array.from({ length: tokens }, () => integer(0, vocabulary - 1)),
      oldLogprob: column().map((x) => x - 9),
      advantages: column(),
      actionMask: new Uint8Array(tokens).fill(1).fill(0, 3, 8),
    };
    const ppo = POLICY_LOSS_FN.create('ppo');
    const compute = () => ppo.fromLogitsSync(batch, { gradLogits: true });
    const expected = compute();
    try {
      for (const threads of [1, 2, 5]) {
        setThreads(threads);
        assert.deepStrictEqual(compute(), expected);
      }
    } finally {
      setThreads(cpus().length);
    }

    // The second half of the batch, with the counts of the whole batch.
    const normalizer = ppo.countSync({ ...batch, logprob: batch.oldLogprob });
    const half = {
      ...batch,
      shape: [tokens / 16, 8] as const,
      logits: batch.logits.subarray((tokens / 2) * vocabulary),
      targets: batch.targets.subarray(tokens / 2),
      oldLogprob: batch.oldLogprob.subarray(tokens / 2),
      advantages: batch.advantages.subarray(tokens / 2),
      actionMask: batch.actionMask.subarray(tokens / 2),
    };
    const { gradLogits } = ppo.fromLogitsSync(half, { gradLogits: true, normalizer, part: true });
    const wanted = dataOf(expected.gradLogits!).subarray((tokens / 2) * vocabulary);
    assertSameArray(dataOf(gradLogits!), wanted, 'gradLogits');
  });

  it('with corrections', () =>
    assertSameAsThreeCalls(
      POLICY_LOSS_FN.create('ppo', {
        correction: { rolloutIs: 'token' },
        masks: { topEntropyQuantile: 0.5 },
      }),
      withLogits(layOut(makeBatch(SPEC))),
    ));
});

describe('objectives from logits', () => {
  for (const [algorithm, config] of [
    ['grpo', { entropy_loss_fn_args: { entropy_coef: 0.01 }, kl_loss_fn_args: { kl_coef: 0.1 } }],
    ['grpo', { entropy_loss_fn_args: { entropy_coef: 0 } }],
    ['rloo', { kl_penalty_fn: 'k2', kl_penalty_fn_args: { kl_coef: 0.4 } }],
    ['reinforceplusplus', {}],
    ['gspo', { entropy_loss_fn_args: { entropy_coef: 0.01 } }],
    ['sft', {}],
  ] as const)
    it(`${algorithm} with ${JSON.stringify(config)}`, () =>
      assertSameAsThreeCalls(objectiveOf(algorithm, config), withLogits(layOut(unadvised(REWARDED)))));
});

describe('objectives without the gradient with respect to entropies', () => {
  const fn = objectiveOf('grpo', { entropy_loss_fn_args: { entropy_coef: 0.01 } });

  it('have the whole gradient with respect to the logits', () => {
    const { columns, targets, logits } = withLogits(layOut(unadvised(REWARDED)));
    const batch = { ...columns, targets, logits, vocabulary: V } as LogitsBatchSync;
    const expected = fn.fromLogitsSync(batch, { gradLogits: true });
    for (const grad of [true, false]) {
      const found = fn.fromLogitsSync(batch, { gradLogits: true, grad, gradEntropy: false });
      assert.deepEqual(found.gradLogits, expected.gradLogits);
      assert.equal('gradEntropy' in found, false);
    }
  });

  it('do not return zeros in its place', async () => {
    const batch = layOut(unadvised(REWARDED));
    for (const grad of [true, { dtype: 'float16' }] as const) {
      const options = { grad, gradEntropy: false };
      for (const found of [fn.computeSync(batch, options), await fn.compute(batch, options)])
        assert.deepEqual(['gradEntropy' in found, 'halfGradEntropy' in found], [false, false]);
    }
  });
});

describe('logits in blocks', () => {
  const made = () => withLogits(layOut(makeBatch(SPEC)));
  const ppo = POLICY_LOSS_FN.create('ppo');
  const batchOf = ({ columns, targets }: Made, logits: unknown) =>
    ({ ...columns, targets, logits, vocabulary: V }) as LogitsBatch;

  it('are read once by a loss whose gradient is per token, and twice by others', async () => {
    const given = made();
    const once = function* () {
      yield* inBlocks(given.logits, 9);
    };
    const gradients: Logits[] = [];
    const gradLogits = (gradient: Logits) => void gradients.push(copyOf(gradient as Float32Array));
    const { loss } = await ppo.fromLogits(batchOf(given, once()), { gradLogits });
    const expected = inThreeCalls(ppo, given);
    assert.equal(loss, expected.loss);
    const { gradLogits: whole } = await ppo.fromLogits(batchOf(given, given.logits), { gradLogits: true });
    const joined = gradients.flatMap((block) => Array.from(dataOf(block)));
    assertSameArray(joined, dataOf(whole!), 'gradLogits');

    const gspo = POLICY_LOSS_FN.create('gspo');
    const refusal = isLossError('ERR_INVALID_INPUT', /logits: expected a function that returns the blocks/);
    await assert.rejects(gspo.fromLogits(batchOf(given, once()), { gradLogits }), refusal);
    let calls = 0;
    const counted = () => {
      calls++;
      return once();
    };
    await gspo.fromLogits(batchOf(given, counted), { gradLogits });
    assert.equal(calls, 2);
  });

  it('keep the memory of one block only', async () => {
    const given = made();
    const blocks = inBlocks(given.logits, 20);
    let outside = 0;
    const one = async function* () {
      for (const block of blocks) {
        assert.equal(++outside, 1);
        yield block;
        outside--;
      }
    };
    await ppo.fromLogits(batchOf(given, one()), { gradLogits: () => {} });
  });

  it('are closed when a call fails', async () => {
    const given = made();
    for (const isAsync of [false, true]) {
      let closed = 0;
      const blocks = function* () {
        try {
          yield* inBlocks(given.logits, 20);
        } finally {
          closed++;
        }
      };
      const asyncBlocks = async function* () {
        yield* blocks();
      };
      const failing = () => {
        throw new Error('full');
      };
      const source = isAsync ? asyncBlocks() : blocks();
      const options = { gradLogits: failing };
      await assert.rejects(ppo.fromLogits(batchOf(given, source), options), {
        name: 'LossError',
        message: 'gradLogits failed: full',
      });
      assert.equal(closed, 1);
    }
  });

  it('are closed once after an error, which an error of the closing does not replace', async () => {
    const given = made();
    for (const how of ['next', 'block'] as const) {
      let closed = 0;
      const iterator = {
        next: () => {
          if (how === 'next') throw new Error('next');
          return { done: false, value: 5 };
        },
        return: () => {
          closed++;
          throw new Error('closing');
        },
      };
      for (const source of [
        { [Symbol.iterator]: () => iterator },
        { [Symbol.asyncIterator]: () => iterator },
      ]) {
        closed = 0;
        const message = how === 'next' ? 'the next block of logits could not be read: next' : /got number 5/;
        await assert.rejects(ppo.fromLogits(batchOf(given, source)), { message });
        assert.equal(closed, how === 'next' ? 0 : 1);
      }
    }
    const none = { [Symbol.iterator]: () => ({ next: () => null }) };
    await assert.rejects(
      ppo.fromLogits(batchOf(given, none)),
      isLossError('ERR_INVALID_INPUT', /^logits: .*next/),
    );
  });

  for (const [title, source, message] of [
    ['too few rows', (blocks: Logits[]) => blocks.slice(1), /blocks with 201 rows in all.*got 181/],
    [
      'too many rows',
      (blocks: Logits[]) => [...blocks, blocks[0]!],
      /blocks with 201 rows in all.*at least 221/,
    ],
    ['a block that is no array', () => [5], /logits: expected a Float32Array.*got number 5/],
    ['half a row', () => [new Float32Array(V + 1)], /logits: expected \[1, 37\] = 37 values, got 38/],
  ] as const)
    it(`with ${title} are refused`, async () => {
      const given = made();
      const blocks = source(inBlocks(given.logits, 20)) as Logits[];
      const codes = ['ERR_SHAPE_MISMATCH', 'ERR_INVALID_INPUT'] as const;
      await assert.rejects(ppo.fromLogits(batchOf(given, blocks)), isLossError(codes, message));
      assert.throws(
        () => ppo.fromLogitsSync(batchOf(given, blocks) as LogitsBatchSync),
        isLossError(codes, message),
      );
    });
});

describe('bad arguments of fromLogits()', () => {
  const given = withLogits(layOut(makeBatch(SPEC)));
  const unmasked = given.mask.indexOf(1);
  const ppo = POLICY_LOSS_FN.create('ppo');
  const oldLogprob = new Float32Array(dataOf(given.logits).buffer, 0, given.mask.length);
  for (const [title, changes, options, message] of [
    ['a logprob', { logprob: given.columns.oldLogprob }, {}, /^logprob: expected a batch without it/],
    ['an entropy', { entropy: given.columns.oldLogprob }, {}, /^entropy: expected a batch without it/],
    ['verl’s name of logprob', { log_prob: given.columns.oldLogprob }, {}, /^log_prob: /],
    ['a missing mask', { actionMask: undefined }, {}, /^action_mask|^actionMask/],
    ['no shape', { cuSeqlens: undefined }, {}, /^shape: /],
    ['missing logits', { logits: undefined }, {}, /^logits: .*got undefined/],
    ['missing targets', { targets: undefined }, {}, /^targets: .*got undefined/],
    ['too few targets', { targets: [1] }, {}, /^targets: expected \[201\].*got 1/],
    [
      'an ignored target',
      { targets: given.targets.with(unmasked, -100) },
      {},
      /^targets\[\d+\]: .*the mask keeps/,
    ],
    ['a target above', { targets: given.targets.with(unmasked, V) }, {}, /^targets\[\d+\]: .*got 37/],
    ['another vocabulary', { vocabulary: V + 1 }, {}, /^logits: expected \[201, 38\]/],
    ['a vocabulary of 0', { vocabulary: 0 }, {}, /^vocabulary: /],
    ['a device', {}, { device: 'cuda:9' }, /device/],
    ['a wrong gradLogits', {}, { gradLogits: 5 }, /^gradLogits: /],
    ['a short gradLogits', {}, { gradLogits: new Float32Array(5) }, /^gradLogits: expected \[201, 37\]/],
    [
      'no function for blocks',
      { logits: [given.logits] },
      { gradLogits: true },
      /^gradLogits: expected a function/,
    ],
    [
      'blocks without a vocabulary',
      { logits: [given.logits], vocabulary: undefined },
      {},
      /^vocabulary: .*in blocks/,
    ],
    [
      'overlapping memory',
      { oldLogprob },
      { gradLogits: given.logits },
      /^gradLogits: expected other memory than oldLogprob/,
    ],
    ['no batch', null, {}, /batch/],
    [
      'a stride of 0',
      { logits: [given.logits], rowStride: 0 },
      {},
      /^rowStride: expected a whole number of at least 37/,
    ],
    [
      'a stride without a vocabulary',
      { rowStride: V, vocabulary: undefined },
      {},
      /^vocabulary: .*there is a rowStride/,
    ],
    [
      'a gradient on a device',
      {},
      { grad: 'device', gradLogits: true },
      /^grad: expected true, false or a Float32Array/,
    ],
  ] as const)
    it(`${title} is refused`, async () => {
      const { columns, logits, targets } = given;
      const batch = changes && ({ ...columns, logits, targets, vocabulary: V, ...changes } as never);
      const codes = [
        'ERR_INVALID_INPUT',
        'ERR_MISSING_INPUT',
        'ERR_SHAPE_MISMATCH',
        'ERR_DEVICE_UNAVAILABLE',
      ] as const;
      const check = isLossError(codes, message);
      await assert.rejects(ppo.fromLogits(batch as never, options as never), check);
      assert.throws(() => ppo.fromLogitsSync(batch as never, options as never), check);
    });

  for (const [title, more, keys] of [
    ['nothing', {}, []],
    ['grad', { grad: true }, ['grad']],
    ['gradEntropy', { gradEntropy: true }, ['gradEntropy']],
    ['both', { grad: true, gradEntropy: true }, ['grad', 'gradEntropy']],
  ] as const)
    it(`gradients with respect to log-probabilities and entropies are returned if requested: ${title}`, () => {
      const { columns, logits, targets } = given;
      const batch = { ...columns, logits, targets } as never;
      const withEntropy = lossFromExpression('-A*r - 0.1*H');
      assert.ok(withEntropy.dependsOnEntropy);
      for (const fn of [ppo, withEntropy])
        for (const gradLogits of [true, false]) {
          const result = fn.fromLogitsSync(batch, { ...more, gradLogits });
          const found = Object.keys(result).filter((key) => ['grad', 'gradEntropy'].includes(key));
          assert.deepEqual(found, keys, `${gradLogits}`);
        }
    });

  it('ids of a support in the memory of the gradient are refused, also in blocks', async () => {
    const tokens = 4;
    const gradLogits = new Float32Array(2 * tokens);
    const batch = (logits: unknown, tokenIds: Int32Array) =>
      ({
        shape: [1, tokens],
        logits,
        targets: [0, 0, 0, 0],
        vocabulary: 2,
        support: { tokenIds, offsets: [0, 1, 2, 3, 4] },
        oldLogprob: new Float32Array(tokens),
        advantages: [1],
        actionMask: [1, 1, 1, 1],
      }) as never;
    const logits = new Float32Array(2 * tokens);
    const ids = new Int32Array(gradLogits.buffer, 0, tokens);
    const apart = isLossError(
      'ERR_INVALID_INPUT',
      /gradLogits: expected other memory than support\.tokenIds/,
    );
    await assert.rejects(ppo.fromLogits(batch(logits, ids), { gradLogits }), apart);
    const block = isLossError('ERR_INVALID_INPUT', /logits: expected other memory than support\.tokenIds/);
    const options = { gradLogits: () => {} };
    await assert.rejects(ppo.fromLogits(batch([gradLogits], ids), options), block);
  });

  it('a function that returns a promise is refused by the synchronous call', () => {
    const { columns, logits, targets } = given;
    const batch = { ...columns, logits: [copyOf(logits)], targets, vocabulary: V } as never;
    const gradLogits = async () => {
      throw new Error('unseen');
    };
    const refusal = isLossError(
      'ERR_INVALID_INPUT',
      /^gradLogits: expected a function that returns no promise/,
    );
    assert.throws(() => ppo.fromLogitsSync(batch, { gradLogits }), refusal);
  });

  it('an aborted signal rejects the call', async () => {
    const { columns, logits, targets } = given;
    const batch = { ...columns, logits, targets } as never;
    const signal = AbortSignal.abort();
    await assert.rejects(ppo.fromLogits(batch, { gradLogits: true, signal }), isLossError('ERR_ABORTED'));
  });

  it('what the caller changes while a long batch is read does not matter', async () => {
    const tokens = 20_000;
    const support = {
      tokenIds: new Int32Array(tokens),
      offsets: Int32Array.from({ length: tokens + 1 }, (_, i) => i),
    };
    const batch = {
      shape: [1, tokens] as [number, number],
      logits: new Float32Array(2 * tokens),
      targets: new Array<number>(tokens).fill(0),
      oldLogprob: new Float32Array(tokens),
      advantages: [1],
      actionMask: new Array<number>(tokens).fill(1),
      support,
    };
    const promise = ppo.fromLogits(batch);
    Object.assign(batch, { shape: [0, 0], targets: [], support: undefined });
    Object.assign(support, { tokenIds: [], offsets: [] });
    assert.deepStrictEqual((await promise).logprob, new Float32Array(tokens));
  });

  it('an async iterable is refused by the synchronous call', () => {
    const { columns, targets } = given;
    const logits = (async function* () {
      yield given.logits;
    })();
    const batch = { ...columns, logits, targets, vocabulary: V } as never;
    assert.throws(() => ppo.fromLogitsSync(batch), isLossError('ERR_INVALID_INPUT', /async iterable/));
  });
});
