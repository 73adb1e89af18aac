/** Tests the errors of losses from hidden states, their aborts, and the memory that they take. */
import assert from 'node:assert/strict';
import { setTimeout } from 'node:timers/promises';
import { type FromHiddenOptions, type HiddenBatch, POLICY_LOSS_FN } from '../../lib/index.js';
import { runAlone } from '../support/alone.js';
import { layOut, makeBatch } from '../support/draw.js';
import { HEAD, withHidden } from '../support/from-hidden.js';
import { SPEC } from '../support/from-logits.js';
import { isLossError } from '../support/loss-error.js';

const ppo = POLICY_LOSS_FN.create('ppo');
const { vocabulary: V, size: D } = HEAD;

describe('bad arguments of fromHidden()', () => {
  const { batch, columns, mask } = withHidden(layOut(makeBatch(SPEC)));
  const tokens = mask.length;
  const unmasked = mask.indexOf(1);
  const targets = batch.targets as Int32Array;
  const resizable = new Float32Array(
    new (ArrayBuffer as new (n: number, options: object) => ArrayBuffer)(4 * V * D, {
      maxByteLength: 8 * V * D,
    }),
  );
  for (const [title, changes, options, message] of [
    ['a logprob', { logprob: columns.oldLogprob }, {}, /^logprob: expected a batch without it/],
    ['missing hidden states', { hidden: undefined }, {}, /^hidden: expected a Float32Array.*got undefined/],
    ['a missing weight', { weight: undefined }, {}, /^weight: expected a Float32Array.*got undefined/],
    [
      'too few hidden states',
      { hidden: new Float32Array(5) },
      {},
      /^hidden: expected \[201, D\], a hidden state for each token, got 5 values/,
    ],
    ['no numbers', { hidden: new Float32Array(0) }, {}, /^hidden: expected \[201, D\].*got 0 values/],
    [
      'a weight of another width',
      { weight: new Float32Array(V * D - 1) },
      {},
      /^weight: expected \[V, 11\], rows with the length of a hidden state, got 406 values/,
    ],
    ['an empty weight', { weight: new Float32Array(0) }, {}, /^weight: expected \[V, 11\].*got 0 values/],
    ['a short bias', { bias: new Float32Array(3) }, {}, /^bias: expected \[37\], .*got 3 values/],
    ['an array of numbers', { weight: [1, 2, 3] }, {}, /^weight: expected a Float32Array/],
    [
      'a wrong dtype',
      { hidden: { data: new Float32Array(3), dtype: 'float16' } },
      {},
      /^hidden: .*Uint16Array/,
    ],
    ['missing targets', { targets: undefined }, {}, /^targets: .*got undefined/],
    ['a target above', { targets: targets.with(unmasked, V) }, {}, /^targets\[\d+\]: .*got 37/],
    ['a wrong gradHidden', {}, { gradHidden: 5 }, /^gradHidden: expected a Float32Array/],
    [
      'a short gradHidden',
      {},
      { gradHidden: new Float32Array(5) },
      /^gradHidden: expected 2211 values, got 5 values/,
    ],
    [
      'a gradHidden of another dtype',
      {},
      { gradHidden: { data: new Uint16Array(tokens * D), dtype: 'float16' } },
      /^gradHidden: expected dtype float32, got dtype float16/,
    ],
    [
      'a gradWeight of 16 bits',
      {},
      { gradWeight: { data: new Uint16Array(V * D), dtype: 'bfloat16' } },
      /^gradWeight: expected dtype float32, got dtype bfloat16/,
    ],
    ['a resizable gradWeight', {}, { gradWeight: resizable }, /^gradWeight: .*fixed length/],
    [
      'a gradient in its input',
      {},
      { gradHidden: batch.hidden },
      /^gradHidden: expected other memory than hidden/,
    ],
    [
      'a gradient in another input',
      {},
      { gradWeight: batch.weight },
      /^gradWeight: .*other memory than weight/,
    ],
    [
      'one array for two gradients',
      { weight: new Float32Array(tokens * D), bias: undefined },
      { gradHidden: batch.hidden, gradWeight: batch.hidden },
      /^gradHidden: expected other memory than hidden/,
    ],
    [
      'a gradient of no bias',
      { bias: undefined },
      { gradBias: true },
      /^gradBias: expected a batch with bias/,
    ],
    ['a gradient in a column', {}, { gradBias: columns.advantages }, /^gradBias: /],
    [
      'a grad of 16 bits',
      {},
      { gradHidden: true, grad: { dtype: 'float16' } },
      /^grad: expected true, false/,
    ],
    ['a device', {}, { device: 'cuda:9' }, /device/],
    ['no batch', null, {}, /batch: expected an object with hidden states and targets/],
  ] as const)
    it(`${title} is refused`, async () => {
      const given = changes && ({ ...batch, ...changes } as never);
      const codes = [
        'ERR_INVALID_INPUT',
        'ERR_MISSING_INPUT',
        'ERR_SHAPE_MISMATCH',
        'ERR_DEVICE_UNAVAILABLE',
      ] as const;
      const check = isLossError(codes, message);
      await assert.rejects(ppo.fromHidden(given as never, options as never), check);
      assert.throws(() => ppo.fromHiddenSync(given as never, options as never), check);
    });

  it('memory that two gradients share is refused', () => {
    const both = new Float32Array(V * D + 8);
    const options = { gradWeight: both.subarray(0, V * D), gradBias: both.subarray(8, 8 + V) };
    assert.throws(
      () => ppo.fromHiddenSync(batch, options),
      isLossError('ERR_INVALID_INPUT', /^gradWeight: expected other memory than gradBias/),
    );
  });
});

describe('long calls from hidden states', () => {
  const [tokens, vocabulary, size] = [600, 60_000, 64];
  const batch: HiddenBatch = {
    shape: [tokens / 10, 10],
    hidden: new Float32Array(tokens * size).fill(0.1),
    weight: new Float32Array(vocabulary * size).fill(0.1),
    targets: new Int32Array(tokens).fill(3),
    oldLogprob: new Float32Array(tokens).fill(-11),
    advantages: new Float32Array(tokens).fill(1),
    actionMask: new Uint8Array(tokens).fill(1),
  };
  const all: FromHiddenOptions = { gradHidden: true, gradWeight: true };

  it('leave the event loop free', async () => {
    let turns = 0;
    const timer = setInterval(() => turns++, 1);
    await ppo.fromHidden(batch, all);
    clearInterval(timer);
    assert.ok(turns >= 3, `${turns} turns`);
  });

  it('end soon after an abort', async () => {
    const before = performance.now();
    await ppo.fromHidden(batch, all);
    const whole = performance.now() - before;
    const controller = new AbortController();
    const call = ppo.fromHidden(batch, { ...all, signal: controller.signal });
    const rejected = assert.rejects(call, isLossError('ERR_ABORTED'));
    await setTimeout(whole / 10);
    const aborted = performance.now();
    controller.abort();
    await rejected;
    assert.ok(performance.now() - aborted < whole / 2);
    await assert.rejects(ppo.fromHidden(batch, { signal: controller.signal }), isLossError('ERR_ABORTED'));
  });

  it('take memory for one block of logits', () => {
    // All logits would take 960 MB.
    const { result, memory } = runAlone<number>(
      `const { POLICY_LOSS_FN } = await import(given[0]);
      const [tokens, vocabulary, size] = [2000, 120_000, 2];
      const numbers = (n) => Float32Array.from({ length: n }, (_, i) => Math.sin(i));
      const batch = {
        shape: [tokens, 1],
        hidden: numbers(tokens * size),
        weight: numbers(vocabulary * size),
        targets: new Int32Array(tokens),
        oldLogprob: numbers(tokens),
        advantages: numbers(tokens),
        actionMask: new Uint8Array(tokens).fill(1),
      };
      const ppo = POLICY_LOSS_FN.create('ppo');
      const few = { ...batch, shape: [1, 1], hidden: batch.hidden.subarray(0, size) };
      for (const key of ['targets', 'oldLogprob', 'advantages', 'actionMask']) few[key] = batch[key].subarray(0, 1);
      await ppo.fromHidden(few, { gradHidden: true, gradWeight: true });
      const before = peakMemory();
      await ppo.fromHidden(batch, { gradHidden: true, gradWeight: true });
      return before;`,
      [new URL('../../lib/index.ts', import.meta.url).href],
    );
    const growth = (memory - result) / 2 ** 20;
    assert.ok(growth < 64 + 32, `${growth} MiB`);
  });
});
