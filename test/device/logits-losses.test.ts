/** Tests losses from logits in memory of a CUDA device, real or emulated. They give the same bits as from host memory. */
import assert from 'node:assert/strict';
import { takeLater } from '../../lib/base/steps.js';
import {
  type Batch,
  LOGITS_LOSS_FN,
  type Logits,
  type LogitsLossBatch,
  type LogitsLossComputeOptions,
  type LossErrorCode,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { topTokens } from '../../lib/logits/lists.js';
import { drawLogits, everyLogitsLoss, type Tested } from '../matrix/logits-oracles.js';
import { framework } from '../support/framework.js';
import { copyOf, dataOf } from '../support/logits.js';
import { everyPosition, type LogitsBatchSpec, layLogits } from '../support/logits-losses.js';
import { copyToDevice } from '../support/logits-ways.js';
import { batch, DEVICE, gpus, isInterleaved, rejects } from '../support/on-device.js';
import { assertSameArray } from '../support/tolerance.js';

/** Losses that order logits on the host, and therefore refuse logits in memory of a device. */
const REFUSED: readonly string[] = ['trl/gold_uld'];

const SPEC: LogitsBatchSpec = {
  seed: 11,
  rows: 4,
  columns: 9,
  rowLengths: [9, 1, 5, 3],
  vocabulary: 21, // rows of 16-bit logits are not aligned
  listed: 5,
  values: 'infinite',
  mask: 'random',
};

const INPUTS = ['logits', 'probs', 'teacherLogits', 'teacherProbs', 'refLogits'] as const;
type Input = (typeof INPUTS)[number];
type There = ReturnType<typeof copyToDevice>;
type HostBatch = Batch & Partial<Record<Input, Logits>>;

/** The batches of a test, and copies of some of their inputs in memory of the device. */
class Copies {
  readonly #all: There[] = [];

  make(logits: Logits, shape: readonly number[]): There {
    const there = copyToDevice(logits, shape);
    this.#all.push(there);
    return there;
  }

  /** Returns the batch with copies of inputs in memory of the device. */
  of(batch: HostBatch, tokens: number, names: readonly Input[]): HostBatch & Partial<Record<Input, There>> {
    const moved = names.flatMap((name) => {
      const given = batch[name];
      return given ? [[name, this.make(copyOf(given), [tokens, dataOf(given).length / tokens])]] : [];
    });
    return { ...batch, ...Object.fromEntries(moved) };
  }

  free(): void {
    for (const there of this.#all) there.free();
  }
}

async function withCopies(use: (copies: Copies) => Promise<void>): Promise<void> {
  const copies = new Copies();
  try {
    await use(copies);
  } finally {
    copies.free();
  }
}

type Computed = Awaited<ReturnType<Tested['async']>>;

function assertSame(found: Computed, expected: Computed): void {
  assert.equal(found.loss, expected.loss);
  assert.deepEqual(found.metrics, expected.metrics);
}

/** Asserts that logits in memory of the device, and a gradient there, give the same bits as on the host. */
async function assertSameThere(on: Tested, host: HostBatch, tokens: number): Promise<void> {
  const device = { device: DEVICE };
  const variable = LOGITS_LOSS_FN.get(on.name).name === 'liger/tvd' ? 'probs' : 'logits';
  const expected = await on.async(host, device);
  const grad = dataOf(expected.gradLogits!);
  const own = copyOf(host[variable]!);
  await on.async({ ...host, [variable]: own }, { ...device, gradLogits: own });

  await withCopies(async (copies) => {
    const there = copies.of(host, tokens, INPUTS);
    const found = await on.async(there as Batch, device);
    assertSame(found, expected);
    assertSameArray(dataOf(found.gradLogits!), grad, 'gradLogits: true');
    assertSame(await on.async(there as Batch, { ...device, gradLogits: false }), expected);

    const apart = new Float32Array(grad.length).fill(Number.NaN);
    const to = copies.make(apart, there[variable]!.shape);
    for (const batch of [there, host, copies.of(host, tokens, [variable])]) {
      assertSame(await on.async(batch as Batch, { ...device, gradLogits: to }), expected);
      to.fetch();
      assertSameArray(apart, grad, 'gradLogits: memory of the device');
    }
    const ofTeacher = copies.of(host, tokens, ['teacherLogits', 'teacherProbs', 'refLogits']);
    assertSameArray(dataOf((await on.async(ofTeacher as Batch, device)).gradLogits!), grad, 'teacher there');

    const replaced = copyOf(host[variable]!);
    const inPlace = copies.make(replaced, there[variable]!.shape);
    const result = await on.async({ ...there, [variable]: inPlace } as Batch, {
      ...device,
      gradLogits: inPlace,
    });
    assertSame(result, expected);
    assert.equal(result.gradLogits, undefined);
    inPlace.fetch();
    assertSameArray(dataOf(replaced), dataOf(own), 'gradLogits: in place');
  });
}

describe(`losses of logits in memory of ${DEVICE}`, () => {
  before(function () {
    if (!framework()) this.skip();
  });

  for (const on of everyLogitsLoss(2, SPEC.vocabulary))
    for (const dtype of on.name === 'liger/tvd'
      ? (['float32'] as const)
      : (['float32', 'bfloat16', 'float16'] as const))
      it(`${on.title}, ${dtype}: ${REFUSED.includes(on.name) ? 'are refused' : 'give the same bits'}`, async () => {
        for (const mask of ['random', 'zero'] as const) {
          const drawn = drawLogits(on, { ...SPEC, mask });
          const tokens = everyPosition(drawn).length;
          const host: HostBatch = layLogits(drawn, dtype);
          if (!REFUSED.includes(on.name)) await assertSameThere(on, host, tokens);
          else
            await withCopies(async (copies) => {
              for (const name of ['logits', 'teacherLogits'] as const)
                await rejects(
                  () => on.async(copies.of(host, tokens, [name]) as Batch, { device: DEVICE }),
                  'ERR_INVALID_INPUT',
                  new RegExp(`^${name}: expected an array in host memory, because this loss orders`),
                );
            });
        }
      });

  it('are refused where rows of logits would be ordered, cut or padded', async () => {
    const both = ['logits', 'teacherLogits'] as const;
    const cases: [name: string, args: Options, change: object, refused: readonly Input[], why: RegExp][] = [
      ['roll/distill', { kd_objective: 'adaptive_kl', logits_topk: 0 }, {}, both, /because this loss orders/],
      ['roll/distill', { logits_topk: 0, target_vocab_size: 7 }, { logits: narrow }, ['teacherLogits'], CUT],
      ['liger/jsd', {}, { logits: narrow }, ['logits'], CUT],
      ['swift/gkd', {}, { logits: narrow }, ['logits'], CUT],
      ['swift/gkd', {}, { teacherLogits: narrow }, ['teacherLogits'], CUT],
    ];
    for (const [name, args, change, refused, why] of cases) {
      const { teacherTopkIds: _, ...host }: HostBatch & { teacherTopkIds?: unknown } = {
        ...small,
        ...change,
      };
      const fn = LOGITS_LOSS_FN.create(name, args);
      const expected = await fn.compute(host, { device: DEVICE });
      await withCopies(async (copies) => {
        for (const input of both) {
          const compute = () =>
            fn.compute(copies.of(host, TOKENS, [input]) as LogitsLossBatch, { device: DEVICE });
          const message = new RegExp(`^${input}: expected an array in host memory, ${why.source}`);
          if (refused.includes(input)) await rejects(compute, 'ERR_INVALID_INPUT', message);
          else assert.deepEqual(await compute(), expected, name);
        }
      });
    }
    await withCopies(async (copies) => {
      const gradLogits = copies.make(narrow, [TOKENS, 7]);
      await rejects(
        () =>
          LOGITS_LOSS_FN.create('liger/jsd').compute(
            { ...small, logits: narrow },
            { device: DEVICE, gradLogits },
          ),
        'ERR_INVALID_INPUT',
        /^gradLogits: expected true or an array in host memory, because the teacher's vocabulary is the larger one/,
      );
    });
  });

  it('may be a list of the largest logits of a narrower teacher', async () => {
    const fn = LOGITS_LOSS_FN.create('roll/distill', { logits_topk: 3, target_vocab_size: 7 });
    const options = { device: DEVICE, gradLogits: true };
    const expected = await fn.compute(small, options);
    await withCopies(async (copies) => {
      const there = copies.of(small, TOKENS, INPUTS) as LogitsLossBatch;
      assert.deepEqual(await fn.compute(there, options), expected);
    });
  });

  it('are listed as those in host memory are: the largest first, equal ones by their ids, and no NaN', async () => {
    const rows: number[][] = [
      [0, -0, 0, 5, 5, 5, 5, 1],
      [3, Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY, 2, 2, -1, 2, 2],
      [Number.NaN, 1, -Number.NaN, 2, Number.POSITIVE_INFINITY, 1, -7, -3],
      [-1e-40, 1e-40, -0, 0, -1e-30, 1e-30, 1e38, -1e38],
      [Number.NaN, Number.NaN, Number.NEGATIVE_INFINITY, ...Array.from({ length: 5 }, () => Number.NaN)],
      Array.from({ length: 8 }, () => 0.25),
    ];
    const [tokens, vocabulary] = [rows.length + 1, 8];
    const kept = Uint32Array.from({ length: tokens }, (_, i) => (i < rows.length ? 1 : 0));
    const data = Float32Array.from([...rows, rows[0]!].flat());
    await withCopies(async (copies) => {
      const { pointer } = copies.make(data, [tokens, vocabulary]);
      const list = async (at: Float32Array | bigint, count: number) => {
        const matrix = { data: at, dtype: 0, rowStride: vocabulary, device: 0 };
        return takeLater(topTokens({ matrix, tokens, vocabulary, kept, stream: undefined }, count));
      };
      for (const count of [1, 2, 3, 5, 8, 9]) {
        const expected = await list(data, count);
        assert.deepEqual(await list(pointer, count), expected);
        assert.deepEqual([...expected.ids.slice(-expected.length)], Array(expected.length).fill(-1));
      }
    });
  });

  it('may be a gradient on the device', async () => {
    using resident = await upload(batch, DEVICE);
    const { deviceGrad } = await POLICY_LOSS_FN.create('ppo').compute(resident, { grad: 'device' });
    const values = await deviceGrad!.toHost();
    const given = { shape: [2, 3] as const, targets: [0, 1, 2, 3, 4, 5] };
    const losses = ['liger/cross_entropy', 'axolotl/eaft'].map((name) => LOGITS_LOSS_FN.create(name));
    const options = { device: DEVICE, gradLogits: true };
    for (const fn of losses)
      assert.deepEqual(
        await fn.compute({ ...given, logits: deviceGrad! }, options),
        await fn.compute({ ...given, logits: values }, options),
      );
    deviceGrad!.dispose();
  });

  it('wait for the stream of the caller', async () => {
    const other = framework()!;
    const fn = LOGITS_LOSS_FN.create('trl/gkd');
    const expected = await fn.compute(small, { device: DEVICE });
    const stream = other.makeStream(0);
    const values = small.logits as Float32Array;
    const source = other.allocate(0, values.byteLength);
    other.write(stream, source, values);
    await withCopies(async (copies) => {
      const logits = copies.make(new Float32Array(values.length), [TOKENS, VOCABULARY]);
      other.copy(stream, logits.pointer, source, values.byteLength);
      assert.deepEqual(await fn.compute({ ...small, logits }, { device: DEVICE, stream }), expected);
    });
    other.free(source);
    other.destroyStream(stream);
  });

  it('are refused where they do not fit', async () => {
    await withCopies(async (copies) => {
      const logits = copies.make(copyOf(small.logits!), [2, 3, VOCABULARY]);
      const teacherLogits = copies.make(copyOf(small.teacherLogits!), [TOKENS, VOCABULARY]);
      const there: LogitsLossBatch = { ...small, logits, teacherLogits };
      const half = { ...logits, dtype: 'float16' } as const;
      const shifted = (of: There) => ({ ...of, pointer: of.pointer + 4n });
      const cases: [given: object, more: LogitsLossComputeOptions, code: LossErrorCode, message: RegExp][] = [
        [
          { logits: { ...logits, shape: [TOKENS, 8] } },
          {},
          'ERR_SHAPE_MISMATCH',
          /^teacherLogits: expected 8 values/,
        ],
        [
          { logits: { ...logits, shape: [5, 9] } },
          {},
          'ERR_SHAPE_MISMATCH',
          /^logits: expected a multiple of 6 values.*got 45/,
        ],
        [
          { logits: { ...logits, shape: [9, 6] } },
          {},
          'ERR_SHAPE_MISMATCH',
          /^logits: expected \[6, 9\].*got shape \[9, 6\]/,
        ],
        [{ teacherLogits: { ...logits, shape: undefined } }, {}, 'ERR_SHAPE_MISMATCH', /^teacherLogits: /],
        [
          { teacherLogits: { ...logits, dtype: 'float64' } },
          {},
          'ERR_INVALID_INPUT',
          /^teacherLogits: expected dtype/,
        ],
        [
          { logits: { ...logits, device: 'cpu' } },
          {},
          'ERR_INVALID_INPUT',
          /^logits: expected a column on cuda:0, the device of the call/,
        ],
        [
          { logits: { ...logits, pointer: 4096n } },
          {},
          'ERR_INVALID_INPUT',
          /memory of the device with room/,
        ],
        [
          { logits: { ...logits, pointer: logits.pointer + 2n } },
          {},
          'ERR_INVALID_INPUT',
          /^logits: .*a bigint that 4 divides/,
        ],
        [
          {},
          { device: 'cpu' },
          'ERR_INVALID_INPUT',
          /^logits: expected memory of the host.*Pass the name of the device/,
        ],
        [
          {},
          { device: 'cpu', gradLogits: logits },
          'ERR_INVALID_INPUT',
          /^logits: expected memory of the host/,
        ],
        [
          small,
          { device: 'cpu', gradLogits: logits },
          'ERR_INVALID_INPUT',
          /^grad of logits: expected memory of the host/,
        ],
        [
          {},
          { gradLogits: half },
          'ERR_INVALID_INPUT',
          /^grad of logits: expected dtype float32 or that of the logits/,
        ],
        [
          {},
          { gradLogits: shifted(logits) },
          'ERR_INVALID_INPUT',
          /^grad of logits: .*overlaps with the logits/,
        ],
        [
          {},
          { gradLogits: { ...logits, shape: [9, 6] } },
          'ERR_SHAPE_MISMATCH',
          /^grad of logits: expected \[6, 9\]/,
        ],
        [
          {},
          { gradLogits: { ...logits, pointer: 4096n } },
          'ERR_INVALID_INPUT',
          /the gradient's pointer: expected memory of the device/,
        ],
        [
          {},
          { gradLogits: shifted(teacherLogits) },
          'ERR_INVALID_INPUT',
          /^gradLogits: expected other memory than teacherLogits/,
        ],
        [
          small,
          { gradLogits: small.teacherLogits as Float32Array },
          'ERR_INVALID_INPUT',
          /^gradLogits: expected other memory than teacherLogits/,
        ],
      ];
      if (gpus.length > 1)
        cases.push([
          {},
          { device: 'cuda:1' },
          'ERR_INVALID_INPUT',
          /^logits: expected a column on cuda:1.*got one on 'cuda:0'/,
        ]);
      const fn = LOGITS_LOSS_FN.create('trl/gkd');
      for (const [given, more, code, message] of cases)
        await rejects(() => fn.compute({ ...there, ...given }, { device: DEVICE, ...more }), code, message);
      assert.throws(() => fn.computeSync(there as never), {
        code: 'ERR_INVALID_INPUT',
        message: /^logits: expected memory of the host, because the CPU computes the call/,
      });
      assert.throws(() => fn.computeSync(there as never, { device: DEVICE } as never), {
        code: 'ERR_DEVICE_UNAVAILABLE',
        message: /^device: expected 'cpu', because only the asynchronous calls run on a device/,
      });
      const list = LOGITS_LOSS_FN.create('verl/distill_topk');
      await rejects(
        () => list.compute({ ...there, teacherTopkLogprobs: logits as never }, { device: DEVICE }),
        'ERR_INVALID_INPUT',
        /^teacherTopkLogprobs: expected an array in host memory, got memory of a device/,
      );
      await rejects(
        () => list.compute(there, { device: DEVICE, gradLogits: shifted(logits) }),
        'ERR_INVALID_INPUT',
        /^grad of logits: .*overlaps with the logits/,
      );
    });
  });

  it('may be more than are computed at once', async function () {
    if (isInterleaved) this.skip();
    // A block has one token. The one of the second block is masked.
    const [tokens, vocabulary] = [3, 2 ** 23 + 1];
    const size = tokens * vocabulary;
    const bits = () => Uint16Array.from({ length: size }, (_, i) => 0x3f80 + ((i * 37) % 101));
    const logits = { data: bits(), dtype: 'bfloat16' } as const;
    const given = { shape: [1, tokens] as const, actionMask: [1, 0, 1], targets: [5, 6, 7], logits };
    const fn = LOGITS_LOSS_FN.create('liger/cross_entropy', { label_smoothing: 0.1 });
    const own = copyOf(logits);
    const expected = await fn.compute({ ...given, logits: own }, { device: DEVICE, gradLogits: own });
    await withCopies(async (copies) => {
      const there = copies.make(logits, [1, tokens, vocabulary]);
      const found = await fn.compute({ ...given, logits: there }, { device: DEVICE, gradLogits: there });
      assert.deepEqual(found, { loss: expected.loss, metrics: expected.metrics });
      there.fetch();
      assertSameArray(logits.data, own.data, 'gradLogits');
    });
  });
});

type Options = Record<string, unknown>;
const CUT = /because rows of logits must be cut or padded there/;
const [TOKENS, VOCABULARY] = [6, 9];
const numbers = (width: number, step: number) =>
  Float32Array.from({ length: TOKENS * width }, (_, i) => Math.sin(step * i));
const narrow = numbers(7, 3);
const small = {
  shape: [2, 3],
  actionMask: [1, 1, 0, 1, 1, 1],
  targets: [0, 1, 2, 3, 4, 5],
  logits: numbers(VOCABULARY, 1),
  teacherLogits: numbers(VOCABULARY, 2),
  teacherTopkIds: Array.from({ length: 2 * TOKENS }, (_, i) => i % 9),
  teacherTopkLogprobs: numbers(2, 1).map((x) => x - 2),
} satisfies HostBatch & LogitsLossBatch;
