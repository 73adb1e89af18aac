// `policy-loss build`: compiles the native module from the sources in the package. This is needed on systems without a
// prebuilt binary, and to use CUDA where the prebuilt binary lacks it. The native module may not exist yet, so this
// file must not import it when it is loaded.
import { spawn } from 'node:child_process';
import { rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Command } from 'commander';
import { LossError } from '../../../base/errors.js';
import { helpAfter } from '../help.js';
import { visible, writeResult } from '../streams.js';

const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));

/** Adds the command `build` to the command-line program. */
export function addBuild(program: Command): void {
  program
    .command('build')
    .summary('build the native module from source')
    .description(
      "Compiles the native module into the package's folder. From then on it is loaded instead of a prebuilt binary. " +
        'Needs CMake 3.20, make (or Ninja, with CMAKE_GENERATOR=Ninja) and a C++20 compiler (GCC 12 or Clang 16, or ' +
        'later), and nvcc 12.4 or later on the PATH for CUDA. Downloads nothing. Not for Windows.',
    )
    .option('--no-cuda', 'do not compile the CUDA kernels, even if nvcc is found')
    .addHelpText('after', helpAfter(['build', 'build --no-cuda']))
    .action(async ({ cuda }: { cuda: boolean }) => {
      await compile(cuda);
      const { devices } = await import('../../../index.js');
      const [cpu, ...gpus] = devices();
      const found = gpus.map((gpu) => (gpu.available ? gpu.name : gpu.reason.message));
      await writeResult(
        `${visible(`Built and loaded: ${cpu.isa} on ${cpu.cores} cores; ${found.join(', ')}.`)}\n`,
      );
    });
}

async function compile(cuda: boolean): Promise<void> {
  if (process.platform === 'win32')
    throw new LossError(
      'ERR_NATIVE_LOAD',
      'build: expected Linux or macOS; Windows has a prebuilt binary for x64',
    );
  const folder = join(ROOT, 'build');
  rmSync(folder, { recursive: true, force: true });
  await cmake([
    ...['-S', ROOT, '-B', folder, '-DCMAKE_BUILD_TYPE=Release'],
    `-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${join(folder, 'Release')}`,
    `-DPOLICY_LOSS_CUDA=${cuda ? 'ON' : 'OFF'}`,
    // The process that loads the module provides the functions of the Node-API.
    ...(process.platform === 'darwin' ? ['-DCMAKE_SHARED_LINKER_FLAGS=-undefined dynamic_lookup'] : []),
  ]);
  await cmake(['--build', folder, '--parallel', String(availableParallelism())]);
}

function cmake(words: readonly string[]): Promise<void> {
  // CMake asks the first `node` on the PATH where the headers are.
  const PATH = [dirname(process.execPath), process.env.PATH].filter(Boolean).join(delimiter);
  return new Promise((resolve, reject) => {
    const failed = (why: string, cause?: Error) =>
      reject(new LossError('ERR_NATIVE_LOAD', `the build failed: ${why}`, { cause }));
    spawn('cmake', words, { env: { ...process.env, PATH }, stdio: ['ignore', 'inherit', 'inherit'] })
      .on('error', (error) => failed(`cmake cannot be run: ${error.message}`, error))
      .on('exit', (code, signal) =>
        code === 0 ? resolve() : failed(`'cmake ${words.join(' ')}' ended with ${signal ?? code}`),
      );
  });
}
