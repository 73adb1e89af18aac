// Loads the native module. If the environment variable POLICY_LOSS_NATIVE is set, only the file that it names is tried,
// such as a build with an emulated GPU. Otherwise these files are tried in order: a build from source, the prebuilt
// binary for this platform, and a file that node-gyp-build finds elsewhere. It also looks in the folder of the executable,
// which may be a packaged program.
//
// Using node-gyp-build alone has three disadvantages. It takes the first .node file that it finds, even if an older
// version of the package built it. It recognises the C library musl by a file that only one Linux distribution has. And
// it reports its own error instead of the loader's.
import { closeSync, existsSync, openSync, readSync, statSync } from 'node:fs';
import nodeModule from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { NativeBinding, NativeDevices, NativeEngine } from '../../binding.js';
import { LossError } from './errors.js';
import { describePrebuilds, LEAST_GLIBC, type Libc, prebuildPath } from './prebuilds.js';
import { VERSION } from './version.js';

// The folder of this file or, in a bundle, of the bundle. Some bundlers leave import.meta.url empty, or set it to the place
// of this file on the machine that built the bundle. CommonJS has __dirname, and otherwise the program's folder must do.
const HERE =
  import.meta.url && existsSync(new URL(import.meta.url))
    ? dirname(fileURLToPath(import.meta.url))
    : typeof __dirname === 'string'
      ? __dirname
      : dirname(process.argv[1] ?? process.execPath);
// The folder that has prebuilds/: the package's or, in a bundle, the bundle's.
const ROOT = /[\\/](dist|lib)[\\/]base$/.test(HERE) ? join(HERE, '..', '..') : HERE;
// Webpack would replace the calls of a createRequire that is imported by its name.
const require = nodeModule.createRequire(join(HERE, 'native.js'));

// Earlier versions of Bun end with a segmentation fault in the first call.
const LEAST_BUN = '1.1.30';

function load(): NativeBinding {
  const { bun } = process.versions;
  if (bun && bun.localeCompare(LEAST_BUN, 'en', { numeric: true }) < 0)
    throw new LossError('ERR_NATIVE_LOAD', `Bun: expected version ${LEAST_BUN} or later, got ${bun}`);
  const failures: Error[] = [];
  for (const path of candidates()) {
    const loaded = attempt(path);
    if (!(loaded instanceof Error)) return loaded;
    failures.push(loaded);
  }
  throw notLoaded(failures);
}

function* candidates(): Generator<string> {
  const other = process.env.POLICY_LOSS_NATIVE;
  if (other) return yield resolve(other);
  const built = join(ROOT, 'build', 'Release', 'policy_loss.node');
  if (existsSync(built)) yield built;
  const prebuilt = prebuildPath(process.platform, process.arch, libc());
  yield join(ROOT, prebuilt);
  const elsewhere = elsewhereFound(prebuilt);
  if (elsewhere !== built && elsewhere !== join(ROOT, prebuilt)) yield elsewhere;
}

function elsewhereFound(prebuilt: string): string {
  try {
    return (require('node-gyp-build') as { path(directory: string): string }).path(ROOT);
  } catch {
    // node-gyp-build has nothing for this platform, or this is a bundle, which does not contain it.
    return join(dirname(process.execPath), prebuilt);
  }
}

function attempt(path: string): NativeBinding | Error {
  try {
    statSync(path);
    const native = require(path) as NativeBinding;
    if (native.version !== VERSION)
      return new Error(`${path}: expected version ${VERSION}, got ${native.version ?? 'an earlier one'}`);
    const fault = memoryFault(native);
    return fault ? new Error(`${path}: ${fault}`) : native;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    // On some systems the loader's message already begins with the path. Remove it there, so that the new message does
    // not repeat it.
    const why = code === 'ENOENT' ? 'the file does not exist' : message.replace(`${path}: `, '');
    return new Error(`${path}: ${why}`, { cause: error });
  }
}

// Returns what is wrong if native code does not read and write the memory of this runtime's typed arrays. A runtime that
// gives native code a copy of them, as a version of Bun did, would turn every result into 0.
function memoryFault(native: NativeEngine): string | undefined {
  const out = new Float32Array(1);
  native.softGate(1, 1, Float32Array.of(1), Float32Array.of(1), out);
  return out[0] === 2 ? undefined : `native code cannot write typed arrays: expected 2, got ${out[0]}`;
}

function notLoaded(failures: readonly Error[]): LossError {
  const system = [`${process.platform}-${process.arch}`, describeLibc(), describeRuntime()];
  return new LossError(
    'ERR_NATIVE_LOAD',
    [
      `policy-loss found no native module for this system (${system.filter(Boolean).join(', ')}). Tried:`,
      ...failures.map(({ message }) => `  ${message}`),
      `Prebuilt binaries exist for ${describePrebuilds()}.`,
      'To build it from source (with CMake and a C++ compiler): npx policy-loss build',
      'Bundled? Mark policy-loss as external, or copy its folder prebuilds beside the bundle or executable (docs/bundlers.md).',
    ].join('\n'),
    { cause: new AggregateError(failures, 'every candidate failed') },
  );
}

// Returns the C library that this process uses on Linux. It is recognised by the path of the dynamic loader, which is
// written in the executable. /proc/self/exe is the executable also if its file was replaced or removed.
function libc(): Libc | undefined {
  if (process.platform !== 'linux') return undefined;
  const head = Buffer.alloc(4096);
  try {
    const file = openSync('/proc/self/exe', 'r');
    try {
      readSync(file, head, 0, head.length, 0);
    } finally {
      closeSync(file);
    }
  } catch {
    return glibcVersion() ? 'glibc' : 'musl'; // the runtime's permissions do not include this file
  }
  return head.includes('/ld-musl-') ? 'musl' : 'glibc';
}

// Returns the version of glibc, or undefined if the process does not use glibc. Creating a diagnostic report is slow.
function glibcVersion(): string | undefined {
  const { header } = process.report.getReport() as { header: { glibcVersionRuntime?: string } };
  return header.glibcVersionRuntime;
}

// Returns the name of the C library and its version, for the error message.
function describeLibc(): string | undefined {
  const found = libc();
  if (found !== 'glibc') return found;
  return `glibc ${glibcVersion() ?? 'of unknown version'}, and the prebuilt binary needs ${LEAST_GLIBC}`;
}

function describeRuntime(): string {
  const { bun, deno, node } = process.versions;
  return bun ? `Bun ${bun}` : deno ? `Deno ${deno}` : `Node ${node}`;
}

const binding = load();
/** The engine that computes. */
export const native: NativeEngine = binding;
/** The CUDA devices of the native module. */
export const cuda: NativeDevices = binding;
