/**
 * Tests the option `stream` of every registered function that a device computes. The emulated device does the work of a
 * stream as late as it may. So a call that does not wait for the stream reads columns of NaN, and leaves an array unwritten.
 */
import assert from 'node:assert/strict';
import {
  allocPinned,
  type Batch,
  type DeviceBatch,
  type DeviceCallOptions,
  freePinned,
  KL_FN,
  POLICY_LOSS_FN,
  upload,
} from '../../lib/index.js';
import { everyName } from '../matrix/functions.js';
import { layOut, makeRewarded, type RewardSpec } from '../support/draw.js';
import { fitting } from '../support/draw-arguments.js';
import { framework } from '../support/framework.js';
import { DEVICE, gpus, isEmulated, rejects } from '../support/on-device.js';

interface Call {
  title: string;
  /** Whether the function reads rewards under keys that only batches in host memory have. */
  hostOnly?: boolean;
  run(batch: Batch | DeviceBatch, options?: DeviceCallOptions): Promise<unknown>;
}

const SPEC: RewardSpec = {
  seed: 4,
  rows: 6,
  columns: 24,
  values: 'moderate',
  mask: 'random',
  packed: false,
  groups: 'some',
  rewards: 'normal',
  perToken: true,
};

const [FUNCTIONS, ON_CPU] = [false, true].map((onCpu) =>
  everyName()
    .filter((on) => (on.onCpu === true) === onCpu)
    .map(
      (on): Call => ({
        title: `${on.family} ${on.name}`,
        hostOnly: on.hostOnly === true,
        run: (batch, options) => on.async(batch, options),
      }),
    ),
) as [Call[], Call[]];
const PENALTIES: Call[] = KL_FN.names()
  .filter((name) => name !== 'none') // It computes nothing.
  .map((name) => ({
    title: `penalty of ${name}`,
    hostOnly: true,
    run: (batch, options) => KL_FN.create(name).applyKlPenaltyToReward(batch as Batch, options),
  }));
const CALLS = [...FUNCTIONS, ...PENALTIES];

describe(`a caller's stream on ${DEVICE}, for every function`, () => {
  const other = framework()!;
  const host = layOut(makeRewarded(fitting('dpo', {}, SPEC) as RewardSpec));
  host.klEstimate = new Float64Array(SPEC.rows).fill(0.1);
  host.tokenLevelScores = host.tokenLevelRewards!;
  const columns = Object.entries(host).filter(([, values]) => values instanceof Float32Array) as [
    string,
    Float32Array,
  ][];
  const pinned: Record<string, Float32Array> = {};
  const there: [pinned: Float32Array, source: bigint][] = [];
  let marker: Float32Array;
  let stream: bigint;
  let resident: DeviceBatch;

  before(async function () {
    if (!other) this.skip();
    stream = other.makeStream(0);
    for (const [name, values] of columns) {
      const source = other.allocate(0, values.byteLength);
      other.write(stream, source, values);
      const array = new Float32Array(await allocPinned(values.byteLength));
      pinned[name] = array;
      there.push([array, source]);
    }
    marker = new Float32Array(await allocPinned(4));
    resident = await upload(host, DEVICE);
  });

  after(() => {
    resident?.dispose();
    for (const [array, source] of there) {
      freePinned(array.buffer as ArrayBuffer);
      other.free(source);
    }
  });

  // Queues work on the stream that writes the columns, and at last the marker.
  function writeLater(): void {
    marker.fill(Number.NaN);
    for (const [array, source] of there) {
      array.fill(Number.NaN);
      other.readLater(stream, source, array);
    }
    other.readLater(stream, there[0]![1], marker);
  }
  const finish = () => other.read(stream, there[0]![1], new Float32Array(1));

  for (const { title, hostOnly, run } of CALLS)
    it(title, async () => {
      const onDevice = { device: DEVICE };
      const expected = await run(host, onDevice);
      for (const batch of [{ ...host, ...pinned }, resident]) {
        if (hostOnly && batch === resident) continue;
        const options = batch === resident ? {} : onDevice;
        writeLater();
        await run(batch === resident ? resident : host, options);
        // A GPU does the work of the stream at once.
        if (isEmulated)
          assert.ok(Number.isNaN(marker[0]), 'the call waited for a stream that it was not given');
        finish();
        writeLater();
        const found = await run(batch, { ...options, stream });
        assert.equal(marker[0], columns[0]![1][0]);
        assert.deepStrictEqual(found, expected);
      }
    });

  it('is refused by functions that the CPU computes', async () => {
    for (const { run } of ON_CPU)
      await rejects(
        () => run(host, { device: DEVICE, stream }),
        'ERR_INVALID_INPUT',
        /stream: expected no stream/,
      );
    const { klEstimate: _, ...without } = host;
    await rejects(
      () => POLICY_LOSS_FN.create('trl/kto').compute(without as Batch, { device: DEVICE, stream }),
      'ERR_INVALID_INPUT',
      /stream: expected no stream, because the CPU computes kl_estimate/,
    );
  });

  it('is refused if it is not a stream of the device', async () => {
    const cases: [stream: unknown, message: RegExp][] = [
      [7, /stream: expected a cudaStream_t as a bigint, got number 7/],
      [2n, /stream: expected a stream that every thread can name, got cudaStreamPerThread/],
    ];
    if (gpus.length > 1)
      cases.push([other.makeStream(1), /stream: expected a stream of cuda:0, got another/]);
    for (const { hostOnly, run } of CALLS) {
      for (const [given, message] of cases) {
        const options = { stream: given as bigint };
        await rejects(() => run(host, { ...options, device: DEVICE }), 'ERR_INVALID_INPUT', message);
        if (!hostOnly) await rejects(() => run(resident, options), 'ERR_INVALID_INPUT', message);
      }
      await rejects(
        () => run(host, { stream }),
        'ERR_INVALID_INPUT',
        /no stream, because the CPU computes the call/,
      );
    }
  });
});
