/** Tests logits in blocks, and the errors of losses that are computed from logits. */
import assert from 'node:assert/strict';
import {
  type Logits,
  type LogitsBatch,
  type LogitsBatchSync,
  lossFromExpression,
  POLICY_LOSS_FN,
} from '../../lib/index.js';
import { layOut, makeBatch } from '../support/draw.js';
import { inBlocks, inThreeCalls, type Made, SPEC, V, withLogits } from '../support/from-logits.js';
import { copyOf, dataOf } from '../support/logits.js';
import { isLossError } from '../support/loss-error.js';
import { assertSameArray } from '../support/tolerance.js';

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
