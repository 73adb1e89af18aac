/** An addon that plays a framework in the same process. */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The addon's functions, which test/native/framework.cc describes. */
export interface Framework {
  allocate(device: number, bytes: number): bigint;
  free(pointer: bigint): void;
  exportMemory(pointer: bigint): Uint8Array;
  makeStream(device: number): bigint;
  destroyStream(stream: bigint): void;
  copy(stream: bigint, to: bigint, from: bigint, bytes: number): void;
  clear(stream: bigint, to: bigint, bytes: number): void;
  read(stream: bigint, from: bigint, out: Float32Array): void;
  readLater(stream: bigint, from: bigint, out: Float32Array): void;
  write(stream: bigint, to: bigint, values: Float32Array): void;
}

/** Returns the addon that belongs to the devices, emulated or real, or undefined if it was not built. */
export function framework(): Framework | undefined {
  const { POLICY_LOSS_NATIVE } = process.env;
  const path = POLICY_LOSS_NATIVE
    ? join(dirname(POLICY_LOSS_NATIVE), 'framework.node')
    : fileURLToPath(new URL('../../build/framework/framework.node', import.meta.url));
  return existsSync(path) ? (createRequire(import.meta.url)(path) as Framework) : undefined;
}
