/**
 * Tests the reasons why a CUDA device may be unavailable. The emulation can imitate other drivers, older devices and a
 * machine without a device. A real machine cannot, so these tests are skipped there.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import type { CudaDevice, CudaObstacle, Device } from '../../lib/index.js';
import { isEmulated } from '../support/on-device.js';

interface Seen {
  devices: Device[];
  error?: { code: string; message: string; cause: CudaObstacle };
}

const PROGRAM = `
  import { devices, PPOPolicyLossFn } from ${JSON.stringify(new URL('../../lib/index.js', import.meta.url).href)};
  const batch = { shape: [1, 1], logprob: [0], oldLogprob: [0], advantages: [1], actionMask: [1] };
  let error;
  try {
    await new PPOPolicyLossFn({ clipRange: 0.2 }).compute(batch, { device: 'cuda' });
  } catch ({ code, message, cause }) {
    error = { code, message, cause };
  }
  console.log(JSON.stringify({ devices: devices(), error }));
`;

function seen(env: Record<string, string>): Seen {
  const { stdout, stderr, status } = spawnSync(
    process.execPath,
    [
      ...(import.meta.url.endsWith('.ts') ? ['--import', 'tsx'] : []),
      '--input-type=module',
      '--eval',
      PROGRAM,
    ],
    { encoding: 'utf8', env: { ...process.env, ...env } },
  );
  assert.equal(status, 0, stderr);
  return JSON.parse(stdout) as Seen;
}

/** Returns the reason why there is no CUDA device. Asserts that a call that asks for one fails for the same reason. */
function obstacle(env: Record<string, string>): CudaObstacle {
  const { devices, error } = seen(env);
  const other = devices.filter((device) => device.name !== 'cpu');
  assert.equal(other.length, 1);
  const [device] = other;
  assert.ok(device && !device.available);
  assert.equal(error?.code, 'ERR_DEVICE_UNAVAILABLE');
  assert.deepEqual(error.cause, device.reason);
  assert.ok(error.message.includes(device.reason.message), error.message);
  return device.reason;
}

describe('the reason for a missing CUDA device', () => {
  before(function () {
    if (!isEmulated) this.skip();
  });

  it('is a missing driver', () => {
    assert.deepEqual(obstacle({ POLICY_LOSS_EMULATION_DRIVER: '0' }), {
      code: 'no-driver',
      message: 'this machine has no CUDA driver',
      requiredVersion: '13.0',
      requiredDriver: '580',
    });
  });

  it('is an old driver, with the required version', () => {
    const { code, message, driverVersion, requiredVersion, requiredDriver } = obstacle({
      POLICY_LOSS_EMULATION_DRIVER: '12040',
    });
    assert.deepEqual(
      [code, driverVersion, requiredVersion, requiredDriver],
      ['old-driver', '12.4', '13.0', '580'],
    );
    assert.match(message, /12\.4.*13\.0.*driver 580/);
  });

  it('is a driver without a device', () => {
    const { code, driverVersion } = obstacle({ POLICY_LOSS_EMULATION_DEVICES: '0' });
    assert.deepEqual([code, driverVersion], ['no-device', '13.0']);
  });

  it('is a device with a low compute capability', () => {
    const env = { POLICY_LOSS_EMULATION_CAPABILITY: '75', POLICY_LOSS_EMULATION_DEVICES: '1' };
    const { code, computeCapability, requiredCapability, message } = obstacle(env);
    assert.deepEqual([code, computeCapability, requiredCapability], ['old-device', '7.5', '8.0']);
    assert.match(message, /emulated has compute capability 7\.5.*8\.0/);
  });

  it('does not exist if the driver is newer than the build', () => {
    const { devices, error } = seen({ POLICY_LOSS_EMULATION_DRIVER: '13020' });
    assert.equal(error, undefined);
    const gpus = devices.slice(1) as CudaDevice[];
    assert.ok(gpus.every(({ available, requiredDriver }) => available && requiredDriver === '580'));
  });
});
