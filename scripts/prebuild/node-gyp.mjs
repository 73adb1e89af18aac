#!/usr/bin/env node
// What prebuildify calls in the place of node-gyp: builds with cmake-js, for the toolchain and from the sources that
// the environment names, into build/ of the folder where it is called.
//
// Of prebuildify's arguments (rebuild --target=20.20.2 --devdir=… --arch=x64 --release) cmake-js knows none by these
// names; of the headers' folder it has no need, as the Node-API's come from a package.
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
  console.error('node-gyp.mjs: to be called by prebuildify, as scripts/prebuild/prebuild.ts has it called');
  process.exit(2);
}
const cmakeJs = [
  ...['rebuild', '--out', resolve('build')],
  ...['--runtime', 'node', '--runtime-version', values.target, '--arch', values.arch],
  ...(process.env.POLICY_LOSS_CMAKE_OPTIONS ?? '').split(' ').filter(Boolean),
  `--CDCMAKE_TOOLCHAIN_FILE=${toolchain}`,
];
// Called where package.json says that the addon is one of the Node-API.
execFileSync('cmake-js', cmakeJs, { cwd: sources, stdio: 'inherit' });
