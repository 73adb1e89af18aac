// What the tests of the installed package share: the package as npm packs it, and a program that uses it.
import assert from 'node:assert/strict';
import { execFileSync, type SpawnSyncReturns } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { prebuildPath } from '../../lib/base/prebuilds.js';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));

export function pack(into: string): string {
  const file = execFileSync('npm', ['pack', '--silent', '--ignore-scripts', '--pack-destination', into], {
    cwd: ROOT,
    encoding: 'utf8',
  });
  return join(into, file.trim().split('\n').at(-1)!);
}

/** Packs the package and installs it, together with other packages from the registry, into an empty folder. */
export function installInto(folder: string, ...others: string[]): void {
  write(folder, 'package.json', JSON.stringify({ name: 'user', private: true }));
  const words = ['install', '--silent', '--no-audit', '--no-fund', pack(folder), ...others];
  execFileSync('npm', words, { cwd: folder, stdio: ['ignore', 'ignore', 'inherit'] });
}

export function prebuildOfThisMachine(): string {
  const musl = existsSync('/etc/alpine-release');
  return prebuildPath(
    process.platform,
    process.arch,
    process.platform === 'linux' ? (musl ? 'musl' : 'glibc') : undefined,
  );
}

export function write(folder: string, name: string, text: string): void {
  writeFileSync(join(folder, name), text);
}

export function succeeds({ status, stdout, stderr, error }: SpawnSyncReturns<string>): string {
  assert.equal(status, 0, `${error ?? ''}${stdout}${stderr}`);
  return stdout.trim();
}

// The three tokens have ratios r of 1.5, 0.5 and 1 and advantages A of 1, −1 and 0.75. So their losses max(−A·r,
// −A·clip(r)) are −1.2, 0.8 and −0.75. The first two tokens are clipped and have gradient 0. The third has gradient
// −A·r / 3.
export const PROGRAM = `
const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
const batch = {
  shape: [1, 3],
  logprob: new Float32Array([Math.log(1.5), Math.log(0.5), 0]),
  oldLogprob: new Float32Array(3),
  advantages: new Float32Array([1, -1, 0.75]),
  actionMask: new Uint8Array([1, 1, 1]),
};
fn.compute(batch, { grad: true }).then(({ loss, grad }) => {
  console.log(loss.toFixed(6), [...grad].join());
});
`;
export const EXPECTED = '-0.383333 0,0,-0.25';
