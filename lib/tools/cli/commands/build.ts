// `policy-loss build`: compiles the native module from the sources in the package. This is needed on systems without a
// prebuilt binary, and to use CUDA where the prebuilt binary lacks it. The native module may not exist yet, so this
// file must not import it when it is loaded.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Command } from 'commander';
import { LossError } from '../../../base/errors.js';
import { makeScratchFolder, removeTemporaryFolder } from '../../rollouts/write/temporary.js';
import { helpAfter } from '../help.js';
import { visible, writeResult } from '../streams.js';

const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));
const require = createRequire(import.meta.url);

// Build tools that npm downloads for the build, because they are not installed with the package. The package lists
// their versions in its devDependencies.
const TOOLS = ['cmake-js', 'node-addon-api'] as const;

/** Adds the command `build` to the command-line program. */
export function addBuild(program: Command): void {
  program
    .command('build')
    .summary('build the native module from source')
    .description(
      "Compiles the native module into the package's folder. From then on it is loaded instead of a prebuilt binary. " +
        'Needs CMake 3.20 and a C++20 compiler (GCC 12 or Clang 16, or later), and nvcc 12.4 or later on the PATH ' +
        'for CUDA. npm downloads cmake-js and the headers.',
    )
    .option('--no-cuda', 'do not compile the CUDA kernels, even if nvcc is found')
    .addHelpText('after', helpAfter(['build', 'build --no-cuda']))
    .action(async ({ cuda }: { cuda: boolean }) => {
      await withTools((modules) =>
        run(
          process.execPath,
          [
            join(modules, 'cmake-js', 'bin', 'cmake-js'),
            ...['rebuild', '--runtime', 'node', `--CDPOLICY_LOSS_CUDA=${cuda ? 'ON' : 'OFF'}`],
          ],
          { NODE_PATH: [modules, process.env.NODE_PATH].filter(Boolean).join(delimiter) },
        ),
      );
      const { devices } = await import('../../../index.js');
      const [cpu, ...gpus] = devices();
      const found = gpus.map((gpu) => (gpu.available ? gpu.name : gpu.reason.message));
      await writeResult(
        `${visible(`Built and loaded: ${cpu.isa} on ${cpu.cores} cores; ${found.join(', ')}.`)}\n`,
      );
    });
}

/**
 * Calls `body` with the path of a node_modules folder that contains the build tools. This is the package's own
 * node_modules folder if it has them, or a temporary folder in which npm installs them.
 */
async function withTools(body: (modules: string) => Promise<void>): Promise<void> {
  const own = join(ROOT, 'node_modules');
  if (TOOLS.every((tool) => existsSync(join(own, tool)))) return body(own);
  const folder = makeScratchFolder('build');
  try {
    const { devDependencies } = require('../../../../package.json') as {
      devDependencies: Record<string, string>;
    };
    const wanted = TOOLS.map((tool) => `${tool}@${devDependencies[tool]}`);
    const [npm, ...words] = process.env.npm_execpath
      ? [process.execPath, process.env.npm_execpath]
      : [process.platform === 'win32' ? 'npm.cmd' : 'npm'];
    await run(npm!, [...words, 'install', '--prefix', folder, '--no-audit', '--no-fund', ...wanted]);
    await body(join(folder, 'node_modules'));
  } finally {
    await removeTemporaryFolder(folder);
  }
}

function run(command: string, words: readonly string[], env: NodeJS.ProcessEnv = {}): Promise<void> {
  return new Promise((resolve, reject) => {
    const failed = (why: string, cause?: Error) =>
      reject(new LossError('ERR_NATIVE_LOAD', `the build failed: ${why}`, { cause }));
    // On Windows, npm is a .cmd script, which only a shell can run.
    const shell = command.endsWith('.cmd');
    spawn(command, words, {
      cwd: ROOT,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'inherit', 'inherit'],
      shell,
    })
      .on('error', (error) => failed(`${command} cannot be run: ${error.message}`, error))
      .on('exit', (code, signal) =>
        code === 0 ? resolve() : failed(`'${[command, ...words].join(' ')}' ended with ${signal ?? code}`),
      );
  });
}
