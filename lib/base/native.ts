// Loads the native module. If the environment variable POLICY_LOSS_NATIVE is set, only the file that it names is tried,
// such as a build with an emulated GPU. Otherwise these files are tried in order: a build from source, the prebuilt
// binary for this platform, and a file that node-gyp-build finds elsewhere, such as next to the executable of a
// packaged program.
//
// Using node-gyp-build alone has three disadvantages. It takes the first .node file that it finds, even if an older
// version of the package built it. It recognises the C library musl by a file that only one Linux distribution has. And
// it reports its own error instead of the loader's.
import { closeSync, existsSync, openSync, readSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { NativeBinding, NativeDevices, NativeEngine } from '../../binding.js';
import { LossError } from './errors.js';
import { describePrebuilds, LEAST_GLIBC, type Libc, prebuildPath } from './prebuilds.js';

const require = createRequire(import.meta.url);
const ROOT = fileURLToPath(new URL('../..', import.meta.url));

function load(): NativeBinding {
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
  if (other) return yield other;
  const built = `${ROOT}build/Release/policy_loss.node`;
  if (existsSync(built)) yield built;
  const prebuilt = ROOT + prebuildPath(process.platform, process.arch, libc());
  yield prebuilt;
  const elsewhere = elsewhereFound();
  if (elsewhere !== undefined && elsewhere !== built && elsewhere !== prebuilt) yield elsewhere;
}

function elsewhereFound(): string | undefined {
  try {
    return (require('node-gyp-build') as { path(directory: string): string }).path(ROOT);
  } catch {
    return undefined; // node-gyp-build throws if it has nothing for this platform
  }
}

function attempt(path: string): NativeBinding | Error {
  if (!existsSync(path)) return new Error(`${path}: the file does not exist`);
  try {
    const native = require(path) as NativeBinding;
    const { version } = require('../../package.json') as { version: string };
    if (native.version === version) return native;
    return new Error(`${path}: expected version ${version}, got ${native.version ?? 'an earlier one'}`);
  } catch (error) {
    // On some systems the loader's message already begins with the path. Remove it there, so that the new message does
    // not repeat it.
    const message = (error as Error).message.replace(`${path}: `, '');
    return new Error(`${path}: ${message}`, { cause: error });
  }
}

function notLoaded(failures: readonly Error[]): LossError {
  const system = [`${process.platform}-${process.arch}`, describeLibc(), `Node ${process.versions.node}`];
  return new LossError(
    'ERR_NATIVE_LOAD',
    [
      `policy-loss found no native module for this system (${system.filter(Boolean).join(', ')}). Tried:`,
      ...failures.map(({ message }) => `  ${message}`),
      `Prebuilt binaries exist for ${describePrebuilds()}.`,
      'To build it from source (with CMake and a C++ compiler): npx policy-loss build',
    ].join('\n'),
    { cause: new AggregateError(failures, 'every candidate failed') },
  );
}

// Returns the C library that this process uses on Linux. It is recognised by the path of the dynamic loader, which is
// written in the executable.
function libc(): Libc | undefined {
  if (process.platform !== 'linux') return undefined;
  const head = Buffer.alloc(4096);
  const file = openSync(process.execPath, 'r');
  try {
    readSync(file, head, 0, head.length, 0);
  } finally {
    closeSync(file);
  }
  return head.includes('/ld-musl-') ? 'musl' : 'glibc';
}

// Returns the name of the C library and its version, for the error message. Creating a diagnostic report is slow, but
// the report contains the exact version.
function describeLibc(): string | undefined {
  const found = libc();
  if (found !== 'glibc') return found;
  const { header } = process.report.getReport() as { header: { glibcVersionRuntime?: string } };
  return `glibc ${header.glibcVersionRuntime ?? 'of unknown version'}, and the prebuilt binary needs ${LEAST_GLIBC}`;
}

const binding = load();
/** The engine that computes. */
export const native: NativeEngine = binding;
/** The CUDA devices of the native module. */
export const cuda: NativeDevices = binding;
