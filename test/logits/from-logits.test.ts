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
  POLICY_LOSS_FN,
  setThreads,
} from '../../lib/index.js';
import { layOut, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import {
  type Fn,
  inBlocks,
  inThreeCalls,
  type Made,
  SPEC,
  V,
  withEveryInput,
  withLogits,
} from '../support/from-logits.js';
import { everyFunction, oneOfEach } from '../support/functions.js';
import { fromHalf } from '../support/half.js';
import { copyOf, dataOf, type LogitsDType } from '../support/logits.js';
import { objectiveOf, REWARDED, unadvised } from '../support/objective.js';
import { generator } from '../support/random.js';
import { assertArray, assertSameArray } from '../support/tolerance.js';

/** How much the gradients of one call and of three may differ, because they are rounded differently. */
const ROUNDING = { float32: 2e-6, float16: 2 ** -10, bfloat16: 2 ** -7 };

/** The numbers that an array of a dtype holds. */
function numbersOf(array: Logits | Uint16Array, dtype: LogitsDType): ArrayLike<number> {
  const data = array instanceof Uint16Array ? array : dataOf(array);
  return dtype === 'float32' ? data : Array.from(data, (bits) => fromHalf(bits, dtype));
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
  // What else is requested does not change the gradient.
  const among = copyOf(made.logits);
  const requests = { grad: true, gradEntropy: true, entropy: true } as const;
  const { loss } = await fn.fromLogits(batch(among), { ...requests, gradLogits: among });
  assert.equal(loss, expected.loss);
  assertArray(numbersOf(among, dtype), numbersOf(first, dtype), 'gradLogits', ROUNDING[dtype]);
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

  for (const { family, name, args } of oneOfEach())
    if (family === 'policy')
      it(`${name}, with every input that it may read`, () => {
        const fn = POLICY_LOSS_FN.create(name, args);
        const { given, read } = withEveryInput(fn, layOut(makeBatch(fitting(name, args, SPEC))));
        return assertSameAsThreeCalls(fn, withLogits(given, 'float32', read));
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

  it('with a mask by the entropies of a loss whose gradEntropy is by another column', () =>
    assertSameAsThreeCalls(
      POLICY_LOSS_FN.create('oat/bnf', { masks: { topEntropyQuantile: 0.5 } }),
      withLogits(layOut(makeBatch(SPEC))),
    ));

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
