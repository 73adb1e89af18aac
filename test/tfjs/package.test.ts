/** Tests policy-loss/tfjs as it is published, next to an installed @tensorflow/tfjs-core. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const TSC = join(ROOT, 'node_modules/typescript/bin/tsc');

const TYPED = `
import { ones, type Scalar } from '@tensorflow/tfjs-core';
import { ALGORITHM_TYPE, PPOPolicyLossFn } from 'policy-loss';
import { lossFromLogits, lossFromLogprobs, type TokenBatch } from 'policy-loss/tfjs';

const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
const batch: TokenBatch = { targets: ones([1, 1], 'int32'), oldLogprob: [0], advantages: [1], actionMask: [1] };
let clipped = 0;
export const loss: Scalar = lossFromLogits(fn, ones([1, 1, 5]), batch, {
  temperature: 0.7,
  onResult: ({ metrics }) => {
    clipped = metrics.pg_clipfrac;
  },
});
const objective = ALGORITHM_TYPE.get('grpo').objective({});
export const other: Scalar = lossFromLogprobs(objective, ones([1, 1]), { rewards: [clipped], groupIds: ['a'] });
// @ts-expect-error
lossFromLogits(fn, ones([1, 1, 5]), { ...batch, advantage: [1] } satisfies TokenBatch);
// @ts-expect-error
lossFromLogits(fn, ones([1, 1, 5]), { oldLogprob: [0] });
// @ts-expect-error
lossFromLogits(fn, new Float32Array(5), batch);
`;
const LOADED = `
const batch = { targets: [1], oldLogprob: [0], advantages: [1], actionMask: [1] };
const fn = new policyLoss.PPOPolicyLossFn({ clipRange: 0.2 });
try {
  tfjs.lossFromLogits(fn, [], batch);
} catch (error) {
  console.log(error instanceof policyLoss.LossError, error.message);
}
`;

describe('policy-loss/tfjs, published', () => {
  const folder = mkdtempSync(join(tmpdir(), 'policy-loss-tfjs-'));
  before(() => {
    mkdirSync(join(folder, 'node_modules'));
    symlinkSync(ROOT, join(folder, 'node_modules/policy-loss'));
    symlinkSync(join(ROOT, 'node_modules/@tensorflow'), join(folder, 'node_modules/@tensorflow'));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  it('has types', () => {
    for (const file of ['typed.mts', 'typed.cts']) writeFileSync(join(folder, file), TYPED);
    const options = ['--noEmit', '--strict', '--exactOptionalPropertyTypes', '--skipLibCheck', '--types', ''];
    for (const module of ['node16', 'nodenext', 'preserve']) {
      const files = module === 'preserve' ? ['typed.mts'] : ['typed.mts', 'typed.cts'];
      const words = [TSC, ...options, '--target', 'es2022', '--module', module, ...files];
      const { status, stdout, stderr } = spawnSync(process.execPath, words, {
        cwd: folder,
        encoding: 'utf8',
      });
      assert.equal(status, 0, `${module}: ${stdout}${stderr}`);
    }
  });

  it('is imported and required', () => {
    const programs = {
      'program.mjs': `import * as policyLoss from 'policy-loss';\nimport * as tfjs from 'policy-loss/tfjs';${LOADED}`,
      'program.cjs': `const policyLoss = require('policy-loss');\nconst tfjs = require('policy-loss/tfjs');${LOADED}`,
    };
    for (const [file, program] of Object.entries(programs)) {
      writeFileSync(join(folder, file), program);
      const { stdout, stderr } = spawnSync(process.execPath, [file], { cwd: folder, encoding: 'utf8' });
      assert.equal(
        stdout,
        'true logits: expected a tensor of dtype float32, got an array of length 0\n',
        stderr,
      );
    }
  });
});
