/**
 * Tests that a CUDA device computes the same bits per token as the CPU. Processors without fused multiply-adds are left
 * out, because their results differ in the last bit.
 */
import assert from 'node:assert/strict';
import { devices, KL_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { ARGUMENTS, EDGE_LENGTHS, fitting, inHalf, makeBatch } from '../support/draw.js';
import { everyFunction } from '../support/functions.js';
import { isEmulated } from '../support/on-device.js';
import { packedBatch, paddedBatch, subject } from '../support/subject.js';
import { assertNumber, assertSameArray } from '../support/tolerance.js';

/** Rows that fill several steps of 256 tokens, and that begin and end within steps. */
const WHOLE_ROWS = { rows: 6, rowLengths: [256, 255, 1, 700, 257, 2100], mask: 'ones' } as const;
const HALVES = ['float16', 'bfloat16'] as const;
const { env } = process;

describe('the same bits per token on the CPU and on a CUDA device', () => {
  before(function () {
    if (devices()[0]!.isa === 'sse4') this.skip();
  });

  for (const { family, name, args, title } of everyFunction(2))
    it(title, async () => {
      const on = subject(family, name, args);
      const batch = makeBatch(fitting(name, args, EDGE_LENGTHS));
      for (const laid of [packedBatch(batch), paddedBatch(batch)])
        assertSameArray(
          (await on.async(laid, { device: 'cuda:0' })).grad,
          (await on.async(laid)).grad,
          'gradient',
        );
    });

  // The token kernel computes steps of 256 unmasked tokens of a row without looking at masks.
  const losses = new Map(everyFunction(1).map((one) => [`${one.family} ${one.name}`, one]));
  for (const [title, { family, name, args }] of losses) {
    if (family !== 'policy') continue;
    it(`${title}, without masked tokens`, async () => {
      const on = subject(family, name, args);
      const batch = makeBatch(
        fitting(name, args, { ...EDGE_LENGTHS, ...WHOLE_ROWS, rowLengths: [...WHOLE_ROWS.rowLengths] }),
      );
      const perRow = packedBatch(batch);
      if (POLICY_LOSS_FN.get(name).declaration!.reads.includes('advantages'))
        perRow.advantages = Float32Array.from(WHOLE_ROWS.rowLengths, (n) => n / 700 - 1);
      for (const laid of [packedBatch(batch), perRow, ...HALVES.map((dtype) => inHalf(batch, dtype).laid)]) {
        const [there, here] = [await on.async(laid, { device: 'cuda:0' }), await on.async(laid)];
        assertSameArray(there.grad, here.grad, 'gradient');
        assertNumber(there.loss, here.loss, 'loss', 1);
        for (const [metric, value] of Object.entries(here.metrics))
          assertNumber(there.metrics[metric], value, metric, 1);
      }
    });
  }

  // With other options than the default ones, a program has segments that are compiled and others that are interpreted.
  // The rows are so different that the warps of a block run both kinds at the same time.
  for (const { family, name, args, title } of everyFunction(2)) {
    if (family !== 'policy' || !isEmulated) continue;
    it(`${title}, while warps are at different segments`, async () => {
      const on = subject(family, name, args);
      const rows = { rows: 4, rowLengths: [1, 4000, 40, 4000], mask: 'ones' } as const;
      const laid = packedBatch(
        makeBatch(fitting(name, args, { ...EDGE_LENGTHS, ...rows, rowLengths: [...rows.rowLengths] })),
      );
      const { grad } = await on.async(laid);
      for (const seed of ['1', '2', '3']) {
        env.POLICY_LOSS_EMULATION_SHUFFLE = seed;
        assertSameArray((await on.async(laid, { device: 'cuda:0' })).grad, grad, 'gradient');
      }
    });
  }
  afterEach(() => {
    delete env.POLICY_LOSS_EMULATION_SHUFFLE;
  });

  for (const name of Object.keys(ARGUMENTS.kl))
    it(`values of ${name}`, async () => {
      const fn = KL_FN.create(name);
      const laid = packedBatch(makeBatch(EDGE_LENGTHS));
      const [there, here] = await Promise.all([
        fn.calculateKl(laid, { device: 'cuda:0' }),
        fn.calculateKl(laid),
      ]);
      assert.ok(here.length > 0);
      assertSameArray(there, here, 'values');
    });
});
