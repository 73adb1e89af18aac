/** Fuzzes the public functions that need a CUDA device, real or emulated; see test/fuzz-boundary. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { caseOf, run } from '../fuzz-boundary/cases.js';
import { needsDevice, targets } from '../fuzz-boundary/targets.js';

describe('the boundary on a device', () => {
  const onDevice = targets.filter(needsDevice);

  it('covers the methods of batches and gradients', () => {
    for (const method of ['upload', 'DeviceBatch#update', 'DeviceBatch#dispose', 'DeviceGradient#toHost'])
      assert.ok(onDevice.some(({ name }) => name === method));
  });

  it('accepts the valid arguments of every target', async () => {
    for (const target of onDevice) await target.call(target.valid());
  });

  it('holds in random cases', async () => {
    await fc.assert(fc.asyncProperty(caseOf(onDevice), run), { seed: 2025, numRuns: 1500 });
  });
});
