#!/usr/bin/env node
// prebuildify calls this program instead of node-gyp. It builds with cmake-js into build/ of the current folder. The
// environment names the sources and the toolchain.
//
// prebuildify's arguments (rebuild --target=20.20.2 --devdir=… --arch=x64 --release) have other names in cmake-js. The
// headers' folder (--devdir) is ignored, since the headers of the Node-API come from a package.
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
// The folder must be the sources' one: cmake-js reads in its package.json that the module uses the Node-API.
execFileSync('cmake-js', cmakeJs, { cwd: sources, stdio: 'inherit' });
