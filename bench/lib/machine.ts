// What was measured on, and which native module: of this machine what matters for its numbers, and nothing that names it.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus, totalmem } from 'node:os';
import { basename } from 'node:path';
import { devices } from '../../lib/index.js';

/** Where the numbers come from. */
export interface Machine {
  cpu: string;
  cores: number;
  threads: number;
  /** The instruction set that the package chose. */
  isa: string;
  platform: string;
  memoryGiB: number;
  node: string;
  binary: { file: string; from: 'a prebuilt binary' | 'a build from source'; compiler: string };
}

export function describeMachine(): Machine {
  const [{ cores, threads, isa }] = devices();
  return {
    cpu: cpus()[0]?.model.trim() || 'CPU of no known model',
    cores,
    threads,
    isa,
    platform: `${process.platform} ${process.arch}`,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.versions.node,
    binary: describeBinary(),
  };
}

/** In a file's name. */
export function slug({ cpu, isa }: Machine): string {
  const words = `${cpu} ${isa}`.toLowerCase().replaceAll(/\((r|tm)\)/g, '');
  return words.replaceAll(/[^a-z0-9]+/g, '-').replaceAll(/^-|-$/g, '');
}

/** The path of the module that is loaded, as Node keeps it. */
export function nativePath(): string {
  const { cache } = createRequire(import.meta.url);
  const path = Object.keys(cache).find((name) => /policy[-_]loss[^/\\]*\.node$/.test(name));
  if (path === undefined) throw new Error('no native module of policy-loss is loaded');
  return path;
}

function describeBinary(): Machine['binary'] {
  const path = nativePath();
  return {
    file: basename(path),
    from: /[/\\]prebuilds[/\\]/.test(path) ? 'a prebuilt binary' : 'a build from source',
    compiler: compilerOf(readFileSync(path)),
  };
}

// Compilers leave their names in what they compile. Libraries that are linked in may have another one's, but no Clang's
// are; and what was compiled here comes first.
function compilerOf(binary: Buffer): string {
  const text = binary.toString('latin1');
  const clang = /clang version ([\d.]+)/.exec(text);
  if (clang) return `Clang ${clang[1]}`;
  const gcc = /GCC: \([^)]*\) ([\d.]+)/.exec(text);
  return gcc ? `GCC ${gcc[1]}` : 'a compiler that left no name';
}
