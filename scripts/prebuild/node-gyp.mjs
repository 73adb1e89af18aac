#!/usr/bin/env node
// prebuildify calls this program instead of node-gyp. The program builds the native module with cmake-js, into build/
// of the current folder. The environment variable POLICY_LOSS_SOURCES names the folder of the sources, and
// POLICY_LOSS_TOOLCHAIN names CMake's toolchain file.
//
// prebuildify passes the arguments of node-gyp: rebuild --target=20.20.2 --devdir=… --arch=x64 --release. This program
// translates them for cmake-js. It ignores --devdir, the folder of Node's headers, because the headers of the Node-API
// come from a package.
import { execFileSync } from 'node:child_process';
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    target: { type: 'string' },
    arch: { type: 'string' },
    devdir: { type: 'string' },
    release: { type: 'boolean' },
  },
});
const { POLICY_LOSS_SOURCES: sources, POLICY_LOSS_TOOLCHAIN: toolchain } = process.env;
if (positionals.join() !== 'rebuild' || !sources || !toolchain) {
  console.error('node-gyp.mjs: expected to be called by prebuildify, as in scripts/prebuild/prebuild.ts');
  process.exit(2);
}
const cmakeJs = [
  ...['rebuild', '--out', resolve('build')],
  ...['--runtime', 'node', '--runtime-version', values.target, '--arch', values.arch],
  ...(process.env.POLICY_LOSS_CMAKE_OPTIONS ?? '').split(' ').filter(Boolean),
  `--CDCMAKE_TOOLCHAIN_FILE=${toolchain}`,
];
// cmake-js must run in the folder of the sources. It reads in package.json there that the module uses the Node-API.
execFileSync('cmake-js', cmakeJs, { cwd: sources, stdio: 'inherit' });
