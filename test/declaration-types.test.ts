/**
 * Tests the published declarations. Compiles small programs that use the package, without skipLibCheck and without other
 * declarations, for several modules and targets. Lines under `@ts-expect-error` must not compile.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const TSC = join(ROOT, 'node_modules/typescript/bin/tsc');

const EVERY_FORM = ['program.mts', 'program.cts', 'required.cts'];
const BUNDLER = ['--moduleResolution', 'bundler'];
const SETTINGS: readonly [module: string, target: string, files: readonly string[], ...options: string[]][] =
  [
    ['node16', 'es2020', EVERY_FORM],
    ['node16', 'es2022', EVERY_FORM],
    ['node16', 'esnext', EVERY_FORM],
    ['node18', 'es2022', EVERY_FORM],
    ['node20', 'es2020', EVERY_FORM],
    ['nodenext', 'es2020', EVERY_FORM],
    ['nodenext', 'esnext', EVERY_FORM],
    ['preserve', 'es2020', ['program.mts']],
    ['esnext', 'es2022', ['program.mts'], ...BUNDLER],
    ['commonjs', 'es2020', ['program.cts'], ...BUNDLER],
  ];

const PROGRAM = `
import {
  type AbortSignalLike, ALGORITHM_TYPE, type Batch, type BatchWith, devices, KeyMapper, LossError,
  type ObjectiveConfig, PPOPolicyLossFn, POLICY_LOSS_FN, type Result, upload,
} from 'policy-loss';

export async function main(signal: AbortSignalLike): Promise<number> {
  const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
  const batch = { shape: [1, 1] as const, logprob: [0], oldLogprob: [0], advantages: [1], actionMask: [1] };
  const result = await fn.compute(batch, { grad: true, signal });
  const clipped: number = result.metrics.pg_clipfrac;
  const plain: Result<object> = result;
  const gradient: Float32Array | undefined = result.grad;
  const [cpu] = devices();
  try {
    const resident = await upload(batch, 'cuda:0');
    fn.computeSync(resident);
    resident[Symbol.dispose]();
  } catch (error) {
    if (error instanceof LossError && error.code !== 'ERR_DEVICE_UNAVAILABLE') throw error;
    if (error instanceof Refused) return error.times;
  }
  return clipped + plain.loss + cpu.threads + (gradient?.length ?? 0);
}

class Refused extends LossError {
  times = 1;
}

class Mine extends PPOPolicyLossFn {}
POLICY_LOSS_FN.register('mine', Mine);

export function columns(): void {
  const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
  const [shape, one] = [[1, 1] as const, new Float32Array(1)];
  fn.computeSync({ shape, logprob: one, old_logprob: one, advantages: one, action_mask: [true] });
  fn.computeSync({ cu_seqlens: [0, 1], log_prob: one, old_log_probs: one, advantages: one, response_mask: [1] });
  fn.computeSync({ shape, rollout_log_probs: one, prox_logprob: one, teacherLogprob: one });
  // @ts-expect-error
  fn.computeSync({ shape, logprob: one, oldLogprobs: one, advantages: one, actionMask: [1] });
  // @ts-expect-error
  fn.compute({ shape, logprob: one, old_logprobs: one, advantages: one, actionMask: [1] });
  // @ts-expect-error
  const misspelt: Batch = { shape, logprob: one, oldLogprob: one, advantage: one, actionMask: [1] };
  // @ts-expect-error
  const wrong: Batch = { shape, logprob: 'one' };
  KeyMapper.register('other', new KeyMapper({ lp: 'logprob' }));
  const further: BatchWith<'lp' | 'prompt'> = { shape, lp: one, prompt: ['Why?'], oldLogprob: one };
  // @ts-expect-error
  const misspeltToo: BatchWith<'lp'> = { shape, lp: one, oldLogprobs: one };
  const any: BatchWith<string> = { shape, whatever: 1, oldLogprob: one };
  // @ts-expect-error
  const wrongToo: BatchWith<string> = { shape, oldLogprob: 'one' };
  for (const given of [misspelt, wrong, further, misspeltToo, any, wrongToo]) fn.computeSync(given);
}

export function configurations(): void {
  const { objective } = ALGORITHM_TYPE.get('grpo');
  objective({ policy_loss_fn: 'gspo', policyLossFnArgs: { clip_range: 0.1 }, klLossFn: null, repeat_times: 8 });
  objective({ sampleStrategy: 'default', optimizer: { name: 'adam' }, backend: 'verl', lossAggMode: 'token-mean' });
  // @ts-expect-error
  objective({ polcy_loss_fn: 'gspo' });
  // @ts-expect-error
  objective({ klLosFn: 'k2' });
  // @ts-expect-error
  const config: ObjectiveConfig = { entropy_loss_function: 'default' };
  // @ts-expect-error
  objective({ policy_loss_fn: 1 });
  objective(config);
  // @ts-expect-error
  new PPOPolicyLossFn({ clipRagne: 0.2 });
}
`;
const REQUIRED = `
import policyLoss = require('policy-loss');
export const fn: policyLoss.PPOPolicyLossFn = new policyLoss.PPOPolicyLossFn({ clipRange: 0.2 });
export const result: policyLoss.Result<policyLoss.PPOMetrics> = fn.computeSync({ logprob: [[0]] });
`;
// A file that imports the package and one that requires it exchange its objects.
const EXCHANGE = `
import { fn, result } from './required.cjs';
import { LossError, PPOPolicyLossFn, type Result } from 'policy-loss';
export const same: PPOPolicyLossFn = fn;
export const sameResult: Result<object> = result;
export const error: LossError = new LossError('ERR_INVALID_INPUT', 'text');
`;

describe('declarations', () => {
  const folder = mkdtempSync(join(tmpdir(), 'policy-loss-types-'));
  before(() => {
    const installed = join(folder, 'node_modules/policy-loss');
    mkdirSync(installed, { recursive: true });
    for (const part of ['package.json', 'dist'])
      cpSync(join(ROOT, part), join(installed, part), { recursive: true });
    for (const [name, text] of Object.entries({
      'program.mts': PROGRAM,
      'program.cts': PROGRAM,
      'required.cts': REQUIRED,
      'exchange.mts': EXCHANGE,
    }))
      writeFileSync(join(folder, name), text);
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  function compiles(...options: string[]): void {
    const words = [TSC, '--noEmit', '--strict', '--exactOptionalPropertyTypes', '--types', '', ...options];
    const { status, stdout, stderr } = spawnSync(process.execPath, words, { cwd: folder, encoding: 'utf8' });
    assert.equal(status, 0, stdout + stderr);
  }

  for (const [module, target, files, ...options] of SETTINGS)
    it(`compile with module ${module} and target ${target}`, () =>
      compiles('--module', module, ...options, '--target', target, ...files));

  it('compile without the declarations of a DOM', () =>
    compiles('--module', 'node16', '--target', 'es2020', '--lib', 'es2020', 'program.mts', 'program.cts'));

  it('give a class one type, whether a file imports or requires it', () =>
    compiles('--module', 'node16', '--target', 'es2022', 'exchange.mts'));
});
