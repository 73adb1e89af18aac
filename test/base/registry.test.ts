// Tests the registries, declarations, the spelling of arguments, the mapping of batch keys, and the KL penalty in the
// reward.
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { toSnakeCase } from '../../lib/base/options.js';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  type BatchWith,
  CORRECTION_FN,
  ENTROPY_LOSS_FN,
  type FunctionDeclaration,
  GSPOLossFn,
  KeyMapper,
  KL_FN,
  POLICY_LOSS_FN,
  PPOPolicyLossFn,
  REWARD_LOSS_FN,
  Registry,
  SFTLossFn,
  VALUE_LOSS_FN,
} from '../../lib/index.js';
import { frameworkOf } from '../../lib/losses/frameworks.js';
import { layOut, makeRewarded } from '../support/draw.js';
import { ADVANTAGE_ARGUMENTS, ARGUMENTS } from '../support/draw-arguments.js';
import { isLossError } from '../support/loss-error.js';
import { subject } from '../support/subject.js';

const batch = {
  shape: [1, 2] as const,
  logprob: [-1, -2],
  oldLogprob: [-1.5, -1.7],
  advantages: [1, -1],
  actionMask: [1, 1],
};

describe('registries', () => {
  it('return classes, and create objects of them', () => {
    assert.equal(POLICY_LOSS_FN.get('ppo'), PPOPolicyLossFn);
    assert.ok(POLICY_LOSS_FN.create('ppo') instanceof PPOPolicyLossFn);
    assert.ok(POLICY_LOSS_FN.names().includes('mix_chord'));
  });

  it('find functions of frameworks by their short names, where these are free', () => {
    for (const [alias, name] of [
      ['dr_grpo', 'trl/dr_grpo'],
      ['gmpo', 'trl/gmpo'],
      ['gpg', 'verl/gpg'],
    ] as const) {
      assert.equal(POLICY_LOSS_FN.get(alias), POLICY_LOSS_FN.get(name));
      assert.equal(POLICY_LOSS_FN.aliases().get(alias), name);
      assert.ok(!POLICY_LOSS_FN.names().includes(alias));
    }
    assert.equal(POLICY_LOSS_FN.get('gspo'), GSPOLossFn);
    assert.ok(!POLICY_LOSS_FN.aliases().has('gspo'));
  });

  it('give a short name to the first function that has it, unless a function is registered under it', () => {
    const registry = new Registry<object>('loss');
    const [First, Second, Own] = [class {}, class {}, class {}].map((cls) =>
      Object.assign(cls, { defaultArgs: () => ({}) }),
    ) as [typeof SFTLossFn, typeof SFTLossFn, typeof SFTLossFn];
    registry.register('a/loss', First);
    registry.register('b/loss', Second);
    assert.equal(registry.get('loss'), First);
    registry.register('loss', Own, { replace: true });
    assert.equal(registry.get('loss'), Own);
    assert.equal(registry.aliases().size, 0);
  });

  it('refuse a name or an alias that is taken, unless it is to be replaced', () => {
    const registry = new Registry<object>('loss');
    registry.register('a/first', PPOPolicyLossFn);
    registry.register('a/first', PPOPolicyLossFn);
    for (const name of ['a/first', 'first']) {
      const taken = isLossError(
        'ERR_INVALID_INPUT',
        new RegExp(`no other loss has, got '${name}'.*replace: true`),
      );
      assert.throws(() => registry.register(name, GSPOLossFn), taken);
      assert.throws(() => registry.register(name, GSPOLossFn, { replace: false }), taken);
      assert.equal(registry.get(name), PPOPolicyLossFn);
      registry.register(name, GSPOLossFn, { replace: true });
      assert.equal(registry.get(name), GSPOLossFn);
      registry.register(name, PPOPolicyLossFn, { replace: true });
    }
    const taken = isLossError('ERR_INVALID_INPUT', /no other backend has, got 'verl'/);
    assert.throws(() => KeyMapper.register('verl', new KeyMapper({})), taken);
    const verl = KeyMapper.get('verl');
    KeyMapper.register('verl', new KeyMapper({}), { replace: true });
    assert.notEqual(KeyMapper.get('verl'), verl);
    KeyMapper.register('verl', verl, { replace: true });
  });

  it("replace the class's default arguments with the given ones, in either spelling", () => {
    const snake = POLICY_LOSS_FN.create('ppo', { clip_range_low: 0.1, clip_range_high: 0.28 });
    const camel = new PPOPolicyLossFn({ clipRangeLow: 0.1, clipRangeHigh: 0.28 });
    assert.deepEqual(snake.computeSync(batch), camel.computeSync(batch));
    assert.notDeepEqual(snake.computeSync(batch), POLICY_LOSS_FN.create('ppo').computeSync(batch));
  });

  it('let a given clip range replace the defaults of both ends', () => {
    const created = POLICY_LOSS_FN.create('gspo', { clip_range: 0.5 });
    assert.deepEqual(created.computeSync(batch), new GSPOLossFn({ clipRange: 0.5 }).computeSync(batch));
  });

  it("let a given clip range replace the default ends of a user's class too", () => {
    class Own {
      readonly options: object;
      constructor(options: object) {
        this.options = options;
      }
      static defaultArgs() {
        return { clip_range_low: 0.1, clip_range_high: 0.2 };
      }
    }
    const registry = new Registry<Own>('loss', { own: Own });
    assert.deepEqual(registry.create('own', { clip_range: 0.3 }).options, { clipRange: 0.3 });
  });

  it('accept classes of the user', () => {
    class Negated extends SFTLossFn {}
    const registry = new Registry('loss', {});
    registry.register('negated', Negated);
    assert.ok(registry.create('negated') instanceof Negated);
    assert.throws(() => registry.get('sft'), { code: 'ERR_UNKNOWN_NAME' });
  });
});

describe('declarations', () => {
  const REGISTRIES: readonly Registry<unknown>[] = [
    POLICY_LOSS_FN,
    VALUE_LOSS_FN,
    REWARD_LOSS_FN,
    CORRECTION_FN,
    KL_FN,
    ENTROPY_LOSS_FN,
    ADVANTAGE_FN,
  ];
  const batch = makeRewarded({
    seed: 1,
    rows: 6,
    columns: 9,
    values: 'moderate',
    mask: 'ones',
    packed: false,
    groups: 'some',
    rewards: 'normal',
    perToken: true,
  });

  it('are under their own names, and state what documentation needs', () => {
    for (const registry of REGISTRIES)
      for (const name of registry.names()) {
        const declaration = registry.get(name).declaration!;
        assert.equal(declaration.name, name);
        for (const text of [declaration.summary, ...declaration.source, declaration.numerics.range])
          assert.ok(text.length > 0 && !text.endsWith('.'), `${name}: '${text}'`);
        assert.ok(declaration.source.length > 0, name);
        for (const [key, { help }] of Object.entries(declaration.options))
          assert.ok(help.length > 0 && !help.endsWith('.'), `${name}.${key}: '${help}'`);
        for (const [key, { unit }] of Object.entries(declaration.metrics))
          assert.ok(unit.length > 0, `${name}: ${key}`);
      }
  });

  it('say how functions differ from others of the same name', () => {
    for (const registry of REGISTRIES) {
      const names = registry.names();
      for (const name of names) {
        const { unlike = {} } = registry.get(name).declaration!;
        for (const [other, difference] of Object.entries(unlike)) {
          assert.ok(names.includes(other), `${name}: ${other}`);
          assert.ok(difference.length > 0 && !difference.endsWith('.'), `${name}: '${difference}'`);
        }
        const short = name.slice(name.indexOf('/') + 1);
        if (short !== name && names.includes(short)) assert.ok(short in unlike, `${name} is like ${short}`);
      }
    }
  });

  it('belong to a framework', () => {
    const ofLoss = (name: string) => frameworkOf(POLICY_LOSS_FN.get(name).declaration!);
    assert.equal(ofLoss('ppo'), 'Trinity-RFT');
    assert.equal(ofLoss('verl/gspo'), 'verl');
    assert.equal(ofLoss('trl/gmpo'), 'TRL');
    assert.equal(ofLoss('clipped_pg'), 'papers');
    for (const name of ['k1', 'k2', 'k3', 'abs'])
      assert.equal(frameworkOf(KL_FN.get(name).declaration!), 'Trinity-RFT', name);
  });

  it("list Trinity's default arguments among their options, and selectKeys as what they read", () => {
    for (const registry of REGISTRIES)
      for (const name of registry.names()) {
        const cls = registry.get(name);
        const options = Object.keys(cls.declaration!.options).map(toSnakeCase);
        for (const key of Object.keys(cls.defaultArgs())) assert.ok(options.includes(key), `${name}: ${key}`);
        const args = registry === POLICY_LOSS_FN ? fc.sample(ARGUMENTS.policy[name]!, 1)[0] : {};
        const created = registry.create(name, args, { backend: 'tinker' }) as {
          selectKeys?: readonly string[];
          policyLoss?: object;
          spec?: object;
        };
        const { selectKeys } = created;
        // What functions that are defined by expressions read depends on their options.
        const isProgram = created.spec !== undefined || 'program' in (created.policyLoss ?? {});
        const isNative = !isProgram && registry !== CORRECTION_FN;
        if (selectKeys && isNative)
          assert.deepEqual([...selectKeys].sort(), [...cls.declaration!.reads].sort(), name);
      }
  });

  it('have the same defaults in the constructor as in create(), unless Trinity-RFT has others', () => {
    for (const registry of REGISTRIES)
      for (const name of registry.names()) {
        const declaration = registry.get(name).declaration!;
        if (frameworkOf(declaration) === 'Trinity-RFT') continue;
        for (const [key, { trinity }] of Object.entries(declaration.options))
          assert.ok(trinity === undefined || trinity === null, `${name}.${key}: ${trinity}`);
      }
  });

  it('report an unknown option before one that is missing or invalid', () => {
    for (const registry of REGISTRIES)
      for (const name of registry.names()) {
        const cls = registry.get(name);
        const invalid = Object.fromEntries(Object.keys(cls.declaration!.options).map((key) => [key, {}]));
        for (const options of [{ unkown: 1 }, { ...invalid, unkown: 1 }])
          assert.throws(
            () => new cls(options),
            isLossError('ERR_INVALID_OPTION', /unkown: .*an unknown name/),
            name,
          );
      }
    assert.throws(
      () => ALGORITHM_TYPE.get('grpo').objective({ policy_loss_fn: 1, unkown: 1 } as object),
      isLossError('ERR_INVALID_OPTION', /unkown: .*an unknown name/),
    );
  });

  it('say that only create() has defaults for options that a constructor needs', () => {
    const hint =
      /^GSPOLossFn: clipRangeLow: .*got nothing\. Only create\(\) of a registry has a default for it$/;
    assert.throws(() => new GSPOLossFn(undefined as never), isLossError('ERR_INVALID_OPTION', hint));
    const none = /^VerlDROLossFn: droBeta: .*got nothing$/;
    assert.throws(
      () => POLICY_LOSS_FN.create('verl/dro', {} as never),
      isLossError('ERR_INVALID_OPTION', none),
    );
  });

  const checkMetrics = (name: string, { metrics }: FunctionDeclaration, reported: object) => {
    for (const key of Object.keys(reported))
      assert.ok(key.replace(/dataset_\d+$/, 'dataset_<id>') in metrics, `${name} reports ${key}`);
    for (const [key, { when }] of Object.entries(metrics))
      if (when === undefined) assert.ok(key in reported, `${name} does not report ${key}`);
  };

  it('name every metric that is reported', () => {
    const families = {
      policy: POLICY_LOSS_FN,
      kl: KL_FN,
      entropy: ENTROPY_LOSS_FN,
      value: VALUE_LOSS_FN,
      reward: REWARD_LOSS_FN,
    };
    for (const family of Object.keys(families) as (keyof typeof families)[])
      for (const name of families[family].names())
        for (const args of fc.sample(ARGUMENTS[family][name]!, { seed: 3, numRuns: 8 }))
          checkMetrics(
            name,
            families[family].get(name).declaration!,
            subject(family, name, args).sync(layOut(batch)).metrics,
          );
    for (const name of ADVANTAGE_FN.names())
      for (const args of fc.sample(ADVANTAGE_ARGUMENTS[name]!, { seed: 3, numRuns: 8 }))
        checkMetrics(
          name,
          ADVANTAGE_FN.get(name).declaration!,
          ADVANTAGE_FN.create(name, args).computeSync(layOut(batch)).metrics,
        );
  });
});

describe('key mapping', () => {
  it('maps names of verl and tinker in both directions', () => {
    const verl = KeyMapper.get('verl');
    assert.equal(verl.toTrinity('old_log_probs'), 'old_logprob');
    assert.equal(verl.fromTrinity('action_mask'), 'response_mask');
    assert.equal(verl.toTrinity('something_else'), 'something_else');
    assert.equal(KeyMapper.get('tinker').fromTrinity('old_logprob'), 'old_logprob');
    assert.deepEqual(POLICY_LOSS_FN.create('ppo', {}, { backend: 'tinker' }).selectKeys, [
      'old_logprob',
      'action_mask',
      'advantages',
    ]);
  });

  it('accepts a backend of the user, whose names batches may then use', () => {
    KeyMapper.register('mine', new KeyMapper({ behaviour: 'old_logprob', keep: 'action_mask' }));
    const fn = POLICY_LOSS_FN.create('ppo', {}, { backend: 'mine' });
    assert.deepEqual(fn.selectKeys, ['behaviour', 'keep', 'advantages']);
    const { oldLogprob: behaviour, actionMask: keep, ...rest } = batch;
    const renamed: BatchWith<'behaviour' | 'keep'> = { ...rest, behaviour, keep };
    assert.deepEqual(fn.computeSync(renamed), POLICY_LOSS_FN.create('ppo').computeSync(batch));
  });
});

describe('KL penalty in the reward', () => {
  const scores = new Float32Array([1, 2, 3, 4, 5, 6]);
  const penalised = {
    shape: [2, 3] as const,
    token_level_scores: scores,
    old_logprob: [-1, -2, -3, -1.5, -0.5, Number.NaN],
    ref_logprob: [-1.2, -1.5, -3, -1, -0.25, 4],
    action_mask: [1, 1, 1, 1, 1, 0],
  };
  const difference = [0.2, -0.5, 0, -0.5, -0.25];

  it('subtracts the coefficient times the divergence of the old policy from each unmasked score', async () => {
    const fn = KL_FN.create('k1', { kl_coef: 0.5 });
    const { tokenLevelRewards, metrics } = await fn.applyKlPenaltyToReward(penalised);
    const expected = [...difference.map((d, i) => scores[i]! - 0.5 * d), 6];
    tokenLevelRewards.forEach((reward, i) => {
      assert.ok(Math.abs(reward - expected[i]!) < 1e-6);
    });
    const rows = [(0.2 - 0.5 + 0) / 3, (-0.5 - 0.25) / 2];
    assert.ok(Math.abs(metrics.kl! - (rows[0]! + rows[1]!) / 2) < 1e-6);
    assert.equal(metrics.kl_coef, 0.5);
    assert.deepEqual(fn.applyKlPenaltyToRewardSync(penalised).tokenLevelRewards, tokenLevelRewards);
  });

  it('leaves the scores unchanged without a reference policy, and with the estimator none', () => {
    const { ref_logprob: _, ...without } = penalised;
    const k2 = KL_FN.create('k2').applyKlPenaltyToRewardSync(without);
    assert.deepEqual(k2, { tokenLevelRewards: scores, metrics: { kl: 0, kl_coef: 0 } });
    const none = KL_FN.create('none').applyKlPenaltyToRewardSync(penalised);
    assert.deepEqual(none, { tokenLevelRewards: scores, metrics: {} });
  });

  it('adapts the coefficient after each use, by at most a fifth of batch size over horizon', () => {
    const args = { adaptive: true, kl_coef: 0.1, target_kl: 0.01, horizon: 4 };
    const fn = KL_FN.create('k2', args);
    const { metrics } = fn.applyKlPenaltyToRewardSync(penalised);
    assert.equal(metrics.kl_coef, 0.1);
    assert.ok(metrics.kl! > 0.012);
    assert.ok(Math.abs(fn.klCoef - 0.1 * (1 + (0.2 * 2) / 4)) < 1e-12);
    fn.updateKlCoef(0, 4);
    assert.ok(Math.abs(fn.klCoef - 0.1 * 1.1 * 0.8) < 1e-12);
  });

  it('sums long rows in parts to the same mean', () => {
    const tokens = 70_000;
    const long = {
      cuSeqlens: Int32Array.of(0, 2, tokens),
      token_level_scores: new Float32Array(tokens),
      old_logprob: new Float32Array(tokens).fill(-1),
      ref_logprob: Float32Array.from({ length: tokens }, (_, i) => (i < 2 ? -2 : -1.5)),
      action_mask: new Uint8Array(tokens).fill(1),
    };
    const { metrics } = KL_FN.create('k1', { kl_coef: 1 }).applyKlPenaltyToRewardSync(long);
    assert.ok(Math.abs(metrics.kl! - 0.75) < 1e-6);
  });
});
