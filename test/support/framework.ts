/** An addon that plays a framework in the same process. */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { DLPackCapsule } from '../../lib/index.js';

/** The members of the tensor in a capsule (native/addon/dlpack.h). */
export interface TensorSpec {
  pointer: bigint;
  shape: readonly number[];
  strides?: readonly number[] | undefined;
  /** DLPack's code of the type of the values: 2 float, 4 bfloat. */
  code: number;
  bits: number;
  lanes: number;
  /** DLPack's type of the device: 1 CPU, 2 CUDA. */
  type: number;
  device: number;
  offset: number;
  /** Whether the external has the type tag of capsules. */
  tag: boolean;
}

/** The members of a tensor of float32 on the first CUDA device, without its memory and shape. */
export const FLOAT32_TENSOR = {
  code: 2,
  bits: 32,
  lanes: 1,
  type: 2,
  device: 0,
  offset: 0,
  tag: true,
} as const satisfies Partial<TensorSpec>;

/** The addon's functions, which test/native/framework.cc describes. */
export interface Framework {
  makeTensor(spec: TensorSpec): DLPackCapsule;
  takeTensor(capsule: DLPackCapsule): TensorSpec & { release(): void };
  /** Returns how many of its tensors were deleted. */
  deleted(): number;
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
