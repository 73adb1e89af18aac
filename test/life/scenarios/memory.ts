// Writes to, resizes or drops arrays while calls are reading them. The argument selects what is done to which array.
import assert from 'node:assert/strict';
import {
  ADVANTAGE_FN,
  LossError,
  logprobs,
  logprobsBackward,
  lossFromExpression,
  POLICY_LOSS_FN,
} from '../../../lib/index.js';
import { flatBatch } from '../support.js';

const [what] = process.argv.slice(2);
const fn = POLICY_LOSS_FN.create('sft');
const [ROWS, COLUMNS] = [32, 131_072];
const TIMES = 8;
const other = flatBatch(ROWS, COLUMNS);
const collect = globalThis.gc!;

for (let time = 0; time < TIMES; time++) {
  const batch = flatBatch(ROWS, COLUMNS);
  switch (what) {
    case 'changed': {
      const promise = fn.compute(batch, { grad: true });
      batch.logprob.fill(-2);
      const { loss, grad } = await promise;
      // The call may read each token before or after the change, so the loss lies between 1 and 2.
      assert.ok(loss >= 1 - 1e-6 && loss <= 2 + 1e-6, `loss is ${loss}`);
      assert.ok(grad!.every((slope) => Math.abs(slope * ROWS * COLUMNS + 1) < 1e-4));
      break;
    }
    case 'masked': {
      const promise = fn.compute(batch, { grad: true });
      (batch.actionMask as Uint8Array).fill(0);
      const { loss } = await promise;
      // The call counts the tokens in one pass and sums them in another, and the mask may change in between. So the
      // loss may be wrong, but it must be finite and not negative.
      assert.ok(loss >= 0 && Number.isFinite(loss), `loss is ${loss}`);
      break;
    }
    case 'masked in a program': {
      // The program reads the batch in several passes: for the sums over all rows, for the rows, and for the tokens.
      const program = lossFromExpression('-r*row_max(r)*batch_mean(r)*sg(row_min(lp))');
      const promise = program.compute(batch, { grad: true });
      (batch.actionMask as Uint8Array).fill(0);
      batch.logprob.fill(-2);
      const { loss, grad } = await promise;
      assert.ok(Number.isFinite(loss) && grad!.every(Number.isFinite), `loss is ${loss}`);
      break;
    }
    case 'offsets': {
      const { shape: _, ...columns } = batch;
      const cuSeqlens = Int32Array.from({ length: ROWS + 1 }, (_, row) => row * COLUMNS);
      const promise = fn.compute({ ...columns, cuSeqlens }, { grad: true });
      cuSeqlens.fill(2 ** 31 - 1);
      await promise;
      break;
    }
    case 'groups': {
      const rows = 4_000_000;
      const groupIds = new Int32Array(rows);
      const given = { ...flatBatch(rows, 1), rewards: new Float64Array(rows), groupIds };
      const promise = ADVANTAGE_FN.create('grpo').compute(given);
      // Waits longer in each round, so that in some rounds the ids change after they were checked and before they are
      // used.
      const until = performance.now() + 3 * time;
      while (performance.now() < until);
      groupIds.fill(2 ** 31 - 1);
      await promise;
      break;
    }
    case 'support': {
      const tokenIds = Int32Array.from({ length: ROWS * COLUMNS }, (_, i) => i % COLUMNS);
      const offsets = Int32Array.from({ length: ROWS + 1 }, (_, row) => row * COLUMNS);
      const targets = new Int32Array(ROWS);
      const options = { shape: [ROWS, COLUMNS], targets, support: { tokenIds, offsets } } as const;
      const gradLogprob = new Float64Array(ROWS).fill(1);
      const calls = [
        logprobs(other.logprob, options),
        logprobsBackward(other.logprob, { ...options, gradLogprob }),
      ];
      // The first turns of the event loop check the ids.
      for (let turn = 0; turn < 20 * time; turn++) await new Promise(setImmediate);
      for (const array of [tokenIds, offsets, targets]) array.fill(2 ** 31 - 1);
      // The checks may still be going on.
      for (const { status, reason } of (await Promise.allSettled(calls)) as PromiseRejectedResult[])
        assert.ok((status as string) === 'fulfilled' || reason instanceof LossError, String(reason));
      break;
    }
    case 'shrunk': {
      const buffer = new (ArrayBuffer as unknown as ResizableConstructor)(4 * ROWS * COLUMNS, {
        maxByteLength: 8 * ROWS * COLUMNS,
      });
      const logprob = new Float32Array(buffer).fill(-1);
      const promise = fn.compute({ ...batch, logprob }, { grad: true });
      buffer.resize(0);
      const { loss } = await promise;
      // The call must use the values that the array had when the call was made.
      assert.ok(Math.abs(loss - 1) < 1e-6, `loss is ${loss}`);
      await assert.rejects(
        fn.compute(batch, {
          grad: new Float32Array(
            new (ArrayBuffer as unknown as ResizableConstructor)(16, { maxByteLength: 32 }),
          ),
        }),
        (error: unknown) => error instanceof LossError && error.code === 'ERR_INVALID_INPUT',
      );
      break;
    }
    case 'dropped': {
      // Nothing but the running calls refers to their arrays when the garbage collector runs.
      const calls = (() => {
        const [logits, out] = [new Float32Array(ROWS * COLUMNS), new Float32Array(ROWS * COLUMNS)];
        const options = { shape: [ROWS, COLUMNS], targets: new Int32Array(ROWS) } as const;
        return [
          fn.compute(flatBatch(ROWS, COLUMNS), { grad: new Float32Array(ROWS * COLUMNS) }),
          logprobs(logits, options),
          logprobsBackward(logits, { ...options, gradLogprob: new Float64Array(ROWS), out }),
        ] as const;
      })();
      collect();
      collect();
      const [{ loss }, { logprob }] = await Promise.all(calls);
      assert.ok(Math.abs(loss - 1) < 1e-6, `loss is ${loss}`);
      for (const each of logprob) assert.ok(Math.abs(each + Math.log(COLUMNS)) < 1e-5, `${each}`);
      break;
    }
    default:
      throw new Error(`scenario: expected a known one, got ${what}`);
  }
}

type ResizableConstructor = new (
  length: number,
  options: { maxByteLength: number },
) => ArrayBuffer & { resize(length: number): void };
