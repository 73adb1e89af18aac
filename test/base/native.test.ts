/**
 * Tests how the native module is loaded: what is refused, and from where it loads. Every test starts a process of its own,
 * which loads dist/.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { VERSION } from '../../lib/base/version.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const INDEX = JSON.stringify(join(ROOT, 'dist/index.cjs'));
const DIST = JSON.stringify(join(ROOT, 'dist/'));
const COUNT = `console.log(require(${INDEX}).POLICY_LOSS_FN.names().length > 0)`;

describe('the native module', () => {
  let folder: string;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'policy-loss-native-'));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  function run(
    program: string,
    { node = process.execPath, flags = [] as string[], env = {} as NodeJS.ProcessEnv } = {},
  ) {
    const file = join(folder, 'program.cjs');
    writeFileSync(file, program);
    return spawnSync(node, [...flags, file], { encoding: 'utf8', env: { ...process.env, ...env } });
  }

  it('must have the version of the package', () => {
    const { version } = createRequire(import.meta.url)('../../package.json') as { version: string };
    assert.equal(VERSION, version);
  });

  it('is refused if it cannot write into arrays', () => {
    const native = join(folder, 'native.cjs');
    writeFileSync(native, `exports.version = '${VERSION}'; exports.softGate = () => {};`);
    const { stderr } = run(COUNT, { env: { POLICY_LOSS_NATIVE: native } });
    assert.match(stderr, /native\.cjs: native code cannot write typed arrays: expected 2, got 0/);
  });

  it('is refused on a version of Bun that would crash', () => {
    const pretend = `Object.defineProperty(process, 'versions', { value: { ...process.versions, bun: '1.1.9' } });`;
    const { stderr } = run(pretend + COUNT);
    assert.match(stderr, /ERR_NATIVE_LOAD/);
    assert.match(stderr, /Bun: expected version 1\.1\.30 or later, got 1\.1\.9/);
  });

  it('may be named by a relative path', () => {
    const { stderr } = run(COUNT, { env: { POLICY_LOSS_NATIVE: 'absent.node' } });
    assert.ok(stderr.includes(`${join(process.cwd(), 'absent.node')}: the file does not exist`), stderr);
  });

  it("loads with Node's permission model, which hides the executable", () => {
    const flag = '--permission';
    const permission = process.allowedNodeEnvironmentFlags.has(flag) ? flag : '--experimental-permission';
    const reads = [ROOT, folder].map((path) => `--allow-fs-read=${join(path, '/')}*`);
    const { stdout, stderr } = run(COUNT, { flags: [permission, '--allow-addons', ...reads] });
    assert.equal(stdout, 'true\n', stderr);
  });

  it('loads after the executable was removed, as an update of Node does', function () {
    if (process.platform === 'win32') return this.skip(); // where a program that runs cannot be removed
    const node = join(folder, 'node');
    copyFileSync(process.execPath, node);
    const { stdout, stderr } = run(`require('fs').rmSync(process.execPath); ${COUNT}`, { node });
    assert.equal(stdout, 'true\n', stderr);
  });

  it('loads into CommonJS without an ES module, as Jest needs', () => {
    const { stdout, stderr } = run(
      `${COUNT}; for (const file of Object.keys(require.cache)) if (file.startsWith(${DIST})) console.log(file);`,
    );
    const [count, ...files] = stdout.trim().split('\n');
    assert.equal(count, 'true', stderr);
    assert.deepEqual(
      files.filter((file) => !file.endsWith('.cjs')),
      [],
    );
    assert.ok(files.length > 10, stdout);
  });
});
