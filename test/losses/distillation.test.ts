/** Distillation losses: where their gradients are written, and lists with unusual tokens. */
import assert from 'node:assert/strict';
import { native } from '../../lib/base/native.js';
import { LOGITS_LOSS_FN, type LogitsLossBatch, LossError, sumCounts } from '../../lib/index.js';
import { evaluateLogits } from '../matrix/logits-reference.js';
import type { Args, ReferenceBatch } from '../reference/index.js';
import { layLogits } from '../support/logits-losses.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const [B, T, V, K] = [2, 4, 9, 3];
const N = B * T;
let seed = 1;
const random = () => {
  seed = (seed * 16807) % 2147483647;
  return seed / 2147483647 - 0.5;
};
const floats = (length: number) => Float32Array.from({ length }, () => 6 * random());
const mask = Uint8Array.from({ length: N }, (_, i) => (i % 4 === 1 ? 0 : 1));
const ids = Int32Array.from({ length: N * K }, (_, i) => (i * 2) % V);
const batch = {
  shape: [B, T] as const,
  logits: floats(N * V),
  teacherLogits: floats(N * V),
  actionMask: mask,
  teacherTopkIds: ids,
  teacherTopkLogprobs: floats(N * K).map((x) => x / 4 - 2),
  targets: Int32Array.from({ length: N }, (_, i) => ids[i * K]!),
  oldLogprob: floats(N).map((x) => x / 10 - 2),
  advantages: floats(N),
};
type Given = typeof batch & LogitsLossBatch;

const isError = (text: string) => (error: unknown) =>
  error instanceof LossError && error.message.includes(text);

/** Checks that two numbers differ by at most `most`. */
function near(found: number, wanted: number, most: number, what?: string): void {
  assert.ok(Math.abs(found - wanted) <= most, `${what ?? ''} ${found} is not near ${wanted}`);
}

const LOSSES = [
  ['trl/gkd', {}],
  ['liger/jsd', {}],
  ['swift/gkd', { sft_alpha: 0.5 }],
  ['axolotl/kd', { kd_alpha: 0.5, kd_ce_alpha: 0.5, kd_temperature: 2 }],
  ['nemo/distill', { zero_outside_topk: true, global_valid_toks: 7 }],
  ['verl/distill_topk', { use_task_rewards: true }],
  ['trl/iw_opd_jsd', { loss_top_k: 2, beta: 0.5 }],
] as const;
const lossOf = ([name, args]: (typeof LOSSES)[number]) => LOGITS_LOSS_FN.create(name as string, { ...args });

describe('distillation losses', () => {
  for (const each of LOSSES) {
    const fn = lossOf(each);
    const whole = fn.computeSync(batch, { grad: true });

    it(`${each[0]}: writes the gradient in place of the logits, and in 16 bits`, async () => {
      const logits = batch.logits.slice();
      const written = await fn.compute({ ...batch, logits }, { gradLogits: logits });
      assert.equal(written.gradLogits, logits);
      assert.equal(written.loss, whole.loss);
      assert.deepEqual(logits, whole.gradLogits);
      const half = { data: new Uint16Array(N * V), dtype: 'bfloat16' as const };
      half.data.set(new Uint16Array(batch.logits.buffer).filter((_, i) => i % 2 === 1));
      const widened = new Float32Array(Uint32Array.from(half.data, (bits) => bits << 16).buffer);
      const exact = fn.computeSync({ ...batch, logits: widened }, { grad: true }).gradLogits as Float32Array;
      await fn.compute({ ...batch, logits: half }, { gradLogits: half });
      const found = new Float32Array(Uint32Array.from(half.data, (bits) => bits << 16).buffer);
      for (const [i, x] of exact.entries()) near(found[i]!, x, Math.abs(x) / 200 + 1e-30);
    });

    // axolotl multiplies the value of the divergence by T², but not its gradient.
    const hasSlopes = each[0] !== 'axolotl/kd';
    if (hasSlopes)
      it(`${each[0]}: has the gradient that its slopes tell`, () => {
        const step = 1 / 128;
        const losses = (i: number, by: number) => {
          const logits = batch.logits.slice();
          logits[i]! += by;
          return fn.computeSync({ ...batch, logits }).loss;
        };
        const gradient = whole.gradLogits as Float32Array;
        for (let i = 0; i < N * V; i += 5) {
          const slope = (losses(i, step) - losses(i, -step)) / (2 * step);
          near(gradient[i]!, slope, 2e-3, `${i}:`);
        }
      });

    it(`${each[0]}: does not read what is masked`, () => {
      const poisoned: Given = {
        ...batch,
        logits: batch.logits.map((x, i) => (mask[Math.floor(i / V)] ? x : Number.NaN)),
        teacherLogits: batch.teacherLogits.map((x, i) => (mask[Math.floor(i / V)] ? x : Number.NaN)),
        teacherTopkIds: ids.map((x, i) => (mask[Math.floor(i / K)] ? x : 12345)),
        targets: batch.targets.map((x, i) => (mask[i] ? x : -7)),
      };
      const found = fn.computeSync(poisoned, { grad: true });
      assert.deepEqual(found, whole);
      const nothing = fn.computeSync({ ...poisoned, actionMask: new Uint8Array(N) }, { grad: true });
      assert.equal(nothing.loss, 0);
      assert.equal(
        (nothing.gradLogits as Float32Array).every((x) => x === 0),
        true,
      );
    });

    it(`${each[0]}: adds up from its parts`, () => {
      const row = (at: number) => ({
        ...batch,
        shape: [1, T] as const,
        ...Object.fromEntries(
          Object.entries(batch)
            .filter(([key]) => key !== 'shape')
            .map(([key, values]) => {
              const length = values.length / B;
              return [key, (values as Float32Array).subarray(at * length, (at + 1) * length)];
            }),
        ),
      });
      const parts = [row(0), row(1)];
      const normalizer = sumCounts(parts.map((part) => fn.countSync(part)));
      if (fn.readsWholeBatch) {
        assert.throws(() => fn.computeSync(parts[0]!, { normalizer }), isError('whole batch'));
        return;
      }
      const results = parts.map((part) => fn.computeSync(part, { grad: true, normalizer, part: true }));
      const merged = fn.merge(
        results.map(({ part }) => part!),
        normalizer,
      );
      assert.equal(merged.loss, whole.loss);
      const gradients = results.flatMap(({ gradLogits }) => [...(gradLogits as Float32Array)]);
      assert.deepEqual(gradients, [...(whole.gradLogits as Float32Array)]);
    });
  }

  it('give a token that stands twice in a list the sum of both gradients', () => {
    const fn = LOGITS_LOSS_FN.create('verl/distill_topk', { log_prob_min_clamp: null, loss_max_clamp: null });
    const { logits } = batch;
    const one = { shape: [1, 1] as const, logits: logits.subarray(0, V) };
    const pair = Float32Array.of(-1, -1);
    const twice = { ...one, teacherTopkIds: [4, 4], teacherTopkLogprobs: pair };
    const once = { ...one, teacherTopkIds: [4, -1], teacherTopkLogprobs: pair };
    const gradient = (given: LogitsLossBatch) =>
      fn.computeSync(given, { grad: true }).gradLogits as Float32Array;
    const [double, single] = [gradient(twice), gradient(once)];
    for (const [i, x] of single.entries()) near(double[i]!, 2 * x, 1e-6);
  });

  it('are finite at logits of −Infinity where the divergence is', () => {
    const logits = Float32Array.of(1, 2, -Infinity, 0);
    const teacherLogits = Float32Array.of(0, 3, -Infinity, -Infinity);
    const given = { shape: [1, 1] as const, logits, teacherLogits };
    for (const beta of [0, 0.5]) {
      const { loss, gradLogits } = LOGITS_LOSS_FN.create('trl/gkd', { beta }).computeSync(given, {
        grad: true,
      });
      assert.ok(loss >= 0 && loss < 2);
      assert.equal((gradLogits as Float32Array)[2], 0);
      assert.equal((gradLogits as Float32Array).every(Number.isFinite), true);
    }
  });

  it('name what two vocabularies cannot be compared by', () => {
    const hybrid = LOGITS_LOSS_FN.create('trl/gold_uld', { uld_use_hybrid_loss: true });
    const matched = { ...batch, studentMatchedIds: [0, 1], teacherMatchedIds: [2, 3] };
    assert.ok(hybrid.computeSync(matched).loss > 0);
    const wrong: [Partial<typeof matched>, string][] = [
      [{ teacherMatchedIds: [2] }, 'teacherMatchedIds: expected 2 ids, as many as studentMatchedIds, got 1'],
      [{ teacherMatchedIds: [2, V] }, 'teacherMatchedIds[1]'],
    ];
    for (const [given, key] of wrong)
      assert.throws(() => hybrid.computeSync({ ...matched, ...given }), isError(key));
    const extended = LOGITS_LOSS_FN.create('trl/gold_uld', { use_extended_uld: true });
    assert.throws(() => extended.computeSync(batch), isError('use_extended_uld'));
  });

  it('reads the whole teacher if target_vocab_size is larger than its vocabulary', () => {
    for (const logits_topk of [0, 3]) {
      const whole = LOGITS_LOSS_FN.create('roll/distill', { logits_topk }).computeSync(batch);
      const args = { logits_topk, target_vocab_size: V + 1 };
      assert.deepEqual(LOGITS_LOSS_FN.create('roll/distill', args).computeSync(batch), whole);
    }
  });

  it('name the input that has another number of values', () => {
    const fn = LOGITS_LOSS_FN.create('nemo/distill');
    const teacherTopkLogprobs = batch.teacherTopkLogprobs.subarray(0, N * 2);
    assert.throws(
      () => fn.computeSync({ ...batch, teacherTopkLogprobs }),
      isError('expected 3 values per token, as many as teacherTopkIds, got 2'),
    );
  });

  it('name the logits of a teacher whose vocabulary has another size than it may have', () => {
    const cut = (logits: Float32Array) => logits.filter((_, i) => i % V < V - 2);
    const [narrow, short] = [cut(batch.teacherLogits), cut(batch.logits)];
    const targets = batch.targets.map((id) => id % (V - 2));
    const { teacherTopkIds: _, ...given } = { ...batch, targets };
    const unlike = isError(`teacherLogits: expected ${V} values per token, as many as logits, got ${V - 2}`);
    const wide = isError(`teacherLogits: expected ${V - 2} values per token, as many as logits, got ${V}`);
    for (const [name, args, ofNarrow, ofWide] of [
      ['liger/jsd', {}, unlike, undefined],
      ['trl/gkd', {}, unlike, wide],
      ['trl/iw_opd_jsd', { loss_top_k: 2, beta: 0.5 }, unlike, wide],
      ['trl/iw_opd_jsd', {}, unlike, wide],
      ['trl/sdft', { distillation_topk: 2 }, unlike, wide],
      ['skyrl/draft_soft_ce', { mtp_loss_topk: 2 }, unlike, wide],
      ['roll/distill', {}, undefined, wide],
      ['swift/gkd', { gkd_logits_topk: V }, undefined, isError('because logits has no others')],
    ] as const) {
      const fn = LOGITS_LOSS_FN.create(name as string, { ...args });
      for (const [change, error] of [
        [{ teacherLogits: narrow }, ofNarrow],
        [{ logits: short }, ofWide],
      ] as const) {
        const compute = () => fn.computeSync({ ...given, ...change }, { grad: true });
        if (error) assert.throws(compute, error, name);
        else assert.ok((compute().gradLogits as Float32Array).every(Number.isFinite), name);
      }
    }
    // A token beyond the student's vocabulary does no harm where it is not among the largest.
    const teacherLogits = batch.teacherLogits.map((x, i) => (i % V < V - 2 ? x : -20));
    const topK = LOGITS_LOSS_FN.create('swift/gkd', { gkd_logits_topk: 3 });
    const { loss } = topK.computeSync({ ...given, teacherLogits, logits: short });
    near(loss, topK.computeSync({ ...given, teacherLogits: narrow, logits: short }).loss, 1e-6);
  });

  it('name an id that is not one of the vocabulary', () => {
    const fn = LOGITS_LOSS_FN.create('nemo/distill');
    const teacherTopkIds = ids.with(2 * K, V);
    assert.throws(() => fn.computeSync({ ...batch, teacherTopkIds }), isError('teacherTopkIds[6]'));
  });
});

describe('distillation losses agree with the reference', () => {
  const drawn: ReferenceBatch = {
    rows: B,
    columns: T,
    actionMask: new Uint8Array(N).fill(1),
    logits: Float64Array.from(floats(N * V)),
    teacherLogits: Float64Array.from(floats(N * V)),
    targets: Float64Array.from({ length: N }, (_, i) => i % (V - 2)),
    teacherTopkIds: Float64Array.from(ids),
    teacherTopkLogprobs: Float64Array.from(batch.teacherTopkLogprobs),
  };
  const { teacherTopkIds: _, teacherTopkLogprobs: __, ...full } = drawn;
  const narrowed = (logits: ArrayLike<number>, width: number) =>
    Float64Array.from(logits).filter((_, i) => i % V < width);

  function agrees(name: string, args: Args, given: ReferenceBatch): void {
    const found = LOGITS_LOSS_FN.create(name, { ...args }).computeSync(layLogits(given), { grad: true });
    const expected = evaluateLogits(name)(args, given);
    assertNumber(found.loss, expected.loss, 'loss');
    assertArray(found.gradLogits as Float32Array, expected.grad, 'gradient', 5e-5);
    const metrics = found.metrics as Record<string, number>;
    for (const [key, value] of Object.entries(expected.metrics)) assertNumber(metrics[key], value, key);
  }

  it('swift/gkd: the cross-entropy is over the vocabulary of the student, also if it is the narrower one', () => {
    for (const beta of [0, 0.5, 1])
      for (const of of ['logits', 'teacherLogits'] as const)
        agrees('swift/gkd', { beta, sft_alpha: 0.5 }, { ...full, [of]: narrowed(full[of]!, V - 2) });
  });

  it('swift/gkd: the gradient of a token without a finite log-probability is that of its cross-entropy', () => {
    const teacherTopkLogprobs = Float64Array.from(drawn.teacherTopkLogprobs!).fill(-Infinity, K, 3 * K);
    const teacherTopkIds = Float64Array.from(ids);
    for (const given of [teacherTopkIds, teacherTopkIds.slice().fill(-1, K, 2 * K)])
      for (const beta of [0, 0.5, 1])
        for (const sft_alpha of [0, 0.5])
          agrees('swift/gkd', { beta, sft_alpha }, { ...drawn, teacherTopkIds: given, teacherTopkLogprobs });
  });

  it('tinker/sdft: a token whose list is empty is no position', () => {
    for (const reverse of [false, true])
      agrees('tinker/sdft', { reverse, vocab_size: 3, skip_first_n_tokens: 0 }, drawn);
  });

  it('trl/gold_uld: without unmatched tokens on one side, the others are not compared', () => {
    const all = Array.from({ length: V - 2 }, (_, i) => i);
    for (const of of ['logits', 'teacherLogits'] as const)
      agrees(
        'trl/gold_uld',
        { uld_use_hybrid_loss: true },
        {
          ...full,
          [of]: narrowed(full[of]!, V - 2),
          teacherActionMask: full.actionMask,
          studentMatchedIds: all,
          teacherMatchedIds: all.map((id) => V - 3 - id),
        },
      );
  });

  it('trl/gold_uld: the metrics are those of the last row that is compared', () => {
    const actionMask = Uint8Array.from(full.actionMask, (_, i) => (i < T ? 1 : 0));
    const hybrid = { ...full, actionMask, teacherActionMask: actionMask };
    agrees(
      'trl/gold_uld',
      { uld_use_hybrid_loss: true },
      { ...hybrid, studentMatchedIds: [0, 1], teacherMatchedIds: [2, 3] },
    );
  });

  it('roll/distill: a skewed divergence is finite where float32 has no such small probability', () => {
    const logits = Float64Array.from(full.logits!, (x, i) => (i % V === 0 ? 150 : x));
    for (const kd_objective of ['skewed_forward_kl', 'skewed_reverse_kl'])
      for (const skew_lambda of [0, 0.1, 1])
        for (const swapped of [{ logits }, { teacherLogits: logits }])
          agrees('roll/distill', { kd_objective, skew_lambda, logits_topk: 0 }, { ...full, ...swapped });
  });

  it('verl/distill_topk: the overlap is a share of the whole list, some of which may be absent', () => {
    const teacherTopkIds = Float64Array.from(ids).fill(-1, K - 1, 2 * K);
    agrees('verl/distill_topk', {}, { ...drawn, teacherTopkIds });
  });
});

describe('fine-tuning weighted by the entropy', () => {
  it('is precise where a token is nearly certain', () => {
    const logits = Float64Array.from({ length: 2 * 40 }, (_, i) => (i % 40 === 7 ? 24 : random()));
    const given = {
      rows: 1,
      columns: 2,
      actionMask: new Uint8Array(2).fill(1),
      logits: logits.map(Math.fround),
      targets: [3, 7],
    };
    for (const name of ['llamafactory/eaft', 'axolotl/eaft'])
      for (const eaft_alpha of [0.25, 1]) {
        const fn = LOGITS_LOSS_FN.create(name, { eaft_alpha });
        const found = fn.computeSync(layLogits(given), { grad: true });
        const expected = evaluateLogits(name)({ eaft_alpha }, given);
        assert.ok(Math.abs(found.loss / expected.loss - 1) < 2e-5, `${found.loss} ${expected.loss}`);
        assertArray(found.gradLogits as Float32Array, expected.grad, 'gradient', 5e-5);
      }
  });
});

describe('the tokens with the largest logits', () => {
  const KINDS: Readonly<Record<string, (i: number, row: number) => number>> = {
    different: () => 20 * random(),
    'often equal': () => Math.round(20 * random()) / 2,
    'all equal': () => 1,
    rising: (i) => i,
    falling: (i) => -i,
    'one large among −Infinity': (i, row) => (i === 7 * row ? 1 : Number.NEGATIVE_INFINITY),
    'with NaN': () => (random() < 0.5 ? Number.NaN : random()),
    'all NaN': () => Number.NaN,
  };
  for (const [kind, logit] of Object.entries(KINDS))
    it(`are found among logits that are ${kind}, the first of equal ones first`, () => {
      for (const [rows, vocabulary, count] of [
        [40, 300, 17],
        [3, 9001, 32],
        [3, 4096, 1],
        [2, 700, 700],
      ] as const)
        for (const dtype of [0, 2]) {
          const numbers = Float32Array.from({ length: rows * vocabulary }, (_, i) =>
            logit(i % vocabulary, Math.floor(i / vocabulary)),
          );
          const bits = new Uint16Array(numbers.buffer);
          // A number in bfloat16 is the upper half of one in float32.
          const halves = Uint16Array.from(numbers, (_, i) => bits[2 * i + 1]!);
          if (dtype === 2) for (let i = 0; i < halves.length; i++) bits[2 * i] = 0;
          const data = dtype === 0 ? numbers : halves;
          const wanted = Array.from({ length: rows }, (_, row) => {
            const logits = numbers.subarray(row * vocabulary, (row + 1) * vocabulary);
            const order = Array.from(logits.keys()).filter((i) => !Number.isNaN(logits[i]));
            order.sort((a, b) => logits[b]! - logits[a]! || a - b);
            return Array.from({ length: count }, (_, i) => order[i] ?? -1);
          }).flat();
          const ids = new Int32Array(rows * count);
          const targets = new Int32Array(rows);
          const call = { rows, vocabulary, rowStride: vocabulary, dtype, data, targets, topIds: ids };
          native.logits({ ...call, temperature: 1, temperatures: undefined, softcap: 0, device: undefined });
          assert.deepEqual([...ids], wanted);
        }
    });
});
