/**
 * Tests `policy-loss sweep`: the results of every combination of options must equal the library's. Also tests how the
 * values of a grid are parsed and combined.
 */
import assert from 'node:assert/strict';
import { ALGORITHM_TYPE, LossError, type ObjectiveConfig } from '../../../lib/index.js';
import { product, valuesOfWord } from '../../../lib/tools/cli/grid.js';
import {
  EXAMPLE,
  fails,
  fromLibrary,
  fromObjective,
  parseCsv,
  ROWS,
  run,
  runJson,
  TOKENS,
} from './support.js';

interface Point {
  options: Record<string, unknown>;
  loss: number;
  gradNorm: number;
  metrics: Record<string, number>;
}

const sweep = (...words: string[]) => runJson('sweep', EXAMPLE, ...words);

describe('policy-loss sweep', () => {
  it("prints the library's results to the bit for all combinations", async () => {
    const { name, axes, points, rows, tokens } = await sweep(
      ...[
        '--loss',
        'ppo',
        '--clip-range',
        '0.1:0.2:0.05',
        '--loss-agg-mode',
        'token-mean,seq-mean-token-mean',
      ],
      ...['--clip-ratio-c', '2'],
    );
    const ranges = [0.1, 0.15, 0.2];
    const modes = ['token-mean', 'seq-mean-token-mean'];
    assert.equal(name, 'ppo');
    assert.deepEqual([rows, tokens], [ROWS.length, TOKENS]);
    assert.deepEqual(axes, { 'clip-range': ranges, 'loss-agg-mode': modes });
    const expected: Point[] = [];
    for (const clipRange of ranges)
      for (const lossAggMode of modes) {
        const { loss, gradNorm, metrics } = await fromLibrary('ppo', {
          clipRange,
          lossAggMode,
          clipRatioC: 2,
        });
        expected.push({
          options: { 'clip-range': clipRange, 'loss-agg-mode': lossAggMode },
          loss,
          gradNorm,
          metrics: metrics as Record<string, number>,
        });
      }
    assert.deepEqual(points, expected);
  });

  it('prints the same results when computed in parts', async () => {
    const words = ['--loss', 'gspo', '--clip-range', '0.001,0.01,0.1'];
    const { points, batches } = await sweep(...words, '--batch-tokens', '700');
    assert.ok(batches > 5);
    const whole = await sweep(...words);
    points.forEach(({ loss, gradNorm }: Point, i: number) => {
      assert.ok(Math.abs(loss / whole.points[i].loss - 1) < 1e-6);
      assert.ok(Math.abs(gradNorm / whole.points[i].gradNorm - 1) < 1e-6);
    });
  });

  it('sweeps over the functions of an algorithm and their arguments', async () => {
    const { axes, points } = await sweep(
      ...['--algorithm', 'grpo', '--advantage-fn', 'grpo,rec', '--policy-loss-fn', 'ppo,cispo'],
      ...['--kl-coef', '0,0.5', '--advantage-epsilon', '0.1'],
    );
    assert.deepEqual(axes, {
      'advantage-fn': ['grpo', 'rec'],
      'policy-loss-fn': ['ppo', 'cispo'],
      'kl-coef': [0, 0.5],
    });
    assert.equal(points.length, 8);
    for (const { options, loss } of points as Point[]) {
      const config = {
        advantage_fn: options['advantage-fn'],
        advantage_fn_args: { epsilon: 0.1 },
        policy_loss_fn: options['policy-loss-fn'],
        kl_loss_fn_args: { kl_coef: options['kl-coef'] },
      } as ObjectiveConfig;
      assert.equal(loss, (await fromObjective(ALGORITHM_TYPE.get('grpo').objective(config))).loss);
    }
  });

  it('computes the advantages of each point, even if only the arguments differ', async () => {
    const words = ['--advantage-opmd-baseline', 'logavgexp', '--advantage-tau', '0.5,2'];
    const { points } = await sweep('--algorithm', 'opmd', ...words);
    const { points: functions } = await sweep(
      '--algorithm',
      'opmd',
      '--advantage-fn',
      'opmd,asymre,reinforce',
    );
    const configs: ObjectiveConfig[] = [
      ...[0.5, 2].map((tau) => ({ advantage_fn_args: { opmd_baseline: 'logavgexp', tau } })),
      ...['opmd', 'asymre', 'reinforce'].map((name) => ({ advantage_fn: name })),
    ];
    for (const [i, config] of configs.entries()) {
      const { loss } = await fromObjective(ALGORITHM_TYPE.get('opmd').objective(config));
      assert.equal([...points, ...functions][i].loss, loss);
    }
  });

  it('sweeps over switches and seeds', async () => {
    const words = ['--loss', 'cispo', '--mask-clip-range-high', '0.01', '--enable-mask-clip=true,false'];
    const { axes, points } = await sweep(...words);
    assert.deepEqual(axes, { 'enable-mask-clip': [true, false] });
    const losses = await Promise.all(
      [true, false].map((on) => fromLibrary('cispo', { maskClipRangeHigh: 0.01, enableMaskClip: on })),
    );
    assert.deepEqual(
      points.map(({ loss }: Point) => loss),
      losses.map(({ loss }) => loss),
    );
    const drawn = await sweep('--algorithm', 'rec', '--advantage-drop', 'balance', '--seed', '1:3:1');
    assert.deepEqual(drawn.axes, { seed: [1, 2, 3] });
    assert.equal(new Set(drawn.points.map(({ loss }: Point) => loss)).size, 3);
  });

  it('prints a table and CSV with a line per point', async () => {
    const words = ['--loss', 'ppo', '--clip-range', '0.1,0.3', '--no-enable-sequence-masking'];
    const { points } = await sweep(...words);
    const { stdout } = await run('sweep', EXAMPLE, ...words, '--csv');
    assert.deepEqual(
      parseCsv(stdout).map((line) => [Number(line['clip-range']), Number(line.loss), Number(line.ppo_kl)]),
      points.map(({ options, loss, metrics }: Point) => [options['clip-range'], loss, metrics.ppo_kl]),
    );
    const table = (await run('sweep', EXAMPLE, ...words)).stdout;
    assert.match(table, /^clip-range +loss +gradient norm +pg_clipfrac/);
    assert.match(table, /\n +0\.3 +-0\.\d+ /);
    assert.match(table, /\n\nThe same at every point:\npg_clipfrac_lower 0, ppo_kl 0\.00276412\n/);
    assert.match(table, new RegExp(`\n\n${ROWS.length} rows, ${TOKENS} tokens\n$`));
  });

  it('rejects invalid grids', async () => {
    const ppo = ['sweep', EXAMPLE, '--loss', 'ppo'];
    await fails(2, ppo, /expected an option with several values/);
    await fails(2, [...ppo, '--clip-range', '0.2'], /expected an option with several values/);
    await fails(2, [...ppo, '--clip-range', '0.1:0.4'], /--clip-range 0\.1:0\.4: expected start:end:step/);
    await fails(2, [...ppo, '--clip-range', '0.4:0.1:0.1'], /a step that leads from 0\.4 to 0\.1, got 0\.1/);
    await fails(2, [...ppo, '--clip-range', '0:1:0.00001'], /at most 10000 values, got 100001/);
    await fails(
      2,
      [...ppo, '--clip-range', '0.01:1:0.01', '--clip-ratio-c', '2:3:0.005'],
      /at most 10000 combinations, got 100 × 201 = 20100/,
    );
    await fails(2, [...ppo, '--clip-range', '0.1,wide'], /--clip-range.*'wide'/);
    await fails(2, [...ppo, '--clip-range', '0.1,,0.2'], /got an empty value/);
    await fails(
      2,
      [...ppo, '--enable-sequence-masking=on,off'],
      /expected true or false for a switch, got 'on'/,
    );
    await fails(2, [...ppo, '--loss-agg-mode', 'token-mean,mean'], /loss-agg-mode.*'mean'/);
    await fails(2, [...ppo, '--clip-rnage', '0.1,0.2'], /Did you mean '--clip-range'\?/);
    await fails(2, [...ppo, '--loss', 'gspo'], /expected exactly one of/);
  });

  it('prints help with the options of the named loss', async () => {
    const { code, stdout } = await run('sweep', '--loss', 'gspo', '--help');
    assert.equal(code, 0);
    assert.match(stdout, /Options of gspo:/);
    assert.match(stdout, /Examples:\n +\$ policy-loss sweep/);
  });
});

describe('values of a grid', () => {
  const values = (word: string) => valuesOfWord('--option', word, 1001);

  it('are lists and exact ranges that include their end', () => {
    assert.deepEqual(values('0.2'), ['0.2']);
    assert.deepEqual(values('a, b,c'), ['a', 'b', 'c']);
    assert.deepEqual(values('0.1:0.4:0.05'), ['0.1', '0.15', '0.2', '0.25', '0.3', '0.35', '0.4']);
    assert.deepEqual(values('0:1:0.3'), ['0', '0.3', '0.6', '0.9']);
    assert.deepEqual(values('1:-1:-0.5'), ['1', '0.5', '0', '-0.5', '-1']);
    assert.deepEqual(values('1e-4:3e-4:1e-4'), ['0.0001', '0.0002', '0.0003']);
    assert.deepEqual(values('2e2:4e2:1E+2,.5'), ['200', '300', '400', '.5']);
    assert.deepEqual(values('3:3:1'), ['3']);
    assert.equal(values('0:10:0.1').at(-1), '10');
    assert.deepEqual(
      values('0:1:0.001').map(Number).slice(0, 1000),
      Array.from({ length: 1000 }, (_, i) => Number(`${i}e-3`)),
    );
  });

  it('are rejected if invalid', () => {
    for (const word of ['1:2', '1:2:3:4', '1:2:x', ':2:1', '1:2:0', '2:1:1', '1:2:-1', '0:1:1e-9', ',', 'a,'])
      assert.throws(() => values(word), LossError, word);
    assert.throws(() => values('0:1:1e-999'), LossError);
  });

  it('are combined with the last axis varying fastest', () => {
    assert.deepEqual(product([[1, 2], [3], [4, 5]]), [
      [1, 3, 4],
      [1, 3, 5],
      [2, 3, 4],
      [2, 3, 5],
    ]);
  });
});
