/** Tests which steps `npm run test:all -- --changed` chooses. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { PREBUILDS } from '../lib/core/prebuilds.js';
// @ts-expect-error: this module is plain JavaScript, because it runs before anything is built.
import { changedPaths } from '../scripts/test-all/changes.mjs';
// @ts-expect-error: this module is plain JavaScript, because it runs before anything is built.
import * as all from '../scripts/test-all/steps.mjs';

interface Step {
  script: string;
  args?: string[];
  covers: string[];
}

const { ALWAYS_BUILT, NEED_ALL_BINARIES, NEED_EVERYTHING, STEPS, stepsFor } = all;

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const titles = (changed?: string[]): string[] =>
  (stepsFor(changed) as Step[]).map(({ script, args = [] }) => [script, ...args].join(' '));
const everything = titles();
const built = ['prebuild', ...ALWAYS_BUILT].join(' ');

describe('the steps of test:all', () => {
  it('run scripts of package.json and cover paths that exist', () => {
    const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    for (const { script, covers } of STEPS as Step[]) {
      assert.ok(script in scripts, script);
      for (const path of covers) assert.ok(existsSync(join(ROOT, path)), path);
    }
    for (const path of [...NEED_EVERYTHING, ...NEED_ALL_BINARIES] as string[])
      assert.ok(existsSync(join(ROOT, path)), path);
  });

  it('are all chosen after a change to native code, the build or the package, and if the change is unknown', () => {
    assert.ok(everything.length > 10);
    for (const path of [
      'native/math/exp.h',
      'native/cuda/pass.h',
      'CMakeLists.txt',
      'binding.d.ts',
      'package.json',
      '.ci/run',
    ])
      assert.deepEqual(
        titles(['README.md', path]),
        everything.map((title) => (title === 'prebuild' ? built : title)),
        path,
      );
    for (const path of ['scripts/cuda/toolkit.sh', 'scripts/prebuild/toolchains/zig.cmake'])
      assert.deepEqual(titles(['native/math/exp.h', path]), everything, path);
    assert.deepEqual(titles(undefined), everything);
  });

  it('always build a binary for each operating system, C library and processor', () => {
    const builds = (binaries: readonly string[]) =>
      new Set(binaries.flatMap((name) => name.replace('--draft=', '').split('-')));
    assert.deepEqual(builds(ALWAYS_BUILT), builds(Object.keys(PREBUILDS)));
  });

  it('are only `npm test` after a change to texts, benchmarks or short tests', () => {
    assert.deepEqual(titles(['README.md', 'bench/bench.ts', 'test/golden.test.ts', 'examples/a.ts']), [
      'test',
    ]);
  });

  it('include what a change to lib can break, and no native test', () => {
    const steps = titles(['lib/core/batch.ts']);
    for (const step of [
      'fuzz 60 boundary',
      'fuzz:files --minutes 1',
      'test:life',
      'prebuild linux-x64-glibc',
      'test:install',
      'docs',
    ])
      assert.ok(steps.includes(step), step);
    for (const step of ['prebuild', 'test:asan', 'test:tsan', 'fuzz 60 engine', 'test:isa', 'test:arm64'])
      assert.ok(!steps.includes(step), step);
  });

  it('build all prebuilt binaries after a change to their build', () => {
    const others = ['test:arm64', 'test:install'];
    assert.deepEqual(titles(['scripts/prebuild/check.ts']), ['test', built, ...others]);
    assert.deepEqual(titles(['scripts/prebuild/toolchains/zig.cmake']), ['test', 'prebuild', ...others]);
    for (const path of ['scripts/cuda/toolkit.sh', 'scripts/cuda/count-instructions.ts'])
      assert.deepEqual(titles([path]), ['test', 'prebuild', ...others, 'test:instructions'], path);
  });
});

describe('the paths that changed', () => {
  let folder: string;
  const git = (args: string[], date?: string) =>
    execFileSync('git', args, {
      cwd: folder,
      encoding: 'utf8',
      env: {
        ...process.env,
        GIT_COMMITTER_DATE: date,
        GIT_CONFIG_GLOBAL: '/dev/null',
        GIT_CONFIG_SYSTEM: '/dev/null',
      },
    }).trim();
  /** Commits one new file and returns the hash of the commit. */
  const commit = (name: string, date: string): string => {
    writeFileSync(join(folder, name), name);
    git(['add', name]);
    git(['-c', 'user.name=a', '-c', 'user.email=a@example.org', 'commit', '-qm', name], date);
    return git(['rev-parse', 'HEAD']);
  };

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'policy-loss-changes-'));
  });
  afterEach(() => rmSync(folder, { recursive: true }));

  it('are unknown outside a repository and in one with a day of history', () => {
    assert.equal(changedPaths(folder, ''), undefined);
    git(['init', '-q']);
    commit('a', '2026-01-01T10:00:00Z');
    commit('b', '2026-01-01T20:00:00Z');
    assert.equal(changedPaths(folder, ''), undefined);
    assert.equal(changedPaths(folder, 'no-such-commit'), undefined);
  });

  it('are the paths of the last day or since CI_BASE, including uncommitted changes', () => {
    git(['init', '-q']);
    commit('a', '2026-01-01T10:00:00Z');
    commit('b', '2026-01-02T10:00:00Z');
    const base = commit('c', '2026-01-03T09:00:00Z');
    commit('d', '2026-01-03T10:00:00Z');
    assert.deepEqual(changedPaths(folder, ''), ['c', 'd']);
    assert.deepEqual(changedPaths(folder, base), ['d']);
    writeFileSync(join(folder, 'e'), '');
    assert.deepEqual(changedPaths(folder, base), ['d', 'e']);
  });

  it('are unknown if nothing differs', () => {
    git(['init', '-q']);
    assert.equal(changedPaths(folder, commit('a', '2026-01-01T10:00:00Z')), undefined);
  });
});
