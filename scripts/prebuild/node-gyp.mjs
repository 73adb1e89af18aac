#!/usr/bin/env node
// Is called by prebuildify instead of node-gyp. Builds with cmake-js into build/ of the current folder, from the sources
// and with the toolchain that the environment names.
//
// prebuildify's arguments (rebuild --target=20.20.2 --devdir=… --arch=x64 --release) have other names in cmake-js. The
// folder of headers is ignored, since the headers of the Node-API come from a package.
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
// cmake-js reads in the sources' package.json that the module uses the Node-API.
execFileSync('cmake-js', cmakeJs, { cwd: sources, stdio: 'inherit' });
