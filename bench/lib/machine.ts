// Describes the machine and the native module that a run measures. The description has what influences the times, but
// nothing that identifies the machine.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus, totalmem } from 'node:os';
import { basename } from 'node:path';
import { native } from '../../lib/core/native.js';
import { devices } from '../../lib/index.js';

/** The machine and the native module that a run measured. */
export interface Machine {
  cpu: string;
  cores: number;
  threads: number;
  /** The instruction set that the package uses on this CPU, such as avx2. */
  isa: string;
  platform: string;
  memoryGiB: number;
  node: string;
  binary: { file: string; from: 'a prebuilt binary' | 'a build from source'; compiler: string };
}

export function describeMachine(): Machine {
  const [{ cores, threads, isa }] = devices();
  return {
    cpu: cpus()[0]?.model.trim() || 'unknown CPU',
    cores,
    threads,
    isa,
    platform: `${process.platform} ${process.arch}`,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.versions.node,
    binary: describeBinary(),
  };
}

/** Turns a description into part of a file name: lower-case words with hyphens between them. */
export function slug(words: string): string {
  const plain = words.toLowerCase().replaceAll(/\((r|tm)\)/g, '');
  return plain.replaceAll(/[^a-z0-9]+/g, '-').replaceAll(/^-|-$/g, '');
}

/** Finds the path of the loaded native module in Node's module cache. */
export function nativePath(): string {
  const { cache } = createRequire(import.meta.url);
  return Object.keys(cache).find((path) => cache[path]?.exports === native)!;
}

function describeBinary(): Machine['binary'] {
  const path = nativePath();
  return {
    file: basename(path),
    from: /[/\\]prebuilds[/\\]/.test(path) ? 'a prebuilt binary' : 'a build from source',
    compiler: compilerOf(readFileSync(path)),
  };
}

// Returns the compiler that built the module. Compilers write their names into the binary. A GCC name may come from a
// linked library, so this function looks for Clang's name first. The first GCC name belongs to the module's own code.
function compilerOf(binary: Buffer): string {
  const text = binary.toString('latin1');
  const clang = /clang version ([\d.]+)/.exec(text);
  if (clang) return `Clang ${clang[1]}`;
  const gcc = /GCC: \([^)]*\) ([\d.]+)/.exec(text);
  return gcc ? `GCC ${gcc[1]}` : 'an unknown compiler';
}
