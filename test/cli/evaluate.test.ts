/** `policy-loss evaluate` on the example's rollouts, against the library on the same rows. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { ALGORITHM_TYPE, fromTrinityConfig, POLICY_LOSS_FN } from '../../lib/index.js';
import {
  EXAMPLE,
  Files,
  fromLibrary,
  fromObjective,
  parseCsv,
  partsOf,
  fails as programFails,
  ROWS,
  type Row,
  run,
  runJson,
  sixDigits,
  TOKENS,
  TRINITY,
} from './support.js';

const evaluate = (...words: string[]) => run('evaluate', ...words);
const evaluateJson = (...words: string[]) => runJson('evaluate', ...words);
const fails = (code: 1 | 2, words: string[], ...says: RegExp[]) =>
  programFails(code, ['evaluate', ...words], ...says);

describe('policy-loss evaluate', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());
  const fileOf = (name: string, rows: readonly (object | string)[]) => files.write(name, rows);

  it('helps with examples, and with the options of the loss named', async () => {
    const general = await evaluate('--help');
    assert.equal(general.code, 0);
    assert.match(general.stdout, /Examples:\n +\$ policy-loss evaluate/);
    for (const name of [...POLICY_LOSS_FN.names(), ...ALGORITHM_TYPE.names()])
      assert.match(general.stdout, new RegExp(`\\b${name}\\b`));
    const { code, stdout } = await evaluate('--loss', 'cispo', '--help');
    assert.equal(code, 0);
    assert.match(stdout, /Options of cispo:/);
    assert.match(stdout, /--clip-range-high <value> +\(default: 0\.28\)/);
    assert.match(stdout, /--enable-mask-clip /);
  });

  it('helps with the options of the algorithm named, and of the functions it is then made of', async () => {
    const { code, stdout } = await evaluate('--algorithm', 'gspo', '--advantage-fn', 'rec', '--help');
    assert.equal(code, 0);
    for (const says of [
      /Options of gspo:/,
      /--policy-loss-fn <name> +its policy loss \(default: "gspo"\)/,
      /--kl-loss-fn <name> .*\(default: "k2"\)/,
      /--kl-coef <value> .*\(default:\s+0\.001\)/,
      /--entropy-coef <value> /,
      /--kl-penalty-fn <name> /,
      /--seed <number> /,
      /Options of its policy loss gspo:/,
      /--clip-range-high <value> +\(default: 0\.0004\)/,
      /Options of its advantage function rec:/,
      /--advantage-drop <value>/,
      /--advantage-std-normalize /,
    ])
      assert.match(stdout, says);
    assert.equal(stdout.match(/^ +--loss-agg-mode /gm)?.length, 1);
    assert.doesNotMatch(stdout, /--advantage-rank-penalty/);
  });

  for (const name of ['ppo', 'gspo', 'cispo', 'topr', 'sapo', 'sppo', 'rec', 'opmd', 'importance_sampling']) {
    it(`${name}: the library's result to the bit, on advantages from rewards`, async () => {
      assert.deepEqual(await evaluateJson(EXAMPLE, '--loss', name), {
        ...(await fromLibrary(name)),
        advantages: 'grpo',
      });
    });
  }

  for (const name of ['sft', 'sft_is', 'sft_phi', 'dpo']) {
    it(`${name}: the library's result to the bit, without advantages`, async () => {
      assert.deepEqual(await evaluateJson(EXAMPLE, '--loss', name), await fromLibrary(name));
    });
  }

  for (const name of ['mix', 'mix_chord']) {
    it(`${name}: on rows that name experts and the step`, async () => {
      const isExpert = (_: Row, b: number) => b % 3 === 0;
      const file = fileOf(
        'experts.jsonl',
        ROWS.map((row, b) => ({ ...row, expert: isExpert(row, b), step: 4 })),
      );
      const more = { expertMask: ROWS.map(isExpert), step: 4 };
      assert.deepEqual(await evaluateJson(file, '--loss', name), {
        ...(await fromLibrary(name, {}, ROWS, more)),
        advantages: 'grpo',
      });
    });
  }

  it('takes the advantages and the mask that the file gives', async () => {
    const rows = ROWS.slice(0, 8);
    const given = rows.map((row, b) => ({
      ...row,
      reward: undefined,
      advantages: b === 2 ? row.logprobs.map((_, t) => t - 3) : b - 4,
      action_mask: row.logprobs.map((_, t) => t % 2),
    }));
    const advantages = given.flatMap(({ logprobs, advantages: a }) =>
      logprobs.map((_, t) => (Array.isArray(a) ? a[t]! : a)),
    );
    const actionMask = given.flatMap((row) => row.action_mask);
    assert.deepEqual(await evaluateJson(fileOf('given.jsonl', given), '--loss', 'ppo'), {
      ...(await fromLibrary('ppo', {}, rows, { advantages, actionMask })),
      tokens: actionMask.reduce((sum, m) => sum + m, 0),
      advantages: 'given',
    });
  });

  it('needs no column that the loss, with its options, does not read', async () => {
    const file = fileOf(
      'on-policy.jsonl',
      ROWS.map((row) => ({ ...row, old_logprobs: undefined })),
    );
    const { advantages: _, ...computed } = await evaluateJson(
      file,
      '--loss',
      'ppo',
      '--fallback-to-policy-gradient',
    );
    assert.deepEqual(computed, await fromLibrary('ppo', { fallbackToPolicyGradient: true }));
    await fails(
      1,
      [file, '--loss', 'ppo'],
      /ppo reads the column old_logprobs.*on-policy\.jsonl has it in none/,
    );
  });

  it('takes several files for one', async () => {
    const files = [fileOf('first.jsonl', ROWS.slice(0, 100)), fileOf('second.jsonl', ROWS.slice(100))];
    assert.deepEqual(
      await evaluateJson(...files, '--loss', 'gspo'),
      await evaluateJson(EXAMPLE, '--loss', 'gspo'),
    );
  });

  it('prints a table, plain where it is piped', async () => {
    const { code, stdout, stderr } = await evaluate(EXAMPLE, '--loss', 'ppo');
    const { loss, metrics, gradNorm } = await fromLibrary('ppo');
    assert.equal(code, 0);
    assert.equal(stderr, '');
    // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
    assert.doesNotMatch(stdout, /\x1b/);
    const [table, note] = stdout.split('\n\n');
    const entries = Object.fromEntries(table!.split('\n').map((line) => line.split(/ {2,}/)));
    assert.deepEqual(entries, {
      function: 'ppo',
      loss: sixDigits(loss),
      ...Object.fromEntries(Object.entries(metrics).map(([name, x]) => [name, sixDigits(x!)])),
      'gradient norm': sixDigits(gradNorm),
      rows: String(ROWS.length),
      tokens: String(TOKENS),
    });
    assert.match(note!, /reward and task_id by GRPO's rule/);
    const sft = await evaluate(EXAMPLE, '--loss', 'sft');
    assert.doesNotMatch(sft.stdout, /GRPO/);
  });

  describe('options', () => {
    it('of the class by default_args', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        EXAMPLE,
        '--loss',
        'ppo',
        '--clip-range',
        '0.01',
      );
      assert.deepEqual(computed, await fromLibrary('ppo', { clipRange: 0.01 }));
      assert.notEqual(computed.loss, (await fromLibrary('ppo')).loss);
    });

    it('of the constructor beyond default_args, before the files too', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        '--clip-range-low=0.01',
        '--clip-range-high',
        '0.02',
        '--loss=ppo',
        EXAMPLE,
      );
      assert.deepEqual(computed, await fromLibrary('ppo', { clipRangeLow: 0.01, clipRangeHigh: 0.02 }));
      assert.notEqual(computed.loss, (await fromLibrary('ppo')).loss);
    });

    it('that are switches, text and negative numbers', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        '--loss',
        'ppo',
        '--enable-sequence-masking',
        EXAMPLE,
        '--delta-sequence-masking',
        '-0.05',
        '--loss-agg-mode',
        'seq-mean-token-sum',
      );
      const args = {
        enable_sequence_masking: true,
        delta_sequence_masking: -0.05,
        loss_agg_mode: 'seq-mean-token-sum',
      };
      assert.deepEqual(computed, await fromLibrary('ppo', args));
    });

    it('that replace two others by default', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        '--loss',
        'gspo',
        EXAMPLE,
        '--clip-range',
        '0.01',
      );
      assert.deepEqual(computed, await fromLibrary('gspo', { clipRange: 0.01 }));
      assert.notEqual(computed.loss, (await fromLibrary('gspo')).loss);
    });

    it('that are switched off', async () => {
      assert.deepEqual(
        await evaluateJson('--loss', 'dpo', '--no-pairwise', EXAMPLE),
        await fromLibrary('dpo', { pairwise: false }),
      );
    });

    it('that are switches beyond default_args, which do not swallow a file', async () => {
      const file = fileOf(
        'expert.jsonl',
        ROWS.map((row, b) => ({ ...row, expert: b % 2 === 0 })),
      );
      const more = { expertMask: ROWS.map((_, b) => b % 2 === 0) };
      const { advantages: _, ...computed } = await evaluateJson(
        '--loss',
        'mix',
        '--use-dynamic-bsz',
        file,
        '--sft-loss-agg-mode',
        'seq-mean-token-mean',
      );
      const args = { use_dynamic_bsz: true, sft_loss_agg_mode: 'seq-mean-token-mean' };
      assert.deepEqual(computed, await fromLibrary('mix', args, ROWS, more));
    });
  });

  describe('--algorithm', () => {
    for (const name of ALGORITHM_TYPE.names()) {
      if (['ppo', 'mix', 'mix_chord', 'on_policy_distill', 'jsd'].includes(name)) continue;
      it(`${name}: the library's result to the bit, on the example`, async () => {
        const parts = partsOf(name);
        assert.deepEqual(await evaluateJson(EXAMPLE, '--algorithm', name), {
          ...(await fromObjective(ALGORITHM_TYPE.get(name).objective())),
          ...('advantageFn' in parts && { advantages: parts.advantageFn }),
          algorithm: parts,
        });
      });
    }

    const ones = (row: Row) => row.logprobs.map(() => 1);
    for (const [name, columns, more] of [
      ['ppo', { values: (row: Row) => row.entropy }, { values: ROWS.flatMap((row) => row.entropy) }],
      [
        'mix',
        { expert: (_: Row, b: number) => b % 3 === 0 },
        { expertMask: ROWS.map((_, b) => b % 3 === 0) },
      ],
      [
        'mix_chord',
        { expert: (_: Row, b: number) => b % 2 === 1, step: () => 4 },
        { expertMask: ROWS.map((_, b) => b % 2 === 1), step: 4 },
      ],
      [
        'on_policy_distill',
        { teacher_logprobs: (row: Row) => row.ref_logprobs },
        { teacherLogprob: ROWS.flatMap((row) => row.ref_logprobs) },
      ],
      [
        'jsd',
        { teacher_logprobs: (row: Row) => row.ref_logprobs },
        { teacherLogprob: ROWS.flatMap((row) => row.ref_logprobs) },
      ],
      ['rloo', { token_level_rewards: ones }, { tokenLevelRewards: ROWS.flatMap(ones) }],
    ] as const) {
      it(`${name}: likewise, with ${Object.keys(columns).join(' and ')} in the rows`, async () => {
        const file = fileOf(
          `${name}.jsonl`,
          ROWS.map((row, b) => ({
            ...row,
            ...Object.fromEntries(Object.entries(columns).map(([key, of]) => [key, of(row, b)])),
          })),
        );
        const parts = partsOf(name);
        assert.deepEqual(await evaluateJson(file, '--algorithm', name), {
          ...(await fromObjective(ALGORITHM_TYPE.get(name).objective(), ROWS, more)),
          advantages: parts.advantageFn,
          algorithm: parts,
        });
      });
    }

    it('takes its functions, coefficients and their arguments', async () => {
      const computed = await evaluateJson(
        ...[EXAMPLE, '--algorithm', 'rloo', '--policy-loss-fn', 'cispo', '--clip-range-high', '0.05'],
        ...['--enable-mask-clip', '--advantage-fn', 'grpo', '--advantage-std-threshold', '0.35'],
        ...['--advantage-duplicate-experiences', '--seed', '5', '--kl-loss-fn', 'corrected_k3'],
        ...['--kl-coef', '0.02', '--entropy-coef', '0.01', '--loss-agg-mode', 'seq-mean-token-sum'],
      );
      const objective = ALGORITHM_TYPE.get('rloo').objective({
        policy_loss_fn: 'cispo',
        policy_loss_fn_args: { clip_range_high: 0.05, enable_mask_clip: true },
        advantage_fn: 'grpo',
        advantage_fn_args: { std_threshold: 0.35, duplicate_experiences: true },
        kl_loss_fn: 'corrected_k3',
        kl_loss_fn_args: { kl_coef: 0.02 },
        entropy_loss_fn_args: { entropy_coef: 0.01 },
        loss_agg_mode: 'seq-mean-token-sum',
      });
      assert.deepEqual(computed, {
        ...(await fromObjective(objective, ROWS, {}, 5)),
        advantages: 'grpo',
        algorithm: {
          policyLossFn: 'cispo',
          advantageFn: 'grpo',
          klLossFn: 'corrected_k3',
          klCoef: 0.02,
          entropyLossFn: 'default',
          entropyCoef: 0.01,
        },
      });
      const { filtered_count, kl_loss } = computed.metrics;
      assert.ok(filtered_count! > 0 && kl_loss! > 0);
      const otherwise = await fromObjective(objective, ROWS, {}, 6);
      assert.notEqual(computed.loss, otherwise.loss);
    });

    it('keeps an option of the loss apart from those of the advantages', async () => {
      const { loss } = await evaluateJson(EXAMPLE, '--algorithm', 'topr', '--advantage-threshold', '1');
      const given = { policy_loss_fn_args: { advantage_threshold: 1 } };
      assert.equal(loss, (await fromObjective(ALGORITHM_TYPE.get('topr').objective(given))).loss);
      assert.notEqual(loss, (await fromObjective(ALGORITHM_TYPE.get('topr').objective())).loss);
    });

    it('takes a KL penalty in the reward', async () => {
      const words = ['--algorithm', 'reinforceplusplus', '--kl-penalty-fn', 'k1'];
      const computed = await evaluateJson(EXAMPLE, ...words);
      const objective = ALGORITHM_TYPE.get('reinforceplusplus').objective({ kl_penalty_fn: 'k1' });
      const { algorithm, advantages: _, ...rest } = computed;
      assert.deepEqual(rest, await fromObjective(objective));
      assert.equal(algorithm.klPenaltyFn, 'k1');
      await fails(
        1,
        [
          fileOf(
            'unrewarded.jsonl',
            ROWS.map((row) => ({ ...row, reward: undefined })),
          ),
          ...words,
        ],
        /reinforceplusplus reads the column reward: expected it in every row, or advantages/,
      );
    });

    it('takes the advantages that the file gives', async () => {
      const file = fileOf(
        'advantages.jsonl',
        ROWS.map((row, b) => ({ ...row, reward: undefined, advantages: b % 5 })),
      );
      const computed = await evaluateJson(file, '--algorithm', 'grpo');
      const advantages = ROWS.map((_, b) => b % 5);
      assert.deepEqual(computed, {
        ...(await fromObjective(ALGORITHM_TYPE.get('grpo').objective(), ROWS, { advantages })),
        advantages: 'given',
        algorithm: partsOf('grpo'),
      });
    });

    it('needs no column of a term whose coefficient is 0', async () => {
      const bare = ROWS.map((row) => ({ ...row, ref_logprobs: undefined, entropy: undefined }));
      const file = fileOf('bare-terms.jsonl', bare);
      const computed = await evaluateJson(file, '--algorithm', 'grpo', '--kl-coef', '0');
      assert.equal(computed.loss, (await fromLibrary('ppo')).loss);
      assert.ok(!('gradEntropyNorm' in computed));
    });

    it('prints a table with its parts', async () => {
      const words = ['--algorithm', 'grpo', '--entropy-coef', '0.01', '--kl-loss-fn', 'k3'];
      const { code, stdout, stderr } = await evaluate(EXAMPLE, ...words);
      const objective = ALGORITHM_TYPE.get('grpo').objective({
        kl_loss_fn: 'k3',
        entropy_loss_fn_args: { entropy_coef: 0.01 },
      });
      const { loss, metrics, gradNorm, gradEntropyNorm } = await fromObjective(objective);
      assert.equal(code, 0);
      assert.equal(stderr, '');
      assert.deepEqual(
        stdout
          .trimEnd()
          .split('\n')
          .map((line) => line.split(/ {2,}/)),
        [
          ['algorithm', 'grpo'],
          ['policy loss', 'ppo'],
          ['advantages', 'grpo'],
          ['KL loss', '0.001 × k3'],
          ['entropy loss', '0.01 × default'],
          ...Object.entries({ loss, ...metrics }).map(([name, x]) => [name, sixDigits(x)]),
          ['gradient norm', sixDigits(gradNorm)],
          ['entropy gradient norm', sixDigits(gradEntropyNorm!)],
          ['rows', String(ROWS.length)],
          ['tokens', String(TOKENS)],
        ],
      );
    });
  });

  describe('--config', () => {
    it('evaluates what a configuration of Trinity-RFT says', async () => {
      const text = readFileSync(TRINITY, 'utf8');
      assert.deepEqual(await evaluateJson('--config', TRINITY, EXAMPLE), {
        ...(await fromObjective(fromTrinityConfig(text))),
        advantages: 'grpo',
        algorithm: {
          policyLossFn: 'ppo',
          advantageFn: 'grpo',
          klLossFn: 'k3',
          klCoef: 0.01,
          entropyLossFn: 'default',
          entropyCoef: 0.005,
        },
      });
    });

    it('lets no other option have a say', () =>
      fails(
        2,
        [EXAMPLE, '--config', TRINITY, '--kl-coef', '0.1', '--seed=3', '--json'],
        /--kl-coef and --seed: not with --config/,
      ));
    it('reports an unknown key, by the file', () =>
      fails(
        2,
        [EXAMPLE, '--config', fileOf('unknown.yaml', ['algorithm:', '  policy_los_fn: ppo'])],
        /unknown\.yaml: .*policy_los_fn.*Did you mean 'policy_loss_fn'/,
      ));
    it('reports an argument as the file spells it', () =>
      fails(
        2,
        [
          EXAMPLE,
          '--config',
          fileOf('range.yaml', ['algorithm_type: grpo', 'policy_loss_fn_args: { clip_ratio_c: 1 }']),
        ],
        /range\.yaml: .*clip_ratio_c must be a number above 1/,
      ));
    it('reports a file that is not there, or no YAML', async () => {
      await fails(1, [EXAMPLE, '--config', 'nowhere.yaml'], /nowhere\.yaml: .*cannot be read: ENOENT/);
      await fails(1, [EXAMPLE, '--config', fileOf('broken.yaml', ['a: [1'])], /broken\.yaml: .*YAML/);
    });
  });

  describe('common options', () => {
    it('--csv: a line of names and one of values, in full', async () => {
      const { code, stdout, stderr } = await evaluate(EXAMPLE, '--loss', 'ppo', '--csv');
      assert.equal(code, 0);
      assert.equal(stderr, '');
      const { loss, metrics, gradNorm } = await fromLibrary('ppo');
      assert.deepEqual(parseCsv(stdout), [
        {
          name: 'ppo',
          loss: String(loss),
          rows: String(ROWS.length),
          tokens: String(TOKENS),
          gradNorm: String(gradNorm),
          advantages: 'grpo',
          ...Object.fromEntries(Object.entries(metrics).map(([name, x]) => [name, String(x)])),
        },
      ]);
    });

    it('--csv and --json: not both', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--csv', '--json'], /--csv.*cannot be used with.*--json/));

    it('--quiet: no notes', async () => {
      const { stdout, stderr } = await evaluate(
        EXAMPLE,
        '--loss',
        'gspo',
        '-q',
        '--loss-agg-mode=token-mean',
      );
      assert.doesNotMatch(stdout, /GRPO/);
      assert.equal(stderr, '');
      const loud = await evaluate(EXAMPLE, '--loss', 'gspo', '--loss-agg-mode=token-mean');
      assert.match(loud.stdout, /GRPO/);
      assert.match(loud.stderr, /^warning: GSPO was published with [^\n]*\n$/);
    });

    it("--column: columns by any other name, by batches' keys too", async () => {
      const renamed = ROWS.map(({ logprobs, old_logprobs, ...row }) => ({
        ...row,
        lp: logprobs,
        'of the sampler': old_logprobs,
      }));
      const file = fileOf('renamed.jsonl', renamed);
      const words = ['--loss', 'ppo', '--column', 'logprobs=lp', '--column=oldLogprob=of the sampler'];
      assert.deepEqual(await evaluateJson(file, ...words), await evaluateJson(EXAMPLE, '--loss', 'ppo'));
      await fails(2, [file, '--loss', 'ppo', '--column', 'logprobs'], /--column.*'logprobs=lp'/);
      await fails(2, [file, '--loss', 'ppo', '--column', 'logprbs=lp'], /logprbs.*Did you mean 'logprobs'/);
    });

    it('--backend: columns by the names of a framework', async () => {
      const verl = ROWS.map(({ logprobs, old_logprobs, ...row }) => ({
        ...row,
        log_prob: logprobs,
        old_log_probs: old_logprobs,
        response_mask: logprobs.map(() => 1),
      }));
      const file = fileOf('verl.jsonl', verl);
      const ours = await evaluateJson(EXAMPLE, '--loss', 'ppo');
      assert.deepEqual(await evaluateJson(file, '--loss', 'ppo', '--backend', 'verl'), ours);
      assert.deepEqual(await evaluateJson(file, '--loss', 'ppo'), ours);
      await fails(1, [file, '--loss', 'ppo', '--backend', 'tinker'], /logprob/);
    });

    it('--skip-bad-rows: leaves them out, names and counts them', async () => {
      const lines = ROWS.map((row) => JSON.stringify(row));
      const bad = [3, 50, 51, 52, 120, 200, 255];
      const file = fileOf(
        'bad.jsonl',
        lines.map((line, i) => (bad.includes(i) ? line.slice(0, 200) : line)),
      );
      await fails(1, [file, '--loss', 'ppo'], /bad\.jsonl, line 4: /);
      const { code, stdout, stderr } = await evaluate(file, '--loss', 'ppo', '--skip-bad-rows', '--json');
      assert.equal(code, 0);
      const good = ROWS.filter((_, i) => !bad.includes(i));
      assert.deepEqual(JSON.parse(stdout), {
        ...(await fromLibrary('ppo', {}, good)),
        advantages: 'grpo',
        skipped: 7,
      });
      const [first, ...others] = stderr.trimEnd().split('\n');
      assert.match(first!, /^skipped: .*bad\.jsonl, line 4: expected a JSON object/);
      assert.equal(others.length, 5);
      assert.equal(others.at(-1), 'skipped: 2 more');
      const parted = await evaluate(file, '--loss', 'ppo', '--skip-bad-rows', '-q', '--batch-tokens', '999');
      assert.equal(parted.stderr, '');
      assert.match(parted.stdout, /^rows skipped +7$/m);
    });

    it('--device: one that is not there is bad usage, said before files are looked at', async () => {
      await fails(
        2,
        ['nowhere.jsonl', '--loss', 'ppo', '--device', 'cuda:99'],
        /cuda:99.*expected one of cpu/,
      );
      assert.deepEqual(
        await evaluateJson(EXAMPLE, '--loss', 'ppo', '--device', 'cpu'),
        await evaluateJson(EXAMPLE, '--loss', 'ppo'),
      );
    });

    it('--batch-tokens: a whole number', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--batch-tokens', '1.5'], /--batch-tokens.*whole number/));

    it('a pattern for files', async () => {
      fileOf('shard-1.jsonl', ROWS.slice(0, 77));
      fileOf('shard-2.jsonl', ROWS.slice(77));
      assert.deepEqual(
        await evaluateJson(files.path('shard-*.jsonl'), '--loss', 'ppo'),
        await evaluateJson(EXAMPLE, '--loss', 'ppo'),
      );
      await fails(1, [files.path('shred-*.jsonl'), '--loss', 'ppo'], /shred-\*\.jsonl/);
    });
  });

  describe('bad usage exits with 2', () => {
    it('an unknown loss', () =>
      fails(
        2,
        [EXAMPLE, '--loss', 'grspo'],
        /unknown policy loss 'grspo'.*importance_sampling.*Did you mean 'gspo'\?/,
      ));
    it('neither a loss nor an algorithm nor a configuration', () =>
      fails(
        2,
        [EXAMPLE, '--clip-range', '0.2'],
        /exactly one of --loss <name>, --algorithm <name> or --config <file>.*none came/,
      ));
    it('two of them', async () => {
      await fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--algorithm=grpo'],
        /exactly one of.*--loss and --algorithm came/,
      );
      await fails(2, [EXAMPLE, '--loss', 'ppo', '--config', TRINITY], /--loss and --config came/);
    });
    it('a loss without a name', () => fails(2, [EXAMPLE, '--loss'], /--loss <name>.*missing/));
    it('no file', () => fails(2, ['--loss', 'ppo'], /files/));
    it('an unknown option', () =>
      fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--clip-rnge', '0.2'],
        /clip-rnge.*clip-range-low.*Did you mean 'clip-range'/,
      ));
    it('an unknown algorithm', () =>
      fails(2, [EXAMPLE, '--algorithm', 'grop'], /unknown algorithm 'grop'.*Did you mean 'grpo'\?/));
    it('an unknown function of an algorithm', async () => {
      await fails(
        2,
        [EXAMPLE, '--algorithm', 'grpo', '--advantage-fn', 'grop'],
        /unknown advantage function 'grop'/,
      );
      await fails(2, [EXAMPLE, '--algorithm', 'grpo', '--kl-loss-fn', 'k4'], /unknown KL function 'k4'/);
    });
    it("an option of the algorithm's that is misspelt", () =>
      fails(
        2,
        [EXAMPLE, '--algorithm', 'grpo', '--advantage-epsilom', '1'],
        /advantage-epsilom.*Did you mean '--advantage-epsilon'\?/,
      ));
    it("an option of another advantage function's", () =>
      fails(
        2,
        [EXAMPLE, '--algorithm', 'rloo', '--advantage-std-threshold', '1'],
        /advantage-std-threshold/,
      ));
    it("an algorithm's option with a loss", () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--kl-coef', '1'], /kl-coef/));
    it('a seed that is none', () =>
      fails(2, [EXAMPLE, '--algorithm', 'grpo', '--seed', '-1'], /seed.*at least 0/));
    it('a penalty in rewards that are not read', () =>
      fails(2, [EXAMPLE, '--algorithm', 'grpo', '--kl-penalty-fn', 'k1'], /kl_penalty_fn/));
    it("an option of another loss's", () =>
      fails(2, [EXAMPLE, '--loss', 'sft', '--clip-range', '0.2'], /clip-range/));
    it('an unknown backend', () =>
      fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--backend', 'verk'],
        /unknown backend 'verk'.*Did you mean 'verl'/,
      ));
    it('an unknown aggregation', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--loss-agg-mode', 'mean'], /loss-agg-mode.*token-mean.*'mean'/));
    it('a number that is none', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--clip-range', 'wide'], /--clip-range.*'wide'/));
    it('an option out of its range', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--clip-ratio-c', '1'], /clip-ratio-c must be a number above 1/));
    it('said before the files are looked at', () =>
      fails(2, ['nowhere.jsonl', '--loss', 'ppo', '--clip-ratio-c', '1'], /clip-ratio-c/));
  });

  describe('bad data exits with 1 and prints no table', () => {
    it('a malformed line', async () => {
      const lines = ROWS.map((row) => JSON.stringify(row));
      lines[136] = lines[136]!.slice(0, 100);
      const file = fileOf('malformed.jsonl', lines);
      await fails(1, [file, '--loss', 'ppo'], /malformed\.jsonl, line 137: expected a JSON object/);
      await fails(1, [file, '--loss', 'ppo', '--json'], /line 137/);
    });
    it('lists of different lengths', () =>
      fails(
        1,
        [fileOf('lengths.jsonl', [ROWS[0]!, { ...ROWS[1], old_logprobs: [-1] }]), '--loss', 'ppo'],
        /lengths\.jsonl, line 2: old_logprobs: expected a list of \d+ numbers.*length 1/,
      ));
    it('a missing file', () => fails(1, ['nowhere.jsonl', '--loss', 'ppo'], /nowhere\.jsonl.*ENOENT/));
    it('an empty file', () =>
      fails(1, [fileOf('empty.jsonl', []), '--loss', 'ppo'], /empty\.jsonl.*the file is empty/));
    it('no experts for mix', () =>
      fails(1, [EXAMPLE, '--loss', 'mix'], /mix reads the column expert.*rollouts\.jsonl has it in none/));
    for (const [algorithm, column, instead] of [
      ['ppo', 'values', ', or advantages'],
      ['mix', 'expert', ''],
      ['mix_chord', 'expert', ''],
      ['on_policy_distill', 'teacher_logprobs', ', or advantages'],
      ['jsd', 'teacher_logprobs', ', or advantages'],
    ] as const)
      it(`no ${column} for the algorithm ${algorithm}`, () =>
        fails(
          1,
          [EXAMPLE, '--algorithm', algorithm],
          new RegExp(
            `${algorithm} reads the column ${column}: expected it in every row${instead}, and .*rollouts\\.jsonl has`,
          ),
        ));
    for (const [algorithm, column, says] of [
      [
        'grpo',
        'ref_logprobs',
        /grpo reads the column ref_logprobs: expected it in every row, and .* in none/,
      ],
      ['grpo', 'old_logprobs', /grpo reads the column old_logprobs: /],
      [
        'grpo',
        'task_id',
        /grpo reads the column task_id: expected it in every row, or advantages, .*neither/,
      ],
      [
        'rloo',
        'reward',
        /rloo reads the column token_level_rewards: .*every row, or reward, or advantages, .*none of them/,
      ],
      ['multi_step_grpo', 'run_id', /multi_step_grpo reads the column run_id: /],
      ['dpo', 'ref_logprobs', /dpo reads the column ref_logprobs: /],
    ] as const)
      it(`no ${column} for the algorithm ${algorithm}`, () =>
        fails(
          1,
          [
            fileOf(
              `without-${column}.jsonl`,
              ROWS.slice(0, 16).map((row) => ({ ...row, [column]: undefined })),
            ),
            '--algorithm',
            algorithm,
          ],
          says,
        ));
    it('no entropy where it has a coefficient', () =>
      fails(
        1,
        [
          fileOf(
            'without-entropy.jsonl',
            ROWS.slice(0, 16).map((row) => ({ ...row, entropy: undefined })),
          ),
          ...['--algorithm', 'grpo', '--entropy-coef', '0.01'],
        ],
        /grpo reads the column entropy: /,
      ));
    it('neither advantages nor rewards and groups', () =>
      fails(
        1,
        [fileOf('bare.jsonl', [{ ...ROWS[0], reward: undefined }]), '--loss', 'ppo'],
        /ppo reads the column advantages.*reward and task_id/,
      ));
    it('an odd number of rows for dpo', () =>
      fails(1, [fileOf('odd.jsonl', ROWS.slice(0, 3)), '--loss', 'dpo'], /even number of rows/));
    it('steps that differ for mix_chord', () =>
      fails(
        1,
        [
          fileOf(
            'steps.jsonl',
            ROWS.slice(0, 2).map((row, step) => ({ ...row, expert: true, step })),
          ),
          '--loss',
          'mix_chord',
        ],
        /same step in all rows/,
      ));
  });
});
