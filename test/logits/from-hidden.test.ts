/** Tests losses from hidden states: they agree with the reference, for every policy loss and in every form of a call. */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import {
  type FromHiddenOptions,
  type HiddenBatch,
  lossFromExpression,
  POLICY_LOSS_FN,
  setThreads,
} from '../../lib/index.js';
import { layOut, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { assertReference, HEAD, withHidden } from '../support/from-hidden.js';
import { SPEC } from '../support/from-logits.js';
import { everyFunction } from '../support/functions.js';
import { objectiveOf, REWARDED, unadvised } from '../support/objective.js';
import { generator } from '../support/random.js';
import { assertSameArray } from '../support/tolerance.js';

const ALL = { grad: true, entropy: true, gradHidden: true, gradWeight: true } as const;

describe('losses from hidden states agree with the reference', () => {
  for (const { family, name, args, title } of everyFunction(1))
    if (family === 'policy')
      it(title, () => {
        const batch = layOut(makeBatch(fitting(name, args, SPEC)));
        return assertReference(POLICY_LOSS_FN.create(name, args), withHidden(batch));
      });

  const { rowLengths: _, ...padded } = { ...SPEC, packed: false, mask: 'prefix' } as const;
  for (const name of ['ppo', 'gspo'])
    it(`${name}, with padded rows and without a bias`, () =>
      assertReference(
        POLICY_LOSS_FN.create(name),
        withHidden(layOut(makeBatch(padded)), { ...HEAD, bias: false }),
      ));

  for (const dtype of ['float16', 'bfloat16'] as const)
    for (const name of ['ppo', 'gspo'])
      it(`${name}, ${dtype}`, () =>
        assertReference(
          POLICY_LOSS_FN.create(name),
          withHidden(layOut(makeBatch(SPEC)), { ...HEAD, dtype }),
        ));

  it('with a temperature per token, a softcap and a support', () => {
    const made = withHidden(layOut(makeBatch(SPEC)));
    const { uniform } = generator(3);
    const tokenIds: number[] = [];
    const offsets = [0];
    for (const target of made.reference.targets) {
      for (let id = 0; id < HEAD.vocabulary; id++) if (id === target || uniform() < 0.4) tokenIds.push(id);
      offsets.push(tokenIds.length);
    }
    const temperature = made.reference.targets.map(() => 0.5 + uniform());
    return assertReference(POLICY_LOSS_FN.create('ppo'), made, {
      temperature,
      softcap: 20,
      support: { tokenIds, offsets },
    });
  });

  it('with a correction', () =>
    assertReference(
      POLICY_LOSS_FN.create('ppo', { correction: { rolloutIs: 'token' } }),
      withHidden(layOut(makeBatch(SPEC))),
    ));

  // Sizes on both sides of those at which tiles, panels, chunks and parts of the products end.
  for (const [tokens, vocabulary, size] of [
    [1, 2, 1],
    [5, 8, 4],
    [6, 15, 255],
    [7, 16, 256],
    [11, 31, 257],
    [12, 32, 33],
    [13, 33, 513],
    [33, 383, 16],
    [191, 384, 3],
    [193, 385, 5],
    [2, 1025, 12],
    [257, 7, 385],
  ] as const)
    it(`${tokens} tokens, ${vocabulary} logits, hidden states of ${size}`, () => {
      const spec = { ...SPEC, rows: 1, rowLengths: [tokens], columns: tokens, mask: 'random' as const };
      const made = withHidden(layOut(makeBatch(spec)), { ...HEAD, vocabulary, size });
      return assertReference(POLICY_LOSS_FN.create('ppo'), made);
    });

  for (const [algorithm, config] of [
    ['grpo', { entropy_loss_fn_args: { entropy_coef: 0.01 }, kl_loss_fn_args: { kl_coef: 0.1 } }],
    ['rloo', { kl_penalty_fn: 'k2', kl_penalty_fn_args: { kl_coef: 0.4 } }],
    ['sft', {}],
  ] as const)
    it(`of the objective ${algorithm} with ${JSON.stringify(config)}`, () => {
      const { batch } = withHidden(layOut(unadvised(REWARDED)));
      const fn = objectiveOf(algorithm, config);
      const { logprob, entropy, loss, metrics } = fn.fromHiddenSync(batch, ALL);
      const expected = fn.computeSync({ ...batch, logprob, entropy: entropy! } as never);
      assert.deepStrictEqual({ loss, metrics }, { loss: expected.loss, metrics: expected.metrics });
      return assertReference(fn, withHidden(layOut(unadvised(REWARDED))));
    });
});

describe('losses from hidden states', () => {
  const ppo = POLICY_LOSS_FN.create('ppo');

  it('have the bits of fromLogits() if the logits have no rounding errors', () => {
    const { batch, mask, columns } = withHidden(layOut(makeBatch(SPEC)));
    const { integer } = generator(6);
    const { vocabulary: V, size: D } = HEAD;
    const quarters = (length: number) => Float32Array.from({ length }, () => integer(-6, 6) / 4);
    const hidden = quarters(mask.length * D);
    const weight = quarters(V * D);
    const logits = new Float32Array(mask.length * V);
    for (let i = 0; i < logits.length; i++)
      for (let d = 0; d < D; d++) logits[i]! += hidden[Math.floor(i / V) * D + d]! * weight[(i % V) * D + d]!;
    const { targets } = batch;
    const request = { grad: true, entropy: true } as const;
    for (const name of ['ppo', 'gspo']) {
      const fn = POLICY_LOSS_FN.create(name);
      const expected = fn.fromLogitsSync({ ...columns, targets, logits } as never, request);
      assert.deepStrictEqual(
        fn.fromHiddenSync({ ...columns, targets, hidden, weight } as HiddenBatch, request),
        expected,
      );
    }
  });

  it('do not read the hidden states of masked tokens, whose gradient is 0', () => {
    const { batch, mask } = withHidden(layOut(makeBatch(SPEC)));
    const hidden = batch.hidden as Float32Array;
    const zeros = hidden.map((x) => (Number.isNaN(x) ? 0 : x));
    assert.ok(hidden.some(Number.isNaN));
    for (const name of ['ppo', 'gspo']) {
      const fn = POLICY_LOSS_FN.create(name);
      const found = fn.fromHiddenSync(batch, ALL);
      assert.deepStrictEqual(found, fn.fromHiddenSync({ ...batch, hidden: zeros }, ALL));
      found.gradHidden.forEach((x, i) => {
        if (!mask[Math.floor(i / HEAD.size)]) assert.ok(Object.is(x, 0));
      });
    }
  });

  it('have the slopes of their gradients', () => {
    const fn = lossFromExpression('-A*r - 0.1*H');
    const { batch } = withHidden(layOut(makeBatch({ ...SPEC, values: 'onpolicy' })));
    const { normal } = generator(8);
    const { gradHidden, gradWeight, gradBias } = fn.fromHiddenSync(batch, { ...ALL, gradBias: true });
    for (const [key, grad] of Object.entries({ hidden: gradHidden, weight: gradWeight, bias: gradBias })) {
      const array = batch[key as 'hidden'] as Float32Array;
      const step = array.map(() => 2e-3 * normal());
      const lossAt = (factor: number) => {
        const moved = array.map((x, i) => x + factor * step[i]!);
        return fn.fromHiddenSync({ ...batch, [key]: moved }).loss;
      };
      const slope = (lossAt(1) - lossAt(-1)) / 2;
      const expected = grad.reduce((sum, g, i) => sum + g * step[i]!, 0);
      const size = Math.hypot(...Array.from(grad, (g, i) => g * step[i]!));
      assert.ok(Math.abs(slope - expected) <= 0.02 * size, `${key}: ${slope}, expected ${expected}`);
    }
  });

  it('are 0 without unmasked tokens, and so are their gradients', () => {
    const empty = { hidden: [], weight: [1, 2, 3, 4, 5, 6] };
    const masked = { hidden: new Array(12).fill(Number.NaN), weight: [1, 2, 3, 4, 5, 6] };
    for (const [shape, { hidden, weight }] of [
      [[0, 5], empty],
      [[2, 0], empty],
      [[2, 3], masked],
    ] as const)
      for (const name of ['ppo', 'gspo']) {
        const tokens = shape[0] * shape[1];
        const found = POLICY_LOSS_FN.create(name).fromHiddenSync(
          {
            shape,
            hidden: Float32Array.from(hidden),
            weight: Float32Array.from(weight),
            bias: new Float32Array(3),
            targets: new Int32Array(tokens),
            oldLogprob: new Float32Array(tokens),
            advantages: new Float32Array(tokens),
            actionMask: new Uint8Array(tokens),
          },
          {
            gradHidden: new Float32Array(hidden.length).fill(7),
            gradWeight: new Float32Array(6).fill(7),
            gradBias: new Float32Array(3).fill(7),
          },
        );
        assert.equal(found.loss, 0);
        assertSameArray(found.gradHidden, new Float32Array(hidden.length), 'gradHidden');
        assertSameArray(found.gradWeight, new Float32Array(6), 'gradWeight');
        assertSameArray(found.gradBias, new Float32Array(3), 'gradBias');
      }
  });

  it('return only what is requested', async () => {
    const { batch } = withHidden(layOut(makeBatch(SPEC)));
    const all = await ppo.fromHidden(batch, { ...ALL, gradBias: true });
    for (const request of [
      {},
      { gradHidden: true },
      { gradWeight: true },
      { gradBias: true },
      { gradBias: true, gradHidden: true, grad: true },
      { entropy: true, gradHidden: false },
    ] as FromHiddenOptions[]) {
      const found = await ppo.fromHidden(batch, request);
      const wanted = Object.entries(request).flatMap(([key, value]) => (value ? [key] : []));
      assert.deepEqual(Object.keys(found).sort(), ['logprob', 'loss', 'metrics', ...wanted].sort());
      assert.deepEqual(found, Object.fromEntries(Object.keys(found).map((key) => [key, all[key as 'grad']])));
    }
  });
});

// Several blocks of logits.
describe('losses from many hidden states', () => {
  const [tokens, vocabulary, size] = [420, 90_001, 5];
  const { normal, integer, uniform } = generator(9);
  const numbers = (length: number) => Float32Array.from({ length }, normal);
  const weight = numbers(vocabulary * size);
  // The unmasked tokens, of three rows of different lengths.
  const lengths = [100, 219, 101];
  const column = () => Float32Array.from({ length: tokens }, () => 0.3 * normal());
  const kept = {
    hidden: numbers(tokens * size),
    targets: Int32Array.from({ length: tokens }, () => integer(0, vocabulary - 1)),
    oldLogprob: column().map((x) => x - 11),
    advantages: column(),
  };
  const packed = {
    ...kept,
    cuSeqlens: [0, 100, 319, 420],
    actionMask: new Uint8Array(tokens).fill(1),
    weight,
  };

  // Returns the same tokens with masked ones between them.
  function padded(): HiddenBatch & { place: number[] } {
    const T = 700;
    const place = lengths.flatMap((length, row) => {
      const all = Array.from({ length: T }, (_, t) => ({ t, order: uniform() }));
      // One row begins with its unmasked tokens, one ends with them, and in one they are scattered.
      if (row === 1) all.sort((a, b) => a.order - b.order);
      const chosen = row === 2 ? all.slice(-length) : all.slice(0, length);
      return chosen.map(({ t }) => row * T + t).sort((a, b) => a - b);
    });
    const spread = <A extends Float32Array | Int32Array | Uint8Array>(
      from: A,
      per: number,
      fill: number,
    ): A => {
      const to = new (from.constructor as new (n: number) => A)(3 * T * per).fill(fill) as A;
      for (const [i, at] of place.entries()) to.set(from.subarray(i * per, (i + 1) * per), at * per);
      return to;
    };
    return {
      shape: [3, T],
      hidden: spread(kept.hidden, size, Number.NaN),
      targets: spread(kept.targets, 1, -5),
      oldLogprob: spread(kept.oldLogprob, 1, Number.NaN),
      advantages: spread(kept.advantages, 1, Number.NaN),
      actionMask: spread(packed.actionMask, 1, 0),
      weight,
      place,
    };
  }

  for (const name of ['ppo', 'gspo'])
    it(`${name}: have the same bits for any threads, layout and blocks`, async () => {
      const fn = POLICY_LOSS_FN.create(name);
      const expected = fn.fromHiddenSync(packed, ALL);
      assert.ok(expected.gradWeight.some((x) => x !== 0));
      try {
        for (const threads of [1, 2, 5]) {
          setThreads(threads);
          assert.deepStrictEqual(await fn.fromHidden(packed, ALL), expected);
        }
      } finally {
        setThreads(cpus().length);
      }
      const { place, ...batch } = padded();
      const found = await fn.fromHidden(batch, ALL);
      assert.equal(found.loss, expected.loss);
      assertSameArray(found.gradWeight, expected.gradWeight, 'gradWeight');
      const own = place.flatMap((at) => Array.from(found.gradHidden.subarray(at * size, (at + 1) * size)));
      assertSameArray(own, expected.gradHidden, 'gradHidden');
      assert.equal(found.gradHidden.filter((x) => x !== 0).length, own.filter((x) => x !== 0).length);
    });
});
