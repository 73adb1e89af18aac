/** Tests losses from hidden states on a CUDA device, real or emulated. */
import assert from 'node:assert/strict';
import { cuda, native } from '../../lib/base/native.js';
import { cudaIndex } from '../../lib/device/device.js';
import { POLICY_LOSS_FN } from '../../lib/index.js';
import { layOut, makeBatch } from '../support/draw.js';
import { assertReference, HEAD, withHidden } from '../support/from-hidden.js';
import { SPEC } from '../support/from-logits.js';
import { isLossError } from '../support/loss-error.js';
import { objectiveOf, REWARDED, unadvised } from '../support/objective.js';
import { DEVICE } from '../support/on-device.js';
import { assertSameArray } from '../support/tolerance.js';

const ALL = { gradHidden: true, gradWeight: true, gradBias: true } as const;
const options = { device: DEVICE };

describe(`losses from hidden states on ${DEVICE}`, () => {
  for (const name of ['ppo', 'gspo', 'sapo'])
    for (const dtype of ['float32', 'float16', 'bfloat16'] as const)
      it(`${name}, ${dtype}: agree with the reference`, () =>
        assertReference(
          POLICY_LOSS_FN.create(name),
          withHidden(layOut(makeBatch(SPEC)), { ...HEAD, dtype }),
          {},
          options,
        ));

  // Sizes on both sides of those at which tiles, slices and chunks of the products end.
  for (const [tokens, vocabulary, size, bias] of [
    [1, 2, 1, true],
    [63, 65, 15, false],
    [64, 64, 16, true],
    [65, 129, 257, false],
    [130, 300, 17, true],
  ] as const)
    it(`${tokens} tokens, ${vocabulary} logits, hidden states of ${size}`, () => {
      const spec = { ...SPEC, rows: 1, rowLengths: [tokens], columns: tokens, mask: 'random' as const };
      const made = withHidden(layOut(makeBatch(spec)), { ...HEAD, vocabulary, size, bias });
      return assertReference(POLICY_LOSS_FN.create('ppo'), made, { softcap: 20 }, options);
    });

  it('of an objective agree with the reference', () => {
    const grpo = objectiveOf('grpo', { entropy_loss_fn_args: { entropy_coef: 0.1 } });
    return assertReference(grpo, withHidden(layOut(unadvised(REWARDED))), {}, options);
  });

  // A block of logits has millions of numbers, for which the emulation would take minutes.
  it('add gradients up to the bits of one block', async () => {
    const [rows, vocabulary, size] = [150, 70, 33];
    const numbers = (length: number) => Float32Array.from({ length }, (_, i) => Math.sin(i * i));
    const index = cudaIndex(DEVICE)!;
    const hidden = numbers(rows * size);
    const targets = Int32Array.from({ length: rows }, (_, i) => (i % 7 === 0 ? -100 : 0));
    const weight = { weight: numbers(vocabulary * size), weightDtype: 0 };
    const head = { vocabulary, size, ...weight, hiddenDtype: 0, device: index };
    const array = (length: number) => cuda.deviceArray(index, length, false);

    async function gradients(blocks: readonly [begin: number, end: number][]) {
      const weightThere = array(vocabulary * size);
      const [gradWeight, gradBias] = [array(vocabulary * size), array(vocabulary)];
      for (const [block, [begin, end]] of blocks.entries()) {
        const call = {
          ...head,
          rows: end - begin,
          targets: targets.subarray(begin, end),
          hidden: hidden.subarray(begin * size, end * size),
          weightThere,
          logits: array(rows * vocabulary),
          later: true,
        } as const;
        await native.head(call);
        await native.head({ ...call, gradWeight, gradBias, adds: block > 0 });
      }
      const found = [new Float32Array(vocabulary * size), new Float32Array(vocabulary)] as const;
      await cuda.readDeviceArray(gradWeight, found[0]);
      await cuda.readDeviceArray(gradBias, found[1]);
      return found;
    }
    const whole = await gradients([[0, rows]]);
    const divided = await gradients([
      [0, 1],
      [1, 60],
      [60, rows],
    ]);
    assert.ok(whole[0].every((x) => x !== 0));
    assertSameArray(divided[0], whole[0], 'gradWeight');
    assertSameArray(divided[1], whole[1], 'gradBias');
  });

  it('without unmasked tokens are 0', async () => {
    const { batch, mask } = withHidden(layOut(makeBatch(SPEC)));
    const found = await POLICY_LOSS_FN.create('ppo').fromHidden(
      { ...batch, actionMask: new Uint8Array(mask.length) },
      { ...options, ...ALL },
    );
    for (const key of ['gradHidden', 'gradWeight', 'gradBias'] as const)
      assertSameArray(found[key], new Float32Array(found[key].length), key);
  });

  it('end when they are aborted', async () => {
    const { batch } = withHidden(layOut(makeBatch(SPEC)));
    const call = POLICY_LOSS_FN.create('ppo').fromHidden(batch, {
      ...options,
      ...ALL,
      signal: AbortSignal.abort(),
    });
    await assert.rejects(call, isLossError('ERR_ABORTED'));
  });
});
