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

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
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

const PUBLISHED = '--ignoreConfig --skipLibCheck --module nodenext --target esnext';

const PROGRAM = `
import {
  type AbortSignalLike, ALGORITHM_TYPE, type Batch, type BatchWith, devices, ENTROPY_LOSS_FN, KeyMapper, KL_FN,
  LOSS_FN, logprobsSync, type LossComputeOptions, LossError, type ObjectiveConfig, PPOPolicyLossFn, POLICY_LOSS_FN, type Result,
  upload,
} from 'policy-loss';

export async function main(signal: AbortSignalLike): Promise<number> {
  const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
  const batch = { shape: [1, 1] as const, logprob: [0], oldLogprob: [0], advantages: [1], actionMask: [1] };
  const result = await fn.compute(batch, { grad: true, signal });
  const clipped: number = result.metrics.pg_clipfrac;
  const plain: Result<object> = result;
  const gradient: Float32Array = result.grad;
  const [cpu] = devices();
  try {
    const resident = await upload(batch, 'cuda:0');
    fn.computeSync(resident);
    resident[Symbol.dispose]();
  } catch (error) {
    if (error instanceof LossError && error.code !== 'ERR_DEVICE_UNAVAILABLE') throw error;
    if (error instanceof Refused) return error.times;
  }
  return clipped + plain.loss + cpu.threads + gradient.length;
}

export function otherColumns(): number {
  const [ofValues, ofRewards] = [LOSS_FN.create('verl/value'), LOSS_FN.create('trl/reward')];
  const batch: Batch = { shape: [1, 1], values: [1], old_values: [1], returns: [0] };
  const gradient: Float32Array = ofValues.computeSync(batch, { grad: true }).gradValues;
  const bits: Uint16Array = ofValues.computeSync(batch, { grad: { dtype: 'bfloat16' } }).halfGradValues.data;
  const { metrics, gradRewards } = ofRewards.computeSync({ rewards: [1, 0] }, { grad: true });
  // @ts-expect-error
  const open: Float32Array = ofValues.computeSync(batch).gradValues;
  // @ts-expect-error
  ofValues.computeSync(batch, { gradEntropy: true });
  return gradient.length + bits.length + metrics.accuracy + gradRewards.length + open.length;
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
  fn.computeSync({ shape, oldEntropy: one, v_star: [1], probability: [1], logZ: [1], clipCovKeys: one });
}

export async function gradients(wanted: boolean, options: LossComputeOptions, own: Float32Array): Promise<unknown> {
  const fn = POLICY_LOSS_FN.create('verl/flowrl');
  const batch: Batch = { logprob: [[0]] };
  const all = await fn.compute(batch, { grad: true, gradEntropy: { dtype: 'bfloat16' }, gradLogZ: true, part: true });
  const values: Float32Array[] = [all.grad, all.gradLogZ, fn.computeSync(batch, { grad: own }).grad];
  const half: Uint16Array = all.halfGradEntropy.data;
  const merged = fn.merge([all.part], fn.countSync(batch));
  (await fn.compute(batch, { grad: 'device' })).deviceGrad.dispose();
  const objective = ALGORITHM_TYPE.get('grpo').objective();
  const { grad, gradEntropy } = objective.computeSync(batch, { grad: true, seed: 1 });
  values.push(grad, gradEntropy, KL_FN.create('k2').calculateKlLossSync(batch, { grad: true }).grad);
  values.push((await ENTROPY_LOSS_FN.create('default').compute(batch, { grad: true, lossAggMode: 'token-sum' })).grad);
  const logits = { logits: own, targets: [0] };
  const { gradLogits, entropy } = fn.fromLogitsSync(logits, { gradLogits: true, entropy: true });
  values.push(gradLogits, entropy, logprobsSync(own, { shape: [1, 1], targets: [0], entropy: true }).entropy);
  values.push(objective.fromLogitsSync(logits, { grad: true }).gradEntropy);
  fn.fromLogitsSync({ ...logits, logits: [own] }, { gradLogits: (block, first) => [block, first] });
  // The types do not say whether the gradient is requested.
  for (const result of [
    fn.computeSync(batch, options),
    fn.computeSync(batch, { grad: wanted }),
    fn.computeSync(batch, wanted ? { grad: true } : {}),
    fn.computeSync(batch, { ...(wanted && { grad: true }) }),
    fn.computeSync(batch, wanted ? { grad: true } : undefined),
    objective.computeSync(batch, { gradEntropy: true }),
    objective.computeSync(batch),
  ]) {
    // @ts-expect-error
    const gradient: Float32Array = result.grad;
    values.push(gradient);
  }
  // @ts-expect-error
  values.push(objective.computeSync(batch, { grad: true, gradEntropy: false }).gradEntropy);
  // @ts-expect-error
  values.push(objective.computeSync(batch, { grad: 'device' }).gradEntropy);
  return [values, half, merged];
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
  objective({ kl_loss_fn_args: { kl_coeff: 1 } });
  objective({ kl_loss_fn: 'mine', kl_loss_fn_args: { klCoef: 1 }, policy_loss_fn_args: { whatever: 1 } });
  // @ts-expect-error
  new PPOPolicyLossFn({ clipRagne: 0.2 });
}
`;
const REQUIRED = `
import policyLoss = require('policy-loss');
export const fn: policyLoss.PPOPolicyLossFn = new policyLoss.PPOPolicyLossFn({ clipRange: 0.2 });
export const result: policyLoss.Result<policyLoss.PPOMetrics> = fn.computeSync({ logprob: [[0]] });
`;
// Mistakes, and the errors that they give.
const MISTAKES: readonly [statement: string, error: RegExp][] = [
  [
    'new TRLDAPOLossFn({ epsilonn: 0.2 })',
    /does not exist in type 'TRLDAPOLossOptions'. Did you mean to write 'epsilon'\?$/,
  ],
  [
    'new VerlVanillaLossFn({ clipRatioHihg: 0.2 })',
    /does not exist in type 'VerlVanillaLossOptions'. Did you mean to write 'clipRatioHigh'\?$/,
  ],
  [
    'new GRPOGroupedAdvantage({ stdCalLevels: null })',
    /does not exist in type 'GRPOAdvantageOptions'. Did you mean to write 'stdCalLevel'\?$/,
  ],
  ["new GRPOGroupedAdvantage({ stdCalLevel: 'batches' })", /Type '"batches"' is not assignable to type /],
  ['new PPOPolicyLossFn({})', /'{}' is not assignable to parameter of type 'PPOPolicyLossOptions'.$/],
  [
    'new PPOPolicyLossFn({ clipRangeLow: 0.2 })',
    /not assignable to parameter of type 'PPOPolicyLossOptions'.$/,
  ],
  ['new PPOPolicyLossFn()', /Expected 1 arguments, but got 0.$/],
  [
    "POLICY_LOSS_FN.create('trl/dapo', { epsilon_hihg: 0.2 })",
    /does not exist in type 'ArgsOf<TRLDAPOLossOptions>'. Did you mean to write 'epsilon_high'\?$/,
  ],
  [
    "POLICY_LOSS_FN.create('ppo', { clip_range: 'far' })",
    /Type 'string' is not assignable to type 'number'.$/,
  ],
  [
    "POLICY_LOSS_FN.create('ppo').computeSync({ logprob: [[0]] }).metrics.pg_clipfarc",
    /'pg_clipfarc' does not exist on type 'PPOMetrics'. Did you mean 'pg_clipfrac'\?$/,
  ],
  [
    "POLICY_LOSS_FN.create('dapo', { epsilonHigh: '0.2' })",
    /Type 'string' is not assignable to type 'number'.$/,
  ],
  ["POLICY_LOSS_FN.create('verl/dro')", /Expected 2-3 arguments, but got 1.$/],
  [
    "POLICY_LOSS_FN.create('gvpo', {})",
    /'{}' is not assignable to parameter of type 'ArgsOf<.*VerlGVPOLossOptions>.*'.$/,
  ],
  ["new (defineLoss('mine', { options: BETA, loss: 'A' }))()", /Expected 1 arguments, but got 0.$/],
];
const CORRECT = `
const required: OptionsOf<typeof PPOPolicyLossFn> = { clipRange: 0.2 };
const low: OptionsOf<typeof PPOPolicyLossFn> = { clipRangeLow: 0.1, clipRangeHigh: 0.2 };
const metrics: MetricsOf<typeof TRLDAPOLossFn> = new TRLDAPOLossFn().computeSync({ logprob: [[0]] }).metrics;
export const far: number | undefined = metrics['clip_ratio/high_max'];
export const made: PPOPolicyLossFn = POLICY_LOSS_FN.create('ppo', { clip_range_low: 0.1, clipRangeHigh: null });
export const mine: PolicyLossFn<object> = POLICY_LOSS_FN.create('mine', { whatever: 1 });
export const dro = POLICY_LOSS_FN.create('dro', { dro_beta: 0.1 }, { backend: 'verl' });
export const cls: typeof TRLDAPOLossFn = POLICY_LOSS_FN.get('dapo');
export const other: RegisteredClass<PolicyLossFn<object>> = POLICY_LOSS_FN.get('mine');
const BETA = { beta: { type: 'number', required: true, help: '' } } as const;
const Defined = defineLoss('mine', { options: { low: { type: 'number', default: 0.2, help: '' } }, loss: 'A*low' });
const given: OptionsOf<typeof Defined> = { low: 0.1, lossAggMode: 'token-sum' };
export const defined: PolicyLossFn<object>[] = [new Defined(), new Defined(given)];
POLICY_LOSS_FN.register('defined', Defined, { replace: true });
export const fns = [new PPOPolicyLossFn(required), new PPOPolicyLossFn(low)];
`;
const IMPORTS = `import {
  defineLoss, GRPOGroupedAdvantage, type MetricsOf, type OptionsOf, POLICY_LOSS_FN, PolicyLossFn, PPOPolicyLossFn,
  type RegisteredClass, TRLDAPOLossFn, VerlVanillaLossFn,
} from 'policy-loss';
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

  function compile(options: readonly string[], cwd = folder, types = '') {
    const words = [TSC, '--noEmit', '--strict', '--exactOptionalPropertyTypes', '--types', types, ...options];
    return spawnSync(process.execPath, words, { cwd, encoding: 'utf8' });
  }
  function compiles(...options: string[]): void {
    const { status, stdout, stderr } = compile(options);
    assert.equal(status, 0, stdout + stderr);
  }

  for (const [module, target, files, ...options] of SETTINGS)
    it(`compile with module ${module} and target ${target}`, () =>
      compiles('--module', module, ...options, '--target', target, ...files));

  it('compile without the declarations of a DOM', () =>
    compiles('--module', 'node16', '--target', 'es2020', '--lib', 'es2020', 'program.mts', 'program.cts'));

  it('give a class one type, whether a file imports or requires it', () =>
    compiles('--module', 'node16', '--target', 'es2022', 'exchange.mts'));

  it('say in a line what a mistake is', () => {
    const statements = MISTAKES.map(([statement]) => `${statement};\n`).join('');
    writeFileSync(join(folder, 'mistakes.mts'), IMPORTS + CORRECT + statements);
    const { stdout } = compile('--module node16 --target es2022 --pretty false mistakes.mts'.split(' '));
    const errors = stdout.match(/^mistakes.*/gm)!;
    assert.equal(errors.length, MISTAKES.length, stdout);
    for (const [i, error] of errors.entries()) {
      assert.match(error, MISTAKES[i]![1]);
      assert.ok(error.length <= 200, error);
    }
  });

  it('have the options and metrics of the sources', () => {
    const { status, stdout, stderr } = compile(
      `${PUBLISHED} test/base/published.test-d.ts`.split(' '),
      ROOT,
      'node',
    );
    assert.equal(status, 0, stdout + stderr);
  });
});
