/**
 * Tests the installed package on Bun, on Deno and in Jest, whose require() loads no ES modules. Needs the prebuilt binary of
 * this platform (npm run prebuild) and the network.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { EXPECTED, installInto, PROGRAM, ROOT, succeeds, write } from './packed.js';

const RUNTIMES = { Bun: ['bun', 'run'], Deno: ['deno', 'run', '--allow-all'] };
const MAIN = 'node_modules/policy-loss/dist/tools/cli/main.js';
const EVALUATE = [MAIN, 'evaluate', 'rollouts.jsonl', '--loss', 'ppo', '--json'];

describe('the package, installed for', () => {
  const folder = mkdtempSync(join(tmpdir(), 'policy-loss-runtimes-'));

  before('install it', () => {
    installInto(folder, 'bun@1', 'deno@2', 'jest@30');
    write(folder, 'main.mjs', `import { PPOPolicyLossFn } from 'policy-loss';\n${PROGRAM}`);
    write(folder, 'main.cjs', `const { PPOPolicyLossFn } = require('policy-loss');\n${PROGRAM}`);
    cpSync(join(ROOT, 'examples/rollouts.jsonl'), join(folder, 'rollouts.jsonl'));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  const run = (command: string, ...words: string[]) =>
    spawnSync(command, words, { cwd: folder, encoding: 'utf8' });

  for (const [name, [command, ...words]] of Object.entries(RUNTIMES)) {
    const start = (...others: string[]) =>
      run(join(folder, 'node_modules/.bin', command!), ...words, ...others);

    it(`${name} is imported and required`, () => {
      for (const program of ['main.mjs', 'main.cjs']) assert.equal(succeeds(start(program)), EXPECTED);
    });

    it(`${name} evaluates a file as Node does`, () => {
      assert.deepEqual(
        JSON.parse(succeeds(start(...EVALUATE))),
        JSON.parse(succeeds(run(process.execPath, ...EVALUATE))),
      );
    });
  }

  it('Deno says which permission it lacks', () => {
    const { status, stderr } = run(
      'node_modules/.bin/deno',
      'run',
      '--no-prompt',
      '--allow-env',
      '--allow-read',
      'main.mjs',
    );
    assert.notEqual(status, 0);
    assert.match(stderr, /allow-(sys|ffi)/);
  });

  it('Jest is required and imported', () => {
    const test = `
      test('computes', async () => {
        const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
        const batch = { shape: [1, 1], logprob: new Float32Array(1), oldLogprob: [0], advantages: [1], actionMask: [1] };
        const { loss, grad } = await fn.compute(batch, { grad: true });
        expect(loss).toBeCloseTo(-1, 6);
        expect(grad).toBeInstanceOf(Float32Array);
        expect(grad).toEqual(Float32Array.of(-1));
        expect(() => fn.computeSync({ ...batch, shape: [1, 2] })).toThrow(LossError);
      });`;
    write(folder, 'a.test.cjs', `const { LossError, PPOPolicyLossFn } = require('policy-loss');${test}`);
    write(folder, 'b.test.mjs', `import { LossError, PPOPolicyLossFn } from 'policy-loss';${test}`);
    const jest = ['node_modules/jest/bin/jest.js', '--ci', '--testMatch', '**/*.test.?js'];
    const { status, stderr } = run(process.execPath, '--experimental-vm-modules', ...jest);
    assert.equal(status, 0, stderr);
    assert.match(stderr, /2 passed, 2 total/);
  });
});
