/**
 * Tests losses that the command line itself states: `--loss-expr TEXT` with `--set NAME=NUMBER`, in every command that
 * computes losses. The results must equal the library's to the bit.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { ADVANTAGE_FN, type ExpressionOptions, lossFromExpression } from '../../../lib/index.js';
import {
  batchOf,
  EXAMPLE,
  Files,
  fails,
  fromLibrary,
  norm,
  ROWS,
  run,
  runJson,
  runWide,
  TOKENS,
} from './support.js';

const CLIPPED = 'max(-A*r, -A*clip(r, 1-low, 1+high))';
const SET = ['--set', 'low=0.2', '--set', 'high=0.28'];

type Options = ExpressionOptions<string>;

/** Computes an expression on the example rollouts with the library, with GRPO's advantages. */
async function computed(text: string, options: Options = {}) {
  const batch = batchOf(ROWS);
  const { advantages } = ADVANTAGE_FN.create('grpo').computeSync(batch);
  const { loss, grad } = await lossFromExpression(text, options).compute(
    { ...batch, advantages },
    { grad: true },
  );
  return { loss, grad: grad!, gradNorm: norm(grad!) };
}

describe('policy-loss --loss-expr', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  const evaluate = (...words: string[]) => runJson('evaluate', EXAMPLE, '--loss-expr', ...words);

  it("evaluate prints the library's result to the bit", async () => {
    const { loss, gradNorm } = await computed(CLIPPED, { options: { low: 0.2, high: 0.28 } });
    assert.deepEqual(await evaluate(CLIPPED, ...SET), {
      name: CLIPPED,
      loss,
      metrics: {},
      rows: ROWS.length,
      tokens: TOKENS,
      gradNorm,
      advantages: 'grpo',
    });
  });

  it('is differentiated by logprob, values or rewards', async () => {
    const rows = ROWS.slice(0, 8).map((row, i) => ({
      logprobs: row.logprobs,
      values: row.entropy.map((x) => x / 2),
      returns: row.entropy.map((x) => x - (i % 3)),
      reward: row.reward,
    }));
    const file = files.write('values.jsonl', rows);
    const cuSeqlens = [0];
    for (const { values } of rows) cuSeqlens.push(cuSeqlens.at(-1)! + values.length);
    const batch = {
      cuSeqlens,
      logprob: rows.flatMap((row) => row.logprobs),
      values: rows.flatMap((row) => row.values),
      returns: rows.flatMap((row) => row.returns),
      actionMask: new Uint8Array(cuSeqlens.at(-1)!).fill(1),
      rewards: rows.map((row) => row.reward),
    };
    const ofRewards = rows.map(() => ({ logprobs: [0] }));
    for (const [text, variable, rest] of [
      ['0.5*square(value - returns)', 'values', []],
      ['(lp - 1)*value', 'values', ['--variable', 'values']],
      ['(lp - 1)*value', 'logprob', []],
      ['-logsigmoid(chosen(reward) - rejected(reward))', 'rewards', []],
    ] as const) {
      const words = ['evaluate', file, '--loss-expr', text, ...rest];
      const fn = lossFromExpression(text, { variable });
      const { loss, ...result } = await fn.compute(batch, { grad: true });
      const [grad] = Object.values(result).filter((x) => (x as unknown) instanceof Float32Array);
      const printed = await runJson(...words);
      assert.deepEqual(
        [printed.loss, printed.gradNorm, printed.variable ?? 'logprob'],
        [loss, norm(grad as unknown as Float32Array, variable === 'rewards' ? ofRewards : rows), variable],
      );
    }
    const choices = /--variable <name>.* Allowed choices are logprob, values, rewards/;
    await fails(2, ['evaluate', file, '--loss-expr', 'value', '--variable', 'entropy'], choices);
  });

  it('prints the norm of the gradient with respect to the entropy', async () => {
    const text = '-A*r - c*H';
    const batch = batchOf(ROWS);
    const { advantages } = ADVANTAGE_FN.create('grpo').computeSync(batch);
    const fn = lossFromExpression(text, { options: { c: 0.1 } });
    const { gradEntropy } = await fn.compute({ ...batch, advantages }, { grad: true, gradEntropy: true });
    const words = [text, '--set', 'c=0.1'];
    const whole = await evaluate(...words);
    assert.equal(whole.gradEntropyNorm, norm(gradEntropy!));
    assert.ok(whole.gradEntropyNorm > 0);
    const inParts = await evaluate(...words, '--batch-tokens', '700');
    assert.ok(Math.abs(inParts.gradEntropyNorm / whole.gradEntropyNorm - 1) < 1e-6);
    const { stdout } = await run('evaluate', EXAMPLE, '--loss-expr', ...words);
    assert.match(stdout, /\nentropy gradient norm +[\d.]+\n/);
    assert.match(stdout, /gradient with respect to the entropy \(H\)[^.]*\.[^.]*gradEntropy\./);
    assert.equal((await evaluate('-A*r')).gradEntropyNorm, undefined);
    assert.equal((await evaluate('-A*r - 0.1*sg(H)')).gradEntropyNorm, undefined);
  });

  it('accepts every aggregation', async () => {
    for (const lossAggMode of ['token-mean', 'seq-mean-token-sum', 'seq-mean-token-sum-norm'] as const) {
      const { loss } = await evaluate('-A*exp(row_mean(d))', '--loss-agg-mode', lossAggMode);
      assert.equal(loss, (await computed('-A*exp(row_mean(d))', { lossAggMode })).loss, lossAggMode);
    }
  });

  it('shows an expression under its name, or under the beginning of its text', async () => {
    assert.equal((await evaluate(' my-loss : -A*r')).name, 'my-loss');
    assert.equal((await evaluate('A > 0 ? -A*r : -A*r')).name, 'A > 0 ? -A*r : -A*r');
    const long = `-A*r${' + 0*square(d)'.repeat(10)}`;
    assert.equal((await evaluate(`  ${long}`)).name, `${long.slice(0, 47)}…`);
  });

  it('prints the same results when computed in parts', async () => {
    const text = '-A*exp(row_mean(d)) + 0.1*square(d)';
    const whole = await evaluate(text);
    const { loss, gradNorm, batches } = await evaluate(text, '--batch-tokens', '700');
    assert.ok(batches > 5);
    assert.equal(loss, whole.loss);
    assert.ok(Math.abs(gradNorm / whole.gradNorm - 1) < 1e-6);
  });

  it('computes reductions over the batch only if all rows are in one part', async () => {
    const text = '-A*r/(batch_max(abs(A)) + 1e-6)';
    assert.equal((await evaluate(text)).loss, (await computed(text)).loss);
    await fails(
      2,
      ['evaluate', EXAMPLE, '--loss-expr', `scaled: ${text}`, '--batch-tokens', '700'],
      /scaled reduces over all rows.*--batch-tokens: expected at least 9164, .*, got 700/,
    );
  });

  it('compare shows expressions beside built-in losses', async () => {
    const words = [
      ...['--loss', 'ppo', '--clip-range-low', '0.2', '--clip-range-high', '0.28', '--clip-ratio-c', '1e6'],
      ...['--loss-expr', CLIPPED, ...SET],
      ...['--loss-expr', `half: ${CLIPPED}`, '--set', 'low=0.1', '--set=high=0.14'],
    ];
    const { subjects, cosines } = await runJson('compare', EXAMPLE, ...words);
    const [builtIn, same, half] = subjects;
    assert.deepEqual(
      subjects.map(({ name, options }: { name: string; options: object }) => [name, options]),
      [
        ['ppo', { 'clip-range-low': 0.2, 'clip-range-high': 0.28, 'clip-ratio-c': 1e6 }],
        [CLIPPED, { low: 0.2, high: 0.28 }],
        ['half', { low: 0.1, high: 0.14 }],
      ],
    );
    assert.ok(Math.abs(same.loss - builtIn.loss) < 1e-6 * Math.abs(builtIn.loss), `${same.loss}`);
    assert.ok(Math.abs(same.gradNorm / builtIn.gradNorm - 1) < 1e-6, `${same.gradNorm}`);
    assert.ok(cosines[0][1] > 1 - 1e-9 && cosines[0][2] < 1 - 1e-4, `${cosines[0]}`);
    assert.equal(half.loss, (await computed(CLIPPED, { options: { low: 0.1, high: 0.14 } })).loss);

    const { stdout } = await runWide('compare', EXAMPLE, ...words);
    assert.match(stdout, / ppo +max\(-A\*r, -A\*clip\(r, 1-low, 1\+high\)\) +half\n/);
    assert.match(stdout, / --set high=0\.28 +--set high=0\.14\n/);
  });

  it('sweep varies the numbers of an expression', async () => {
    const words = ['--loss-expr', `mine: ${CLIPPED}`, '--set', 'low=0.1:0.3:0.1', '--set', 'high=0.28,0.2'];
    const { name, axes, points } = await runJson('sweep', EXAMPLE, ...words, '--loss-agg-mode', 'token-mean');
    assert.equal(name, 'mine');
    assert.deepEqual(axes, { low: [0.1, 0.2, 0.3], high: [0.28, 0.2] });
    assert.equal(points.length, 6);
    for (const { options, loss, gradNorm } of points) {
      const expected = await computed(CLIPPED, { options });
      assert.deepEqual([loss, gradNorm], [expected.loss, expected.gradNorm], JSON.stringify(options));
    }
    await fails(
      2,
      ['sweep', EXAMPLE, '--loss-expr', '-a*A*r', '--set', 'a=1:2'],
      /--set a 1:2: expected start:end:step/,
    );
    await fails(2, ['sweep', EXAMPLE, '--loss-expr', '-a*A*r', '--set', 'a=1,b'], /--set .*'a=b' is invalid/);
  });

  it("gradients writes the library's gradients", async () => {
    const out = files.path('gradients.jsonl');
    const said = await runJson('gradients', EXAMPLE, '--loss-expr', CLIPPED, ...SET, '--out', out);
    const { loss, grad } = await computed(CLIPPED, { options: { low: 0.2, high: 0.28 } });
    assert.deepEqual([said.name, said.loss], [CLIPPED, loss]);
    const rows = readFileSync(out, 'utf8').trimEnd().split('\n');
    const written = Float32Array.from(rows.flatMap((row) => JSON.parse(row).grad));
    // JSON has no −0.
    assert.deepEqual(
      written,
      grad.map((g) => g + 0),
    );
  });

  describe('--report', () => {
    const report = async (...words: string[]) => {
      const out = files.path('report.html');
      const { code, stderr } = await run('evaluate', EXAMPLE, ...words, '--report', out, '--quiet');
      assert.equal(code, 0, stderr);
      return readFileSync(out, 'utf8');
    };
    /** Returns the rows of the table of curve values: ratio, then loss and gradient for A = 1 and A = −1. */
    const valuesOf = (page: string) =>
      [...page.matchAll(/<tr><th scope="row">([\d.]+)<\/th>((?:<td>[^<]*<\/td>){4})<\/tr>/g)].map(
        ([, ratio, cells]) => [ratio, ...[...cells!.matchAll(/<td>([^<]*)/g)].map(([, value]) => value)],
      );

    it('draws the same curves as for the built-in loss', async () => {
      const page = await report('--loss-expr', CLIPPED, ...SET);
      const values = valuesOf(page);
      const range = ['--clip-range-low', '0.2', '--clip-range-high', '0.28', '--clip-ratio-c', '1e6'];
      assert.equal(values.length, 12);
      assert.deepEqual(values, valuesOf(await report('--loss', 'ppo', ...range)));
      assert.ok(
        page.includes(`<code>${CLIPPED}</code> <code>--set low=0.2</code> <code>--set high=0.28</code>`),
      );
    });

    it('draws no curves if the loss depends on more than ratio and advantage', async () => {
      const page = await report('--loss-expr', '-A*r + 0.1*square(lp-ref)');
      assert.deepEqual(valuesOf(page), []);
      assert.match(page, /This loss is not a function of a token’s ratio and advantage/);
    });

    it('shows the text of an expression as text', async () => {
      const page = await report('--loss-expr', '-A*(r<2&&r>0)*r');
      assert.ok(page.includes('-A*(r&lt;2&amp;&amp;r&gt;0)*r'));
    });
  });

  it('is described in the help', async () => {
    const { stdout } = await run('evaluate', '--loss-expr', CLIPPED, '--help');
    assert.match(stdout, /Options of an expression:\n +--set <name=number>/);
    assert.match(stdout, /--loss-agg-mode <value>/);
    for (const name of ['rollout_logprob', 'logsigmoid', 'batch_mean'])
      assert.ok(stdout.includes(name), name);
  });

  describe('bad usage exits with 2', () => {
    const refused = (text: string, words: string[], ...says: RegExp[]) =>
      fails(2, ['evaluate', EXAMPLE, '--loss-expr', text, ...words], ...says);

    it('an error in the text, with its place', async () => {
      await refused(
        '-A*rr',
        [],
        /^error: Did you mean 'r'\? --loss-expr: unknown name: got 'rr' at character 4\..*\n {2}-A\*rr\n {5}\^\n$/,
      );
      await refused('mine: -A*rr', [], /got 'rr' at character 10/);
      await refused('max(A', [], /--loss-expr: .*got the end of the text at character 6/);
      await refused('clip(r, 1)', [], /3 arguments .*clip, got 2 at character 1/);
      await refused('constructor', [], /unknown name.*'constructor'/);
      await refused('A; A', [], /--loss-expr: /);
      await refused('', [], /an empty text/);
    });
    it('a name without a number', async () => {
      await refused(
        CLIPPED,
        ['--set', 'low=0.2'],
        /unknown name.*got 'high' at character 31\. To give high a number, add --set high=…\n/,
      );
      await refused(CLIPPED, ['--set', 'low=0.2', '--set', 'hihg=0.2'], /--set hihg: expected a name that/);
    });
    it('a wrong value', async () => {
      for (const value of ['low', 'low=', '=1', 'low=a', 'low=1,2'])
        await refused(
          '-A*r*low',
          ['--set', value],
          /--set <name=number>.*is invalid\. Expected a name and a number/,
        );
      await refused('-A*r*low', ['--set', 'low=Infinity'], /--set low: expected a finite number/);
      await refused('-A*r', ['--set', 'r=1'], /--set r: expected a name that no column/);
      await refused('-A*r', ['--loss-agg-mode', 'mean'], /expected one of token-mean/);
    });
    it('an option of another loss', () =>
      refused('-A*r', ['--clip-range', '0.2'], /unknown option of --loss-expr: .*'--clip-range'/));
    it('no text', () => fails(2, ['evaluate', EXAMPLE, '--loss-expr'], /--loss-expr <text>.*missing/));
    it('two losses', () => refused('-A*r', ['--loss', 'ppo'], /got --loss-expr and --loss/));
  });

  it('reports a column that the files lack, by its name in the files', () =>
    fails(1, ['evaluate', EXAMPLE, '--loss-expr', '-A*exp(old-rollout)*r'], /rollout_logprobs: expected/));

  it('gives the same result as the built-in loss that it restates', async () => {
    const { loss, gradNorm } = await fromLibrary('importance_sampling');
    const ours = await evaluate('-A*exp(clip(d, -20, 20))');
    assert.ok(Math.abs(ours.loss - loss) < 1e-6 * Math.abs(loss));
    assert.ok(Math.abs(ours.gradNorm / gradNorm - 1) < 1e-6);
  });
});
