/** Tests losses and objectives from logits on a CUDA device, real or emulated. */
import assert from 'node:assert/strict';
import {
  ALGORITHM_TYPE,
  type FromLogitsOptions,
  type LogitsBatch,
  logprobs,
  logprobsBackward,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { layOut, makeBatch } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { framework } from '../support/framework.js';
import { SPEC, V as VOCABULARY, withEveryInput, withLogits } from '../support/from-logits.js';
import { oneOfEach } from '../support/functions.js';
import { copyOf, dataOf, type LogitsDType, stored } from '../support/logits.js';
import { copyToDevice } from '../support/logits-ways.js';
import { batch, DEVICE, ROWS, rejects, TOKENS } from '../support/on-device.js';
import { generator } from '../support/random.js';
import { assertArray, assertNumber, assertSameArray } from '../support/tolerance.js';

const V = 53;
const { logprob: _, entropy: __, ...columns } = batch as typeof batch & { entropy?: unknown };
const mask = columns.actionMask as Uint8Array;

function drawn(dtype: LogitsDType) {
  const { normal, integer } = generator(4);
  const { logits } = stored(
    Float64Array.from({ length: TOKENS * V }, () => 3 * normal()),
    dtype,
  );
  return { logits, targets: Int32Array.from({ length: TOKENS }, () => integer(0, V - 1)) };
}

const FUNCTIONS = {
  ppo: POLICY_LOSS_FN.create('ppo'),
  gspo: POLICY_LOSS_FN.create('gspo'),
  'grpo with an entropy bonus': ALGORITHM_TYPE.get('grpo').objective({
    kl_loss_fn: 'none',
    entropy_loss_fn_args: { entropy_coef: 0.1 },
  }),
};

describe(`losses from logits on ${DEVICE}`, () => {
  for (const [name, fn] of Object.entries(FUNCTIONS))
    for (const dtype of ['float32', 'bfloat16'] as const)
      it(`${name}, ${dtype}: are those of three calls`, async () => {
        const { logits, targets } = drawn(dtype);
        const shape = [TOKENS, V] as const;
        const options = { shape, targets: targets.map((id, i) => (mask[i] ? id : -100)), device: DEVICE };
        const { logprob, logsumexp, entropy } = await logprobs(logits, { ...options, entropy: true });
        const bonus = name.includes('entropy');
        const given = { ...columns, logprob, ...(bonus && { entropy: entropy! }) };
        const { loss, metrics, grad, gradEntropy } = await fn.compute(given, {
          grad: true,
          gradEntropy: true,
          device: DEVICE,
        });
        const expected = await logprobsBackward(logits, {
          ...options,
          logsumexp,
          gradLogprob: grad!,
          ...(bonus && { entropy: entropy!, gradEntropy: gradEntropy! }),
          out: copyOf(logits),
        });
        const check = (found: { loss: number; metrics: object; logprob: Float32Array }) => {
          assert.deepEqual({ loss: found.loss, metrics: found.metrics }, { loss, metrics });
          assertSameArray(found.logprob, logprob, 'logprob');
        };
        const compute = (source: LogitsBatch['logits'], more: FromLogitsOptions) =>
          fn.fromLogits({ ...columns, logits: source, targets, vocabulary: V }, { device: DEVICE, ...more });

        const inPlace = copyOf(logits);
        check(await compute(inPlace, { gradLogits: inPlace }));
        assertSameArray(dataOf(inPlace), dataOf(expected), 'gradLogits');
        check(await compute(logits, {}));

        if (!framework()) return;
        const there = copyToDevice(copyOf(logits), [ROWS, TOKENS / ROWS, V]);
        const result = await compute(there, { gradLogits: there });
        check(result);
        assert.equal(result.gradLogits, undefined);
        there.fetch();
        there.free();
      });

  for (const { family, name, args } of oneOfEach())
    if (family === 'policy')
      it(`${name}: read every input on the device`, async () => {
        const fn = POLICY_LOSS_FN.create(name, args);
        const { given, read } = withEveryInput(fn, layOut(makeBatch(fitting(name, args, SPEC))));
        const { columns, logits, targets } = withLogits(given, 'float32', read);
        const call = { ...columns, logits, targets, vocabulary: VOCABULARY } as LogitsBatch;
        const expected = await fn.fromLogits(call, { gradLogits: true });
        const found = await fn.fromLogits(call, { gradLogits: true, device: DEVICE });
        assertNumber(found.loss, expected.loss, 'loss', 1);
        assertArray(dataOf(found.gradLogits!), dataOf(expected.gradLogits!), 'gradLogits', 1e-5);
      });

  it('leave the gradient in the memory of the device', async function () {
    if (!framework()) this.skip();
    const { logits, targets } = drawn('float32');
    const given = { ...columns, targets, vocabulary: V };
    const options = { device: DEVICE, gradLogits: true };
    const { gradLogits } = await FUNCTIONS.ppo.fromLogits({ ...given, logits }, options);
    const there = copyToDevice(logits, [TOKENS, V]);
    await FUNCTIONS.ppo.fromLogits({ ...given, logits: there }, { device: DEVICE, gradLogits: there });
    there.fetch();
    there.free();
    assertSameArray(dataOf(logits), dataOf(gradLogits!), 'gradLogits');
  });

  it('refuse what they cannot compute', async function () {
    const { logits, targets } = drawn('float32');
    const given = { ...columns, targets, vocabulary: V };
    using resident = await upload(batch, DEVICE);
    await rejects(
      () => FUNCTIONS.ppo.fromLogits(resident as never, { device: DEVICE }),
      'ERR_INVALID_INPUT',
      /expected an object with logits and targets.*got an uploaded batch/,
    );
    assert.throws(() => FUNCTIONS.ppo.fromLogitsSync({ ...given, logits }, { device: DEVICE } as never), {
      code: 'ERR_DEVICE_UNAVAILABLE',
    });
    await rejects(
      () => FUNCTIONS.ppo.fromLogits({ ...given, logits }, { stream: 0n }),
      'ERR_INVALID_INPUT',
      /no stream, because the CPU computes the call/,
    );
    const other = framework();
    if (!other) this.skip();
    const there = copyToDevice(logits, [TOKENS, V]);
    await rejects(
      () => FUNCTIONS.ppo.fromLogits({ ...given, logits: there }),
      'ERR_INVALID_INPUT',
      /logits: expected memory of the host/,
    );
    there.free();
  });
});
