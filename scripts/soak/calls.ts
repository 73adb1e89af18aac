// Makes the random calls of the soak test. Each call uses a random function, shape, dtype and layout. It is synchronous
// or asynchronous, and may have an AbortSignal. A seed determines all calls, so a run can be repeated.
import assert from 'node:assert/strict';
import { toCamelCase } from '../../lib/base/options.js';
import { ADVANTAGE_COLUMNS, COLUMNS, inputRow, ROW_COLUMNS } from '../../lib/batch/columns.js';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type Batch,
  CORRECTION_FN,
  ENTROPY_LOSS_FN,
  KL_FN,
  LOGITS_LOSS_FN,
  LOSS_FN,
  LossError,
  logprobs,
  logprobsBackward,
  logprobsBackwardSync,
  logprobsSync,
  POLICY_LOSS_FN,
} from '../../lib/index.js';
import { without } from '../../test/support/batch-keys.js';
import { OF_ROWS, requiredArgs } from '../../test/support/draw-arguments.js';
import { layLogits, makeLogitsBatch } from '../../test/support/logits-losses.js';
import { generator as numbers } from '../../test/support/random.js';

/** Returns a generator of random numbers and random choices. The seed determines all of them. */
export function generator(seed: number) {
  const { uniform, integer } = numbers(seed);
  const pick = <T>(from: readonly T[]): T => from[integer(0, from.length - 1)]!;
  return { uniform, integer, pick };
}

export type Random = ReturnType<typeof generator>;

/** The largest number of tokens in a batch. */
const MOST = 100_000;

// Columns are cut out of these arrays, so that making a batch needs only a copy.
const POOL = 1 << 19;
const pool = Float32Array.from({ length: POOL }, (_, i) => -3 * ((i * 0.618033988) % 1));
const masks = Uint8Array.from({ length: POOL }, (_, i) => ((i * 0.414213562) % 1 < 0.9 ? 1 : 0));
const halves = Uint16Array.from(pool, (_, i) => 0xbf80 + (i % 64)); // bfloat16: −1 to −1.49

const FORMS = ['float32', 'float32', 'float32', 'bfloat16', 'float64', 'numbers', 'shared'] as const;

function column(random: Random, tokens: number): unknown {
  const from = random.integer(0, POOL - tokens);
  const view = pool.subarray(from, from + tokens);
  switch (random.pick(FORMS)) {
    case 'float32':
      return view.slice();
    case 'bfloat16':
      return { data: halves.slice(from, from + tokens), dtype: 'bfloat16' };
    case 'float64':
      return Float64Array.from(view);
    case 'numbers':
      return tokens > 4096 ? view.slice() : Array.from(view);
    case 'shared': {
      const shared = new Float32Array(new SharedArrayBuffer(4 * tokens));
      shared.set(view);
      return shared;
    }
  }
}

// The columns with one number per token that any function reads, except advantages, which may also have one per row.
const TOKEN_COLUMNS = [...new Set<string>([...COLUMNS, ...ADVANTAGE_COLUMNS])]
  .filter((name) => name !== 'advantages' && name !== 'token_level_rewards')
  .map(toCamelCase);

/** Draws a random batch with all columns that any function reads. */
export function drawBatch(random: Random): Batch {
  // Most batches are small, because many calls are needed to reveal a leak.
  const most = random.uniform() < 0.9 ? 512 : MOST;
  // Some losses compare pairs of rows, and some compare threes.
  const rows = 6 * random.integer(1, 3);
  const columns = random.integer(1, Math.max(1, Math.floor(most / rows)));
  const packed = random.uniform() < 0.4;
  const lengths = Array.from({ length: rows }, () => (packed ? random.integer(0, columns) : columns));
  const cuSeqlens = new Int32Array(rows + 1);
  for (let row = 0; row < rows; row++) cuSeqlens[row + 1] = cuSeqlens[row]! + lengths[row]!;
  const tokens = cuSeqlens[rows]!;
  const from = random.integer(0, POOL - tokens);
  return {
    ...(packed ? { cuSeqlens } : { shape: [rows, columns] as const }),
    ...Object.fromEntries(TOKEN_COLUMNS.map((name) => [name, column(random, tokens)])),
    ...Object.fromEntries(
      ROW_COLUMNS.map((name) => [
        toCamelCase(name),
        inputRow(name).type === 'flags'
          ? Uint8Array.from({ length: rows }, () => random.integer(0, 1))
          : Float64Array.from({ length: rows }, random.uniform),
      ]),
    ),
    rolloutIds: Array.from({ length: rows }, () => random.integer(0, 2)),
    logprob: column(random, tokens) as Float32Array,
    tokenLevelScores: pool.slice(0, tokens),
    advantages: column(random, random.uniform() < 0.5 ? tokens : rows) as Float32Array,
    actionMask: masks.slice(from, from + tokens),
    expertMask: Uint8Array.from({ length: rows }, () => random.integer(0, 1)),
    step: 1,
    rewardBaselines: new Float64Array(rows),
    groupIds: Array.from({ length: rows }, () => random.integer(0, 2)),
    runIds: Array.from({ length: rows }, () => `run ${random.integer(0, 2)}`),
  };
}

const LOGITS_LOSSES = LOGITS_LOSS_FN.names();
// The losses that read one number per token.
const LOSSES = LOSS_FN.names().filter((name) => !LOGITS_LOSSES.includes(name));

/** Draws a random batch for any loss that reads logits. */
function drawLogitsBatch(random: Random): Batch {
  const drawn = makeLogitsBatch({
    seed: random.integer(0, 2 ** 31),
    rows: random.integer(1, 4),
    columns: random.integer(1, 8),
    vocabulary: random.integer(8, 300),
    listed: 4,
    values: 'moderate',
    mask: 'random',
  });
  // Without the probabilities, the targets are the labels of process rewards.
  return without(layLogits(drawn), 'targetProbs');
}

/** Makes one random call and waits until it ends. A call that has an AbortSignal may fail with ERR_ABORTED. */
export async function drawCall(random: Random): Promise<void> {
  const { tokenWeights, ...batch } = drawBatch(random);
  const sync = random.uniform() < 0.3;
  const grad = random.uniform() < 0.7;
  const controller = random.uniform() < 0.2 ? new AbortController() : undefined;
  if (controller) {
    const { integer } = random;
    const wait = integer(0, 2);
    if (wait === 0) controller.abort();
    else if (wait === 1) setImmediate(() => controller.abort());
    else queueMicrotask(() => controller.abort());
  }
  const options = { grad, ...(controller && { signal: controller.signal }) };
  try {
    switch (random.integer(0, 10)) {
      case 0:
      case 1: {
        // Each call uses a new object, to test that its native function is freed together with the object.
        const name = random.pick(LOSSES);
        const fn = LOSS_FN.create(name, requiredArgs(LOSS_FN.get(name).declaration));
        // Losses of values and of rewards have only their own gradient.
        const all = { grad, gradEntropy: grad, gradLogZ: grad };
        // A loss of whole rows takes no weights of tokens.
        const given = OF_ROWS.includes(name) ? batch : { ...batch, tokenWeights: tokenWeights! };
        const { loss } = sync ? fn.computeSync(given, all) : await fn.compute(given, { ...options, ...all });
        assert.equal(typeof loss, 'number');
        break;
      }
      case 2: {
        const fn = KL_FN.create(random.pick(KL_FN.names()));
        if (sync) fn.calculateKlLossSync(batch, { grad });
        else await fn.calculateKlLoss(batch, options);
        break;
      }
      case 3: {
        const fn = KL_FN.create(random.pick(KL_FN.names()));
        if (sync) fn.applyKlPenaltyToRewardSync(batch);
        else await Promise.all([fn.calculateKl(batch), fn.applyKlPenaltyToReward(batch)]);
        break;
      }
      case 4: {
        const fn = ENTROPY_LOSS_FN.create(random.pick(ENTROPY_LOSS_FN.names()), { entropy_coef: 0.1 });
        if (sync) fn.computeSync(batch, { grad });
        else await fn.compute(batch, options);
        break;
      }
      case 5: {
        const name = random.pick(ADVANTAGE_FN.names());
        const fn = ADVANTAGE_FN.create(name, requiredArgs(ADVANTAGE_FN.get(name).declaration));
        if (sync) fn.computeSync(batch);
        else await fn.compute(batch, controller ? { signal: controller.signal } : {});
        break;
      }
      case 6: {
        const objective = ALGORITHM_TYPE.get(random.pick(ALGORITHM_TYPE.names())).objective();
        const { advantages: _, ...without } = batch;
        const given = random.uniform() < 0.5 ? batch : without;
        if (sync) objective.computeSync(given, { grad });
        else await objective.compute(given, options);
        break;
      }
      case 7: {
        const name = random.pick(CORRECTION_FN.names());
        const { options: own } = CORRECTION_FN.get(name).declaration!;
        const fn = CORRECTION_FN.create(name, 'rolloutIs' in own ? { rollout_is: 'token' } : {});
        if (sync) fn.computeSync(batch);
        else await fn.compute(batch, controller ? { signal: controller.signal } : {});
        break;
      }
      case 8: {
        const vocabulary = random.integer(1, random.uniform() < 0.9 ? 512 : MOST);
        const rows = random.integer(0, 3);
        const logits = pool.slice(0, rows * vocabulary);
        const shared = { shape: [rows, vocabulary], targets: new Int32Array(rows) } as const;
        const forward = { ...shared, entropy: true, ...(controller && { signal: controller.signal }) };
        const { logsumexp } = sync ? logprobsSync(logits, forward) : await logprobs(logits, forward);
        const backward = { ...shared, logsumexp, gradLogprob: logsumexp, ...(grad && { out: logits }) };
        if (sync) logprobsBackwardSync(logits, backward);
        else await logprobsBackward(logits, backward);
        break;
      }
      case 9: {
        const name = random.pick(LOGITS_LOSSES);
        const fn = LOGITS_LOSS_FN.create(name, requiredArgs(LOGITS_LOSS_FN.get(name).declaration));
        const drawn = drawLogitsBatch(random);
        if (sync) fn.computeSync(drawn, { grad });
        else await fn.compute(drawn, options);
        break;
      }
      default: {
        const fn = POLICY_LOSS_FN.create('ppo');
        const normalizer = sync ? fn.countSync(batch) : await fn.count(batch);
        await fn.compute(batch, { ...options, normalizer });
        // A call that is refused must not leak memory either.
        const wrong = { ...batch, advantages: new Float32Array(MOST + 1) };
        await assert.rejects(fn.compute(wrong), LossError);
      }
    }
  } catch (error) {
    if (!(error instanceof LossError && error.code === 'ERR_ABORTED' && controller)) throw error;
  }
}
