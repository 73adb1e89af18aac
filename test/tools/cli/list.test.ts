/**
 * Tests that `policy-loss list` shows exactly the registered functions, and `policy-loss devices` exactly the machine's
 * devices.
 */
import assert from 'node:assert/strict';
import { toSnakeCase } from '../../../lib/base/options.js';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  CORRECTION_FN,
  devices,
  ENTROPY_LOSS_FN,
  KL_FN,
  LOGITS_LOSS_FN,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  VALUE_LOSS_FN,
} from '../../../lib/index.js';
import { requiredArgs } from '../../support/draw-arguments.js';
import { fails, run, runJson, runWide } from './support.js';

interface Entry {
  kind: string;
  name: string;
  class: string;
  about: string;
  source: string;
  options: Record<string, unknown>;
  help?: Record<string, string>;
  reads?: string[];
  metrics?: Record<string, string>;
}

const NAMES = {
  loss: POLICY_LOSS_FN.names(),
  value: VALUE_LOSS_FN.names(),
  reward: REWARD_LOSS_FN.names(),
  logits: LOGITS_LOSS_FN.names(),
  correction: CORRECTION_FN.names(),
  advantage: ADVANTAGE_FN.names(),
  kl: KL_FN.names(),
  entropy: ENTROPY_LOSS_FN.names(),
  algorithm: ALGORITHM_TYPE.names(),
};

describe('policy-loss list', () => {
  it('lists every function and algorithm with its summary and source', async () => {
    const entries: Entry[] = await runJson('list');
    assert.deepEqual(
      entries.map(({ kind, name }) => [kind, name]),
      Object.entries(NAMES).flatMap(([kind, names]) => names.map((name) => [kind, name])),
    );
    for (const { name, about, source } of entries) assert.ok(about !== '' && source !== '', name);
  });

  it('lists the options and defaults of the classes', async () => {
    const entries: Entry[] = await runJson('list', 'loss');
    for (const { name, options, class: cls } of entries) {
      assert.equal(cls, POLICY_LOSS_FN.get(name).name);
      for (const [option, value] of Object.entries(POLICY_LOSS_FN.get(name).defaultArgs()))
        assert.deepEqual(options[option], value ?? null, `${name}: ${option}`);
      // create() must accept every listed option, including those without a default.
      const required = requiredArgs(POLICY_LOSS_FN.get(name).declaration);
      for (const option of Object.keys(options))
        POLICY_LOSS_FN.create(name, { ...required, [option]: options[option] ?? required[option] });
    }
    const ppo = entries.find(({ name }) => name === 'ppo')!;
    assert.ok('clip_range_low' in ppo.options && ppo.options.clip_range_low === null);
    const grpo: Entry[] = await runJson('list', 'grpo');
    const algorithm = grpo.find(({ kind }) => kind === 'algorithm')!;
    assert.equal(algorithm.options.policy_loss_fn, 'ppo');
    assert.equal(algorithm.options.repeat_times, undefined);
  });

  it('lists the inputs, metrics and help texts of options that the functions declare', async () => {
    const registries = {
      loss: POLICY_LOSS_FN,
      value: VALUE_LOSS_FN,
      reward: REWARD_LOSS_FN,
      logits: LOGITS_LOSS_FN,
      correction: CORRECTION_FN,
      advantage: ADVANTAGE_FN,
      kl: KL_FN,
      entropy: ENTROPY_LOSS_FN,
    };
    for (const [kind, registry] of Object.entries(registries)) {
      const entries: Entry[] = await runJson('list', kind);
      for (const { name, options, help, reads, metrics } of entries) {
        const { declaration } = registry.get(name);
        assert.deepEqual(reads, declaration!.reads, name);
        assert.deepEqual(Object.keys(metrics!), Object.keys(declaration!.metrics), name);
        for (const [metric, { unit }] of Object.entries(declaration!.metrics))
          assert.ok(metrics![metric]!.startsWith(unit), `${name}: ${metric}`);
        assert.deepEqual(Object.keys(help!), Object.keys(options), name);
        for (const [option, { help: text }] of Object.entries(declaration!.options))
          assert.ok(help![toSnakeCase(option)]!.startsWith(text), `${name}: ${option}`);
      }
    }
  });

  it('prints tables by kind, or one function in full', async () => {
    const { code, stdout, stderr } = await runWide('list', '--long');
    assert.equal(code, 0);
    assert.equal(stderr, '');
    assert.match(stdout, /^Policy losses \(--loss, --policy-loss-fn\)\nname +what it is +source\n/);
    assert.match(stdout, /^ppo +ℓ = max\(.*arXiv 1707\.06347\n.*arXiv 1912\.09729$/m);
    assert.match(stdout, / clip_range=0\.2, /);
    assert.match(stdout, /^ +reads: old_logprob, action_mask, advantages$/m);
    assert.match(stdout, /^ +metrics: sft_loss \(nats\)$/m);
    const ofOne = (await runWide('list', 'gspo')).stdout;
    assert.match(ofOne, /^reads +old_logprob, action_mask, advantages$/m);
    assert.match(ofOne, /^ppo_kl +nats per token$/m);
    assert.match(ofOne, /^gspo — a policy loss\nclass +GSPOLossFn\n/);
    assert.match(ofOne, /^clip_range_high +0\.0004 +the ratio is clipped to at most 1 \+ this/m);
    assert.match(ofOne, /^gspo — an algorithm$/m);
    const kl = (await run('list', 'kl')).stdout;
    assert.doesNotMatch(kl, /Policy losses/);
  });

  it('prints a line each', async () => {
    const { stdout } = await run('list');
    const lines = stdout.split('\n');
    for (const name of POLICY_LOSS_FN.names())
      assert.ok(
        lines.some((line) => line.startsWith(`${name}   `)),
        name,
      );
    const names = Object.values(NAMES).flat().length;
    const titles = lines.filter((line) => / \((--|in programs).*\)$/.test(line)).length;
    // There is a blank line after each section.
    assert.ok(lines.length < names + 2 * titles + 12, 'besides the names, only titles and notes');
    assert.ok(lines.includes('sft                   ℓ = −logprob'));
  });

  it('groups by framework, and describes aliases and namesakes', async () => {
    const { stdout } = await runWide('list', 'loss', '--long');
    const titles = stdout.split('\n').filter((line) => line.startsWith('Policy losses'));
    assert.deepEqual(
      titles.map((title) => title.replace(' (--loss, --policy-loss-fn)', '')),
      [
        'Policy losses',
        ...['verl', 'TRL', 'OpenRLHF', 'NeMo-RL', 'AReaL', 'ROLL', 'ms-swift', 'LLaMA-Factory'],
        ...['open-instruct', 'oat', 'Tinker', 'prime-rl', 'papers'],
      ].map((title, i) => (i === 0 ? title : `Policy losses of ${title}`)),
    );
    assert.match(stdout, /^trl\/gmpo .*\nor gmpo /m);
    assert.match(stdout, /^verl\/gspo .*\n +differs from gspo: another default clip range/m);
    assert.ok(stdout.split('\n').length < 15 * POLICY_LOSS_FN.names().length, 'the lists are cut');
    const [byAlias, byName] = [(await run('list', 'gmpo')).stdout, (await run('list', 'trl/gmpo')).stdout];
    assert.equal(byAlias, byName);
    assert.match(byName, /^framework +TRL\naliases +gmpo$/m);
    const [entry] = (await runJson('list', 'trl/gmpo')) as (Entry & Record<string, unknown>)[];
    assert.deepEqual([entry!.framework, entry!.aliases], ['TRL', ['gmpo']]);
  });

  it('prints CSV', async () => {
    const { stdout } = await run('list', 'kl', '--csv');
    assert.match(
      stdout,
      /^kind,name,class,about,source,options,framework,aliases,unlike\nkl,none,DummyKLFn,no estimate,Trinity-RFT,/,
    );
  });

  it('suggests the nearest known name', () =>
    fails(2, ['list', 'gspoo'], /^error: Did you mean 'gspo'\? unknown kind or name: got 'gspoo'\n$/));
});

describe('policy-loss devices', () => {
  it("lists the library's devices", async () => {
    assert.deepEqual(await runJson('devices'), JSON.parse(JSON.stringify(devices())));
    const { stdout } = await run('devices');
    assert.match(stdout, /^device +available +description\ncpu +yes +\d+ cores, \d+ threads, \w+\n/);
    for (const { name, available } of devices())
      assert.match(stdout, new RegExp(`^${name} +${available ? 'yes' : 'no'} +\\S`, 'm'));
    assert.match((await run('devices', '--csv')).stdout, /^name,available,description\ncpu,true,"/);
  });
});
