// Finds the native module and loads it, once. In this order: what POLICY_LOSS_NATIVE names, such as the build with an
// emulated GPU that tests use, and nothing else then; what was built from source here; the prebuilt binary of this
// platform; where else node-gyp-build looks, such as beside the executable of a packaged program.
//
// node-gyp-build alone is not enough: it takes whichever .node file comes first, a build of an older version before
// the prebuilt binary of this one, knows musl by one distribution's file, and reports its own failure in place of
// the loader's.
import { closeSync, existsSync, openSync, readSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { NativeBinding } from '../../binding.js';
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
    return undefined; // which it says of a platform that it has nothing for
  }
}

function attempt(path: string): NativeBinding | Error {
  if (!existsSync(path)) return new Error(`${path}: there is no such file`);
  try {
    const native = require(path) as NativeBinding;
    const { version } = require('../../package.json') as { version: string };
    if (native.version === version) return native;
    return new Error(
      `${path}: it is of ${native.version === undefined ? 'an earlier version' : `version ${native.version}`}, and this is ${version}`,
    );
  } catch (error) {
    // What the system's loader says begins with the path on some systems only.
    const message = (error as Error).message.replace(`${path}: `, '');
    return new Error(`${path}: ${message}`, { cause: error });
  }
}

function notLoaded(failures: readonly Error[]): LossError {
  const system = [`${process.platform}-${process.arch}`, describeLibc(), `Node ${process.versions.node}`];
  return new LossError(
    'ERR_NATIVE_LOAD',
    [
      `policy-loss found no native module that loads here (${system.filter(Boolean).join(', ')}). Tried:`,
      ...failures.map(({ message }) => `  ${message}`),
      `Prebuilt binaries are for ${describePrebuilds()}.`,
      'With CMake and a C++ compiler, this builds it from source: npx policy-loss build',
    ].join('\n'),
    { cause: new AggregateError(failures, 'what was tried') },
  );
}

/** Of Linux: the C library that this process runs on, which its executable names as its loader. */
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

// A report is slow to make, and exact.
function describeLibc(): string | undefined {
  const found = libc();
  if (found !== 'glibc') return found;
  const { header } = process.report.getReport() as { header: { glibcVersionRuntime?: string } };
  return `glibc ${header.glibcVersionRuntime ?? 'of no known version'} where the prebuilt binary needs ${LEAST_GLIBC}`;
}

/** The native module. */
export const native: NativeBinding = load();
