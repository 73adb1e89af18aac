/** Tests that batches without rows, columns or tokens give zeros and empty gradients, and no NaN. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN } from '../lib/index.js';
import { FLOAT_COLUMNS } from './reference/batch.js';
import { ARGUMENTS } from './support/draw.js';
import { ROW_COLUMNS, subject } from './support/subject.js';

const SHAPES = [
  { shape: [0, 5] as const },
  { shape: [2, 0] as const },
  { shape: [0, 0] as const },
  { cuSeqlens: Int32Array.of(0) },
  { cuSeqlens: Int32Array.of(0, 0, 0) },
];
const FAMILIES = { policy: POLICY_LOSS_FN, kl: KL_FN, entropy: ENTROPY_LOSS_FN };

describe('empty batches', () => {
  for (const [family, registry] of Object.entries(FAMILIES))
    for (const name of registry.names())
      it(`${family} ${name}`, async () => {
        const args =
          family === 'policy'
            ? fc.sample(ARGUMENTS.policy[name]!, { seed: 1, numRuns: 1 })[0]!
            : { loss_agg_mode: 'seq-mean-token-mean' };
        const on = subject(family as 'policy', name, args);
        for (const layout of SHAPES) {
          const rows = layout.shape ? layout.shape[0] : layout.cuSeqlens.length - 1;
          const column = new Float32Array(0);
          const batch = {
            ...layout,
            ...Object.fromEntries(FLOAT_COLUMNS.map((each) => [each, column])),
            ...Object.fromEntries(ROW_COLUMNS.map((each) => [each, new Float64Array(rows)])),
            actionMask: new Uint8Array(0),
            expertMask: new Uint8Array(rows),
            groupIds: new Array(rows).fill('prompt'),
            step: 1,
          };
          for (const { loss, metrics, grad } of [on.sync(batch), await on.async(batch)]) {
            for (const [key, value] of Object.entries({ loss, ...metrics }))
              assert.ok(Number.isFinite(value), `${key} is ${value} for ${JSON.stringify(layout)}`);
            // Each pair has a margin of 0 here, so its loss is log 2 or, with IPO, 1/(2β)².
            if (!(name.endsWith('dpo') && rows > 0)) assert.equal(loss + 0, 0);
            assert.equal(grad.length, 0);
          }
        }
      });
});
