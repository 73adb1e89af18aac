/** Tests that a batch can be given in several forms, and that all of them give the same results to the last bit. */
import assert from 'node:assert/strict';
import { takeNow } from '../../lib/base/steps.js';
import { COLUMNS as NATIVE_ORDER } from '../../lib/batch/columns.js';
import { BatchReader } from '../../lib/batch/reader.js';
import { type Batch, KeyMapper, POLICY_LOSS_FN } from '../../lib/index.js';
import { FLOAT_COLUMNS as ALL_COLUMNS } from '../reference/batch.js';
import type { Args, ReferenceBatch } from '../reference/index.js';
import { camelCase, renamed, without } from '../support/batch-keys.js';
import { makeBatch } from '../support/draw.js';
import { EveryColumnLossFn, COLUMNS as NAMES } from '../support/every-column.js';
import { fromHalf, type Half, toHalf } from '../support/half.js';
import { type Computed, type Family, packedBatch, paddedBatch, subject } from '../support/subject.js';
import { assertSameBits } from '../support/tolerance.js';

type Columns = Record<string, unknown>;
const FLOAT_COLUMNS = ALL_COLUMNS.filter((name) => name !== 'tokenWeights');
type FloatColumn = (typeof FLOAT_COLUMNS)[number];

const ROWS = 6;
const COLUMNS = 23;
const drawn = makeBatch({
  seed: 4,
  rows: ROWS,
  columns: COLUMNS,
  values: 'moderate',
  mask: 'random',
  packed: false,
});
const drawnPacked = makeBatch({
  seed: 4,
  rows: ROWS,
  columns: COLUMNS,
  values: 'moderate',
  mask: 'random',
  packed: true,
});

// The functions under test. Together they read every column.
const SUBJECTS: [Family, string, Args][] = [
  ['policy', 'ppo', { clip_range_low: 0.2, clip_range_high: 0.28, loss_agg_mode: 'seq-mean-token-mean' }],
  ['policy', 'dpo', {}],
  ['policy', 'mix_chord', { clip_range_low: 0.2, clip_range_high: 0.2, mu_warmup_steps: 80, mu_peak: 0.5 }],
  ['kl', 'corrected_k3', { kl_coef: 0.1, loss_agg_mode: 'token-mean' }],
  ['entropy', 'mix', { entropy_coef: 0.1, loss_agg_mode: 'seq-mean-token-sum' }],
];

const snakeCase = (key: string) => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function withFloats(batch: Columns, change: (column: Float32Array, name: FloatColumn) => unknown): Columns {
  const floats = FLOAT_COLUMNS.filter((name) => name in batch);
  return {
    ...batch,
    ...Object.fromEntries(floats.map((name) => [name, change(batch[name] as Float32Array, name)])),
  };
}

const nested = (column: ArrayLike<number>): number[][] =>
  Array.from({ length: ROWS }, (_, b) => Array.from(column).slice(b * COLUMNS, (b + 1) * COLUMNS));

/** Copies a column into a larger buffer, and returns a view that starts at `offset` bytes in this buffer. */
function inside<T extends Float32Array | Uint8Array | Uint16Array>(column: T, offset: number): T {
  const Type = column.constructor as new (buffer: ArrayBuffer, offset: number, length: number) => T;
  const view = new Type(new ArrayBuffer(column.byteLength + 64), offset, column.length);
  view.set(column);
  return view;
}

function shared<T extends Float32Array | Uint8Array>(column: T): T {
  const Type = column.constructor as new (buffer: SharedArrayBuffer) => T;
  const view = new Type(new SharedArrayBuffer(column.byteLength));
  view.set(column);
  return view;
}

const mask = (batch: Columns) => batch.actionMask as Uint8Array;
const expert = (batch: Columns) => batch.expertMask as Uint8Array;

/**
 * Functions that convert a batch to another form, by the name of the form. Forms with `paddedOnly` are not used with
 * packed batches.
 */
const FORMS: Record<string, { paddedOnly?: true; form: (batch: Columns) => Columns }> = {
  'Float64Array columns': { form: (batch) => withFloats(batch, (column) => Float64Array.from(column)) },
  'number[] columns': { form: (batch) => withFloats(batch, (column) => Array.from(column)) },
  'number[][] columns': { paddedOnly: true, form: (batch) => withFloats(batch, nested) },
  'masks as boolean[]': {
    form: (batch) => ({
      ...batch,
      actionMask: Array.from(mask(batch), Boolean),
      expertMask: Array.from(expert(batch), Boolean),
    }),
  },
  'masks as number[]': {
    form: (batch) => ({
      ...batch,
      actionMask: Array.from(mask(batch)),
      expertMask: Array.from(expert(batch)),
    }),
  },
  "Trinity's key names": {
    form: (batch) =>
      Object.fromEntries(
        Object.entries(batch).map(([key, value]) => [key === 'cuSeqlens' ? key : snakeCase(key), value]),
      ),
  },
  'step as one number': { form: (batch) => ({ ...batch, step: (batch.step as number[])[0] }) },
  'step as a typed array': { form: (batch) => ({ ...batch, step: Int32Array.from(batch.step as number[]) }) },
  'views inside larger buffers': {
    form: (batch) => ({
      ...withFloats(batch, (column) => inside(column, 12)),
      actionMask: inside(mask(batch), 3),
      expertMask: inside(expert(batch), 5),
    }),
  },
  'shared memory': {
    form: (batch) => ({
      ...withFloats(batch, shared),
      actionMask: shared(mask(batch)),
      expertMask: shared(expert(batch)),
    }),
  },
  'unknown keys': {
    form: (batch) => ({
      ...batch,
      prompt: ['a', 'b'],
      reward_model: { ground_truth: 4 },
      tokens: new Int32Array(3),
    }),
  },
};

describe('forms of a batch', () => {
  for (const [family, name, args] of SUBJECTS) {
    describe(`${family} ${name}`, () => {
      for (const [what, { form, paddedOnly }] of Object.entries(FORMS)) {
        it(what, async () => {
          const on = subject(family, name, args);
          for (const batch of paddedOnly
            ? [paddedBatch(drawn)]
            : [paddedBatch(drawn), packedBatch(drawnPacked)]) {
            const usual = on.sync(batch);
            assertSameBits(on.sync(form(batch) as Batch), usual);
            assertSameBits(await on.async(form(batch) as Batch), usual);
          }
        });
      }

      for (const dtype of ['bfloat16', 'float16'] as const) {
        it(`${dtype} columns`, async () => {
          const on = subject(family, name, args);
          for (const batch of [paddedBatch(drawn), packedBatch(drawnPacked)]) {
            const halves = (column: Float32Array) => Uint16Array.from(column, (x) => toHalf(x, dtype));
            const rounded = withFloats(batch, (column) =>
              Float32Array.from(halves(column), (half) => fromHalf(half, dtype)),
            );
            const usual = on.sync(rounded as Batch);
            const given = withFloats(batch, (column) => ({ data: halves(column), dtype })) as Batch;
            assertSameBits(on.sync(given), usual);
            assertSameBits(await on.async(given), usual);
            const offset = withFloats(batch, (column) => ({
              data: inside(halves(column), 6),
              dtype,
            })) as Batch;
            assertSameBits(on.sync(offset), usual);
          }
        });
      }

      it('columns of different types together', () => {
        const on = subject(family, name, args);
        const exact: ReferenceBatch = { ...drawn };
        // Rounds to multiples of 1/4, which are exact in every type. So only the types of the columns differ.
        for (const column of FLOAT_COLUMNS)
          exact[column] = Array.from(drawn[column]!, (x) => Math.round(x * 4) / 4);
        const batch = paddedBatch(exact);
        const types: Record<FloatColumn, (column: Float32Array) => unknown> = {
          logprob: (column) => ({
            data: Uint16Array.from(column, (x) => toHalf(x, 'bfloat16')),
            dtype: 'bfloat16',
          }),
          oldLogprob: (column) => ({
            data: Uint16Array.from(column, (x) => toHalf(x, 'float16')),
            dtype: 'float16',
          }),
          refLogprob: (column) => Array.from(column),
          advantages: (column) => column,
          entropy: (column) => Float64Array.from(column),
          rolloutLogprob: (column) => Array.from(column),
          proxLogprob: (column) => column,
          teacherLogprob: (column) => Float64Array.from(column),
          oldEntropy: (column) => Array.from(column),
          values: (column) => ({
            data: Uint16Array.from(column, (x) => toHalf(x, 'bfloat16')),
            dtype: 'bfloat16',
          }),
          oldValues: (column) => Array.from(column),
          logSumSqProb: (column) => Float64Array.from(column),
          entropyOther: (column) => column,
          returns: (column) => Float64Array.from(column),
        };
        assertSameBits(
          on.sync(withFloats(batch, (column, of) => types[of](column)) as Batch),
          on.sync(batch),
        );
      });

      it('a gradient array that the caller passes', async () => {
        const on = subject(family, name, args);
        for (const batch of [paddedBatch(drawn), packedBatch(drawnPacked)]) {
          const usual = on.sync(batch);
          // What the array contained before the call must not affect the result.
          for (const own of [new Float32Array(usual.grad.length), inside(usual.grad, 8).fill(Number.NaN)]) {
            const computed = on.sync(batch, own);
            assert.equal(computed.grad, own);
            assertSameBits(computed, usual);
            own.fill(Number.NaN);
            const later = await on.async(batch, { grad: own });
            assert.equal(later.grad, own);
            assertSameBits(later, usual);
          }
        }
      });

      it('does not change its inputs', async () => {
        const on = subject(family, name, args);
        const batch = paddedBatch(drawn);
        on.sync(batch);
        await on.async(batch);
        assert.deepEqual(batch, paddedBatch(drawn));
      });
    });
  }

  for (const name of ['ppo', 'gspo', 'rec', 'mix', 'opmd']) {
    it(`${name}: one advantage per row`, () => {
      const on = subject('policy', name, {});
      for (const [batch, lay] of [
        [drawn, paddedBatch],
        [drawnPacked, packedBatch],
      ] as const) {
        const perRow = Float32Array.from({ length: ROWS }, (_, b) => batch.advantages![b * batch.columns]!);
        const everywhere = Array.from(batch.advantages!, (_, i) => perRow[Math.floor(i / batch.columns)]!);
        const usual = on.sync(lay({ ...batch, advantages: everywhere }));
        const brief = lay(batch);
        for (const form of [perRow, Array.from(perRow), Float64Array.from(perRow)]) {
          assertSameBits(on.sync({ ...brief, advantages: form } as Batch), usual);
        }
      }
    });
  }

  it('other columns may also have one value per row', () => {
    const on = subject('policy', 'ppo', {});
    const perRow = Float32Array.from({ length: ROWS }, (_, b) => -0.5 - b / 8);
    const everywhere = Float32Array.from(drawn.oldLogprob!, (_, i) => perRow[Math.floor(i / COLUMNS)]!);
    const usual = on.sync({ ...paddedBatch(drawn), oldLogprob: everywhere } as Batch);
    assertSameBits(on.sync({ ...paddedBatch(drawn), oldLogprob: perRow } as Batch), usual);
  });

  it("keys by the verl backend's names", () => {
    const names: Record<string, string> = {
      logprob: 'log_prob',
      oldLogprob: 'old_log_probs',
      refLogprob: 'ref_log_prob',
      actionMask: 'response_mask',
      expertMask: 'expert_mask',
    };
    for (const name of ['ppo', 'dpo', 'mix_chord']) {
      const fn = POLICY_LOSS_FN.create(name, {}, { backend: 'verl' });
      const batch = paddedBatch(drawn);
      const verl = Object.fromEntries(
        Object.entries(batch).map(([key, value]) => [names[key] ?? key, value]),
      );
      assert.deepEqual(fn.computeSync(verl as Batch, { grad: true }), fn.computeSync(batch, { grad: true }));
    }
  });

  it('columns in their native order, under every name', () => {
    const reader = new BatchReader(KeyMapper.get('verl'), { inputs: NAMES });
    const batch = paddedBatch({ ...drawn, clipCovKeys: drawn.entropy!, answerMask: drawn.entropy! });
    const verl: Record<string, string> = {
      logprob: 'log_prob',
      oldLogprob: 'old_log_probs',
      refLogprob: 'ref_log_prob',
      rolloutLogprob: 'rollout_log_probs',
    };
    for (const rename of [(key: string) => key, snakeCase, (key: string) => verl[key] ?? key]) {
      const { native } = takeNow(reader.read(renamed(batch, rename) as Batch));
      assert.deepEqual(
        native.data,
        NATIVE_ORDER.map((name) => (name === 'token_weights' ? undefined : batch[camelCase(name)])),
      );
    }
    const { entropy, teacherLogprob } = batch as Record<FloatColumn, Float32Array>;
    const mixed = {
      ...batch,
      entropy: { data: Uint16Array.from(entropy), dtype: 'float16' },
      teacherLogprob: { data: Uint16Array.from(teacherLogprob), dtype: 'bfloat16' },
      proxLogprob: new Float32Array(ROWS),
    };
    const { dtypes } = takeNow(reader.read(mixed as Batch)).native;
    const given = Object.fromEntries(NAMES.flatMap((name, i) => (dtypes[i] ? [[name, dtypes[i]]] : [])));
    assert.deepEqual(given, { entropy: 1, prox_logprob: 4, teacher_logprob: 2 });
  });

  it('every column that the declaration of a loss names', () => {
    const fn = new EveryColumnLossFn();
    assert.deepEqual(fn.reads.columns, NAMES);
    const batch = paddedBatch({ ...drawn, clipCovKeys: drawn.entropy!, answerMask: drawn.entropy! });
    assertSameBits(
      fn.computeSync(batch, { grad: true }) as Computed,
      subject('policy', 'sft', {}).sync(batch) as Computed,
    );
    for (const name of FLOAT_COLUMNS)
      assert.throws(() => fn.computeSync(without(batch, name)), { code: 'ERR_MISSING_INPUT', key: name });
  });

  it('no gradient unless it is requested', async () => {
    const fn = POLICY_LOSS_FN.create('ppo', {});
    assert.equal(fn.computeSync(paddedBatch(drawn)).grad, undefined);
    assert.equal((await fn.compute(paddedBatch(drawn), { grad: false })).grad, undefined);
    const { loss, metrics } = fn.computeSync(paddedBatch(drawn), { grad: true });
    const { loss: alone, metrics: metricsAlone } = fn.computeSync(paddedBatch(drawn));
    assert.deepEqual({ alone, metricsAlone }, { alone: loss, metricsAlone: metrics });
  });
});

describe('half-precision conversion in these tests', () => {
  it('returns every number that a type can hold', () => {
    for (const dtype of ['float16', 'bfloat16'] satisfies Half[]) {
      for (let half = 0; half < 0x10000; half++) {
        const x = fromHalf(half, dtype);
        if (!Number.isNaN(x)) assert.equal(toHalf(x, dtype), half, `${dtype} ${half}`);
      }
    }
  });
});
