// Describes the machine and the native module that a run measures. The description has what influences the times, but
// nothing that identifies the machine.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { native } from '../../lib/base/native.js';
import { devices } from '../../lib/index.js';

/** The machine and the native module that a run measured. */
export interface Machine {
  cpu: string;
  cores: number;
  threads: number;
  /** The instruction set that the package uses on this CPU, such as avx2. */
  isa: string;
  node: string;
  /** Where the native module comes from and what compiled it. */
  binary: string;
}

export function describeMachine(): Machine {
  const [{ cores, threads, isa }] = devices();
  const cpu = cpus()[0]?.model.trim() || 'unknown CPU';
  return { cpu, cores, threads, isa, node: process.versions.node, binary: describeBinary() };
}

/** Turns a description into part of a file name: lower-case words with hyphens between them. */
export function slug(words: string): string {
  const plain = words.toLowerCase().replaceAll(/\((r|tm)\)/g, '');
  return plain.replaceAll(/[^a-z0-9]+/g, '-').replaceAll(/^-|-$/g, '');
}

function describeBinary(): string {
  // The module that was loaded is in Node's module cache.
  const { cache } = createRequire(import.meta.url);
  const path = Object.keys(cache).find((file) => cache[file]?.exports === native)!;
  const from = /[/\\]prebuilds[/\\]/.test(path) ? 'a prebuilt binary' : 'a build from source';
  return `${from} by ${compilerOf(readFileSync(path))}`;
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
