/**
 * Tests the package in bundles and single executables, which are run where the package is not installed. Needs the prebuilt
 * binary of this platform (npm run prebuild) and the network.
 */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { EXPECTED, installInto, PROGRAM, prebuildOfThisMachine, ROOT, succeeds, write } from './packed.js';

const ESBUILD = join(ROOT, 'node_modules/.bin/esbuild');
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2';
// What docs/bundlers.md tells users of esbuild to add to an ES module.
const BANNER = `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`;

interface Bundle {
  /** Writes the bundle of main.mjs or main.cjs into the folder `out`. The current folder is that of the program. */
  build(out: string, run: (command: string, ...words: string[]) => void, folder: string): void;
  /** What starts the bundle; it is in its own folder. */
  start: string[];
}

const webpack = (source: string, file: string, isModule: boolean): Bundle => ({
  build(out, run, folder) {
    const config = {
      ...{ mode: 'production', target: 'node', context: folder, entry: source },
      output: { path: out, filename: file, ...(isModule && { module: true, library: { type: 'module' } }) },
      experiments: { outputModule: isModule },
    };
    const program = `require('webpack')(${JSON.stringify(config)}, (error, stats) => {
      if (error || stats.hasErrors() || stats.hasWarnings()) throw error ?? new Error(stats.toString());
    })`;
    run(process.execPath, '-e', program);
  },
  start: [process.execPath, file],
});
const esbuild = (run: Parameters<Bundle['build']>[1], source: string, format: string, file: string) =>
  run(
    ...([ESBUILD, source, '--bundle', '--platform=node', `--format=${format}`] as const),
    ...['--log-level=warning', `--outfile=${file}`, ...(format === 'esm' ? [`--banner:js=${BANNER}`] : [])],
  );

const BUNDLES: Record<string, Bundle> = {
  'an ES module of esbuild': {
    build: (out, run) => esbuild(run, 'main.mjs', 'esm', join(out, 'main.mjs')),
    start: [process.execPath, 'main.mjs'],
  },
  'CommonJS of esbuild': {
    build: (out, run) => esbuild(run, 'main.mjs', 'cjs', join(out, 'main.cjs')),
    start: [process.execPath, 'main.cjs'],
  },
  'CommonJS of esbuild, from require()': {
    build: (out, run) => esbuild(run, 'main.cjs', 'cjs', join(out, 'main.cjs')),
    start: [process.execPath, 'main.cjs'],
  },
  'CommonJS of webpack': webpack('./main.mjs', 'main.cjs', false),
  'an ES module of webpack': webpack('./main.cjs', 'main.mjs', true),
  'an executable of Bun': {
    build: (out, run) =>
      run('node_modules/.bin/bun', 'build', '--compile', 'main.mjs', '--outfile', join(out, 'main')),
    start: ['./main'],
  },
  'an executable of Node': {
    build(out, run, folder) {
      esbuild(run, 'main.mjs', 'cjs', 'sea.cjs');
      write(folder, 'sea.json', JSON.stringify({ main: 'sea.cjs', output: 'sea.blob' }));
      run(process.execPath, '--no-warnings', '--experimental-sea-config', 'sea.json');
      copyFileSync(process.execPath, join(out, 'main'));
      run(
        'node_modules/.bin/postject',
        join(out, 'main'),
        'NODE_SEA_BLOB',
        'sea.blob',
        '--sentinel-fuse',
        FUSE,
      );
    },
    start: ['./main'],
  },
};

describe('a program that is bundled as', () => {
  const place = mkdtempSync(join(tmpdir(), 'policy-loss-bundlers-'));
  const app = join(place, 'app');
  const prebuilds = join(place, 'prebuilds');
  const folderOf = (name: string) => join(place, name.replace(/\W+/g, '-'));

  before('install the package and the bundlers, and build all bundles', function () {
    if (process.platform !== 'linux') return this.skip(); // executables must be signed again on macOS
    mkdirSync(app);
    installInto(app, 'webpack@5', 'bun@1', 'postject@1.0.0-alpha.6');
    write(app, 'main.mjs', `import { PPOPolicyLossFn } from 'policy-loss';\n${PROGRAM}`);
    write(app, 'main.cjs', `const { PPOPolicyLossFn } = require('policy-loss');\n${PROGRAM}`);
    for (const [name, { build }] of Object.entries(BUNDLES)) {
      mkdirSync(folderOf(name));
      const run = (command: string, ...words: string[]) =>
        execFileSync(command, words, { cwd: app, stdio: ['ignore', 'ignore', 'pipe'] });
      build(folderOf(name), run, app);
    }
    renameSync(join(app, 'node_modules/policy-loss/prebuilds'), prebuilds);
    rmSync(app, { recursive: true });
  });
  after(() => rmSync(place, { recursive: true, force: true }));

  for (const [name, { start }] of Object.entries(BUNDLES))
    it(`${name} finds the binary beside it, or says what to do`, () => {
      const run = (env: NodeJS.ProcessEnv = {}) =>
        spawnSync(start[0]!, start.slice(1), {
          cwd: folderOf(name),
          encoding: 'utf8',
          env: { ...process.env, ...env },
        });
      const { status, stderr } = run();
      assert.notEqual(status, 0);
      assert.match(stderr, /Bundled\? Mark policy-loss as external, or copy its folder prebuilds beside/);

      const native = join(place, prebuildOfThisMachine());
      assert.equal(succeeds(run({ POLICY_LOSS_NATIVE: native })), EXPECTED);

      cpSync(prebuilds, join(folderOf(name), 'prebuilds'), { recursive: true });
      assert.equal(succeeds(run()), EXPECTED);
    });
});
