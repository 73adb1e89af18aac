/** Tests `policy-loss doctor`: its table, JSON, CSV and page say what the checks find, and --strict sets the exit code. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { CHECKS, diagnose } from '../../../lib/tools/doctor/index.js';
import { EXAMPLE, Files, fails, ROWS, run, runJson, runWide, TOKENS } from './support.js';

describe('policy-loss doctor', () => {
  let files: Files;
  let faulty: string;
  before(() => {
    files = new Files();
    // An engine with an offset, a negative entropy, and a column that is NaN in one row.
    faulty = files.write(
      'faulty.jsonl',
      ROWS.map((row, i) => ({
        ...row,
        rollout_logprobs: row.old_logprobs.map((x) => x - 0.05),
        entropy: i === 7 ? row.entropy.map((h) => -h) : row.entropy,
      })),
    );
  });
  after(() => files.remove());

  it('prints what the library finds, also in parts', async () => {
    for (const file of [EXAMPLE, faulty]) {
      const expected = await diagnose([file]);
      assert.deepEqual(await runJson('doctor', file), expected);
      assert.deepEqual(await runJson('doctor', file, '--batch-tokens', '700'), expected);
    }
  });

  it('lists every check, and what it lacks', async () => {
    const { checks, findings, rows, tokens } = await runJson('doctor', EXAMPLE);
    assert.deepEqual([rows, tokens], [ROWS.length, TOKENS]);
    assert.deepEqual(
      checks.map(({ name }: { name: string }) => name),
      CHECKS.map(({ name }) => name),
    );
    const byName = new Map(checks.map((check: { name: string }) => [check.name, check]));
    assert.deepEqual(byName.get('rollout-offset'), {
      name: 'rollout-offset',
      ran: false,
      needs: ['rollout_logprobs', 'old_logprobs or logprobs'],
      missing: ['rollout_logprobs'],
    });
    assert.deepEqual(byName.get('entropy-negative'), {
      name: 'entropy-negative',
      ran: true,
      needs: ['entropy'],
      missing: [],
      evidence: { tokens: 0, least: 0.0975309 },
    });
    // The example is healthy.
    for (const { severity } of findings) assert.equal(severity, 'info');
  });

  it('prints a table with the most serious finding first', async () => {
    const { code, stdout, stderr } = await runWide('doctor', faulty);
    assert.equal(stderr, '');
    assert.equal(code, 0);
    assert.match(
      stdout,
      /^error {2}Entropies are negative \(entropy-negative\)\n {2}rows +1 of 256 rows: .*, line 8\n/,
    );
    assert.match(stdout, /warning {2}The trainer's .* \(rollout-offset\)/);
    assert.match(stdout, /rows: .*faulty\.jsonl, lines 1, 2, 3, 4, \d+, …\n/);
    assert.match(stdout, /evidence {3}mean difference 0\.05, /);
    assert.match(stdout, /\n1 error, 1 warning, 2 notes in \d+ checks\.\n/);
    assert.match(stdout, /Checks that need further columns:\nadvantages {3}advantages-constant, /);
    assert.match(stdout, /\n256 rows, 9164 tokens\n$/);
  });

  it('prints one line per finding as CSV', async () => {
    const { stdout } = await run('doctor', faulty, '--csv');
    const [head, first] = stdout.split('\n');
    assert.equal(head, 'severity,id,title,rows,places,evidence');
    assert.match(first!, /^error,entropy-negative,Entropies are negative,1,".*, line 8","\{""tokens"":\d+,/);
  });

  it('exits with 1 for errors and warnings with --strict only', async () => {
    assert.equal((await run('doctor', EXAMPLE, '--strict')).code, 0);
    assert.equal((await run('doctor', faulty)).code, 0);
    const { code, stdout, stderr } = await run('doctor', faulty, '--strict', '--json');
    assert.equal(code, 1);
    assert.equal(stderr, '');
    assert.deepEqual(JSON.parse(stdout), await diagnose([faulty]));
  });

  it('writes a page with every finding', async () => {
    const page = files.path('page.html');
    const { findings } = await runJson('doctor', faulty, '--report', page);
    const html = readFileSync(page, 'utf8');
    assert.match(html, /<h1>2 errors and warnings<\/h1>/);
    assert.match(html, /256 rollouts, 9,164 tokens, from .*faulty\.jsonl/);
    assert.deepEqual(
      [...html.matchAll(/id="finding-([a-z-]+)"/g)].map(([, id]) => id),
      findings.map(({ id }: { id: string }) => id),
    );
    // Histograms of the engines' difference, of the ratio, of the distance from the reference, and of the entropy.
    assert.equal(html.match(/data-chart="/g)!.length, 4);
  });

  it('reads columns under other names, and several files as one', async () => {
    const halves = [ROWS.slice(0, 128), ROWS.slice(128)].map((rows, i) =>
      files.write(
        `half_${i}.jsonl`,
        rows.map(({ entropy, ...row }) => ({ ...row, entropys: entropy.map((h) => -h) })),
      ),
    );
    const { findings, rows } = await runJson('doctor', ...halves, '--column', 'entropy=entropys');
    assert.equal(rows, ROWS.length);
    assert.deepEqual(
      findings.find(({ id }: { id: string }) => id === 'entropy-negative').rows.files,
      halves.map((file) => ({ file, rows: 128 })),
    );
  });

  it('counts rows that it skips', async () => {
    const file = files.write('bad.jsonl', [...ROWS.slice(0, 8), '{"logprobs": "none"}']);
    assert.equal((await runJson('doctor', file, '--skip-bad-rows', '--quiet')).skipped, 1);
    await fails(1, ['doctor', file], /bad\.jsonl, line 9/);
  });

  it('finds what is not finite in JSON lines, except under the mask', async () => {
    const row = '"task_id":0,"advantages":1,"logprobs":[-1,-2.5,-3]';
    const file = files.write('nan.jsonl', [
      `{${row},"old_logprobs":[-1,NaN,-3],"action_mask":[1,0,1],"reward":1}`,
      `{${row},"old_logprobs":[-Infinity,null,-3],"reward":0}`,
      `{${row},"old_logprobs":null,"action_mask":[0,0,0],"reward":null}`,
    ]);
    const { findings } = await runJson('doctor', file);
    const found = findings.find(({ id }: { id: string }) => id === 'non-finite');
    assert.deepEqual(found.evidence, { old_logprobs: 2, reward: 1 });
    assert.equal(found.rows.count, 2);
  });

  it('has nothing against a table with a number per row and no tokens', async () => {
    const table = [0.7, -0.7].map((advantages, i) => ({ task_id: 0, run_id: i, reward: 1 - i, advantages }));
    const file = files.write('completions.jsonl', table);
    assert.deepEqual((await runJson('doctor', file, '--strict')).findings, []);
    const texts = files.write(
      'texts.jsonl',
      table.map(({ reward }) => ({ input: 'a', output: 'b', score: reward, step: 1 })),
    );
    assert.deepEqual((await runJson('doctor', texts, '--strict')).findings, []);
  });

  it('has no options of losses', async () => {
    await fails(2, ['doctor', EXAMPLE, '--loss', 'ppo'], /unknown option of doctor: .*'--loss'/);
    await fails(2, ['doctor', EXAMPLE, '--device', 'cpu'], /unknown option of doctor: .*'--device'/);
    await fails(2, ['doctor'], /missing required argument 'files'/);
  });
});
