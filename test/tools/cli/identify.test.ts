/** Tests `policy-loss identify`. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { EXAMPLE, fails, parseCsv, run, runJson } from './support.js';

const DUMP = fileURLToPath(
  new URL('../rollouts/fixtures/dumps/nemo-rl/train_data_step4.jsonl', import.meta.url),
);
const LOGGED = ['loss=-0.13341744288803892', 'train/grad_norm=0.03654778654942568'].flatMap((number) => [
  '--logged',
  number,
]);
const WORDS = [
  'identify',
  DUMP,
  ...LOGGED,
  '--loss',
  'ppo',
  '--loss',
  'gspo',
  '--micro-batches',
  '1,2',
  '-q',
];

describe('policy-loss identify', () => {
  it('prints the candidates as JSON', async () => {
    const { candidates, tried, perSecond, rows, tokens, wouldTellApart, notes } = await runJson(...WORDS);
    const [best] = candidates;
    assert.equal(best.rank, 1);
    assert.equal(best.loss, 'ppo');
    assert.equal(best.lossAggMode, 'token-mean');
    assert.equal(best.kl, null);
    assert.equal(best.microBatches, 1);
    assert.equal(best.matches, 2);
    assert.equal(best.logprobsFrom, 'old_logprobs');
    assert.deepEqual(Object.keys(best.logged), ['loss', 'train/grad_norm']);
    const { value, logged, error } = best.logged.loss;
    assert.equal(logged, -0.13341744288803892);
    assert.ok(Math.abs(value - logged) < 1e-6 && error < 1e-5);
    assert.ok(tried > 10 && perSecond > 0 && rows > 0 && tokens > rows);
    assert.ok(Array.isArray(wouldTellApart));
    assert.match(
      notes.join(),
      /The files have no logprobs, so old_logprobs or rollout_logprobs stand in for them/,
    );
    assert.match(notes.join(), /all ratios are 1/);
  });

  it('prints a table, with the logged numbers first', async () => {
    const { stdout, code } = await run(...WORDS, '--top', '1');
    assert.equal(code, 0);
    assert.match(stdout, /^rank +loss .*\n +logged +-0\.133417 .*\n1a +ppo token-mean/);
    assert.match(stdout, /\d+ configurations in [\d.]+ s, \d+ a second; \d+ rows, \d+ tokens/);
    const lines = parseCsv((await run(...WORDS, '--top', '1', '--csv')).stdout);
    assert.ok(lines.every(({ rank }) => rank === '1'));
  });

  it("computes GRPO's advantages if the files have none", async () => {
    const words = ['--loss', 'ppo', '-q'];
    const { loss, gradNorm, metrics } = await runJson('evaluate', EXAMPLE, ...words);
    const logged = { pg_loss: loss, grad_norm: gradNorm, pg_clipfrac: metrics.pg_clipfrac };
    const numbers = Object.entries(logged).flatMap(([name, value]) => ['--logged', `${name}=${value}`]);
    const found = await runJson('identify', EXAMPLE, ...numbers, '--micro-batches', '1', ...words);
    const [best] = found.candidates;
    assert.deepEqual([best.loss, best.lossAggMode, best.matches], ['ppo', 'token-mean', 3]);
    assert.match(found.notes.join(), /no advantages, so GRPO's are computed/);
  });

  it('refuses wrong arguments', async () => {
    await fails(2, ['identify', EXAMPLE], /--logged/);
    await fails(
      2,
      ['identify', EXAMPLE, '--logged', 'loss'],
      /Expected a name and a number, such as 'loss=0\.0336'/,
    );
    await fails(2, ['identify', EXAMPLE, '--logged', 'loss=x'], /Expected a name and a number/);
    await fails(2, ['identify', EXAMPLE, '--logged', 'loss=1', '--loss', 'ppoo'], /Did you mean 'ppo'/);
    await fails(2, ['identify', EXAMPLE, '--logged', 'loss=1', '--trainer', 'x'], /--trainer/);
    await fails(2, ['identify', EXAMPLE, '--logged', 'loss=1', '--top', '0'], /at least 1/);
    await fails(2, ['identify', EXAMPLE, '--logged', 'loss=1', '--tolerance', '2'], /between 0 and 1/);
  });
});
