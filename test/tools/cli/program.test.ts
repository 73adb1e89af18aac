/** Tests what all commands share: help, suggestions for misspelt words, exit codes, and output to a terminal. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  EXAMPLE,
  Files,
  PROGRAM,
  ROOT,
  ROWS,
  type Run,
  run,
  runIn,
  runInColumns,
  runProcess,
} from './support.js';

const COMMANDS = ['evaluate', 'compare', 'sweep', 'gradients', 'doctor', 'diff', 'list', 'devices'];

const files = new Files();
after(() => files.remove());

describe('policy-loss', () => {
  it('prints its version', async () => {
    const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    assert.deepEqual(await runProcess('--version'), { code: 0, stdout: `${version}\n`, stderr: '' });
  });

  it('prints help with the commands and examples', async () => {
    const { code, stdout } = await runProcess('--help');
    assert.equal(code, 0);
    for (const command of COMMANDS) assert.match(stdout, new RegExp(`^ +${command} .*[a-z]`, 'm'));
    assert.match(stdout, /Examples:\n +\$ policy-loss evaluate/);
    assert.match(stdout, /Exit codes: 0 done, 1 bad data, 2 bad usage/);
  });

  for (const command of COMMANDS)
    it(`prints help for ${command}, with examples that work`, async () => {
      const { code, stdout, stderr } = await run(command, '--help');
      assert.equal(code, 0);
      assert.equal(stderr, '');
      assert.match(stdout, new RegExp(`^Usage: policy-loss ${command}`));
      const unfolded = stdout.replace(/ \\\n +/g, ' ');
      const examples = [...unfolded.matchAll(/^ {2}\$ policy-loss (.*)$/gm)].map(([, words]) => words!);
      assert.ok(examples.length >= 2);
      for (const example of examples) {
        assert.ok(example.startsWith(command));
        // The files that an example names need not exist here, but the command must get as far as reading them.
        const words = example.match(/'[^']*'|\S+/g)!.map((word) => word.replaceAll("'", ''));
        const { code, stderr } = await runIn(files.directory, words);
        if (words.includes('cuda') && code === 2)
          assert.match(stderr, /^error: --device: expected one of cpu\b.*, got 'cuda'/);
        else if (code !== 0) {
          assert.match(
            stderr,
            /expected (a readable (file|configuration)|at least one matching file|a module that can be imported)/,
            example,
          );
          assert.equal(code, 1, example);
        }
      }
    });

  it('prints help and exits with 2 without a command, or with an unknown one', async () => {
    const nothing = await runProcess();
    assert.equal(nothing.code, 2);
    assert.equal(nothing.stdout, '');
    assert.match(nothing.stderr, /Usage: policy-loss/);
    const misspelt = await run('evaluat', EXAMPLE);
    assert.equal(misspelt.code, 2);
    assert.match(misspelt.stderr, /^error: Did you mean 'evaluate'\? unknown command: got 'evaluat'\n$/);
  });

  it('says that a file is missing', async () => {
    const missing = files.path('missing');
    for (const words of [
      ['evaluate', missing, '--loss', 'ppo'],
      ['doctor', missing],
      ['evaluate', EXAMPLE, '--config', missing],
      ['evaluate', EXAMPLE, '--loss-file', missing, '--loss', 'mine'],
      ['run', missing, '--out', files.directory],
    ]) {
      const { code, stderr } = await run(...words);
      assert.equal(code, 1);
      assert.match(
        stderr,
        /missing: expected a .*, got nothing: no such file or directory\n$/,
        words.join(' '),
      );
    }
  });

  it('finds unknown options before anything else that is wrong', async () => {
    for (const words of [
      ['evaluate', 'nowhere.jsonl', '--jsno'],
      ['evaluate', 'nowhere.jsonl', '--config', 'nowhere.yaml', '--jsno'],
      ['sweep', '--loss', 'ppo', '--jsno'],
      ['identify', 'nowhere.jsonl', '--jsno'],
      ['worker', '--qeue', 'redis://host'],
      ['merge', '--jsno'],
    ]) {
      const { code, stderr } = await run(...words);
      assert.equal(code, 2);
      assert.match(stderr, /^error: Did you mean '--(json|queue)'\? unknown option of /, words.join(' '));
    }
    const { stderr } = await run('evaluate', EXAMPLE, '--clip-range', '0.1');
    assert.match(stderr, /expected exactly one of --loss/);
  });

  it('lists only a few names if none is similar', async () => {
    const { stderr } = await run('evaluate', EXAMPLE, '--loss', 'xxxxxxxxxxxxxxx');
    assert.match(stderr, /^error: unknown loss: expected one of ppo, gspo, .* and \d+ more, got 'x+'\n$/);
    assert.ok(stderr.length < 250);
  });

  it('fits the width of the terminal, or 80 characters', async () => {
    const six = ['ppo', 'gspo', 'cispo', 'sapo', 'sft', 'rec'].flatMap((name) => ['--loss', name]);
    for (const words of [
      ['--help'],
      ['evaluate', '--help'],
      ['evaluate', '--loss', 'ppo', '--help'],
      ['identify', '--help'],
      ['list'],
      ['list', '--long'],
      ['list', 'gspo'],
      ['compare', EXAMPLE, ...six, '--loss', 'ppo', '--clip-range', '0.1', '--loss-agg-mode', 'token-mean'],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--micro-batches', '8'],
      ['evaluate', EXAMPLE, '--algorithm', 'grpo'],
      ['sweep', EXAMPLE, '--algorithm', 'grpo', '--clip-range', '0.1,0.2'],
      ['doctor', EXAMPLE],
      [
        ...['identify', EXAMPLE, '--logged', 'loss=-0.12', '--logged', 'ppo_kl=0.00276'],
        ...['--logged', 'pg_clipfrac=0.0122', '--loss', 'ppo', '--micro-batches', '1'],
      ],
      ['diff', EXAMPLE, EXAMPLE, ...six],
    ])
      for (const columns of [undefined, 60, 132]) {
        const { stdout } = await runInColumns(columns, ...words);
        const width = columns ?? 80;
        // A word that is longer than its column stands alone.
        const long = stdout
          .replaceAll(EXAMPLE, 'rollouts.jsonl')
          .split('\n')
          .filter((line) => [...line].length > width && /\S \S+$/.test(line));
        assert.deepEqual(long, [], `${words.join(' ')} in ${width} columns`);
        assert.ok(stdout.length > 0);
      }
  }).timeout(300_000);

  it('suggests the nearest known option in every command', async () => {
    for (const words of [
      ['devices', '--jsno'],
      ['list', '--jsno'],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--jsno'],
      ['compare', EXAMPLE, '--loss', 'ppo', '--loss', 'gspo', '--jsno'],
      ['sweep', EXAMPLE, '--loss', 'ppo', '--jsno'],
      ['gradients', EXAMPLE, '--loss', 'ppo', '--jsno'],
    ]) {
      const { code, stderr } = await run(...words);
      assert.equal(code, 2);
      assert.match(stderr, /Did you mean '?--json'?\?/, words.join(' '));
    }
  });

  it('prints the same and exits with the same code in a process of its own', async () => {
    for (const words of [
      ['evaluate', EXAMPLE, '--algorithm', 'grpo', '--json'],
      ['evaluate', 'nowhere.jsonl', '--loss', 'ppo'],
      ['evaluate', EXAMPLE, '--loss', 'gspoo'],
    ])
      assert.deepEqual(await runProcess(...words), await run(...words));
  });

  it('exits with 0 when the reader closes the pipe', async () => {
    const child = spawn(process.execPath, [PROGRAM, 'list'], { stdio: ['ignore', 'pipe', 'pipe'] });
    let stderr = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
    });
    child.stdout.destroy();
    const code = await new Promise((resolve) => child.on('close', resolve));
    assert.equal(stderr, '');
    assert.equal(code, 0);
  });
});

/** The character with which a terminal's colour codes begin. */
const ESCAPE = String.fromCharCode(0x1b);
const COLOURS = new RegExp(`${ESCAPE}\\[\\d+m`, 'g');

/** Runs the program in a pseudo-terminal, which is created by the command `script` of util-linux. */
function inTerminal(words: readonly string[], env: NodeJS.ProcessEnv = {}): Run {
  const command = [process.execPath, PROGRAM, ...words].map((word) => `'${word}'`).join(' ');
  const { status, stdout, stderr } = spawnSync('script', ['-qec', command, '/dev/null'], {
    encoding: 'utf8',
    // With CI=1, Node would not print colours.
    env: {
      ...process.env,
      ...{ TERM: 'xterm-256color', CI: undefined, NO_COLOR: undefined, FORCE_COLOR: undefined },
      ...env,
    },
  });
  return { code: status, stdout, stderr };
}

describe('policy-loss in a terminal', () => {
  before(function () {
    if (spawnSync('script', ['--version']).error) this.skip();
  });

  it('aligns and colours its tables', () => {
    for (const words of [
      // --quiet is given because a slow machine would show a progress bar otherwise.
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--quiet'],
      ['compare', EXAMPLE, '--loss', 'ppo', '--loss', 'gspo', '--quiet'],
      ['list', 'gspo'],
    ]) {
      const coloured = inTerminal(words);
      assert.equal(coloured.code, 0);
      assert.ok(coloured.stdout.includes(`${ESCAPE}[36m`));
      const plain = inTerminal(words, { NO_COLOR: '1' });
      assert.ok(!plain.stdout.includes(ESCAPE));
      // Apart from the colour codes, the coloured output must equal the plain one, so that columns stay aligned.
      assert.equal(coloured.stdout.replace(COLOURS, '').replace(/ +\r$/gm, '\r'), plain.stdout);
    }
  });

  it('wraps errors and tables between words', () => {
    for (const words of [
      ['evaluate', 'examples/rollouts.jsonl', '--loss', 'xxxxxxxxxxxxxxx'],
      ['evaluate', 'examples/rollouts.jsonl', '--loss', 'ppo', '--batch-tokens', 'many'],
      ['doctor', 'examples/rollouts.jsonl', '--quiet'],
    ]) {
      const command = [process.execPath, PROGRAM, ...words].map((word) => `'${word}'`).join(' ');
      const options = { encoding: 'utf8', cwd: ROOT, env: { ...process.env, NO_COLOR: '1' } } as const;
      const { stdout } = spawnSync('script', ['-qec', `stty cols 50; ${command}`, '/dev/null'], options);
      const lines = stdout.trimEnd().split(/\r?\n/);
      assert.ok(lines.length > 2, stdout);
      for (const line of lines) assert.ok(line.length <= 50, line);
    }
  });

  it('shows a progress bar during a long evaluation', () => {
    const many = files.write('many.jsonl', Array.from({ length: 160 }, () => ROWS).flat());
    const words = ['evaluate', many, '--loss', 'ppo', '--batch-tokens', '100000'];
    const { stdout, code } = inTerminal(words);
    assert.equal(code, 0);
    assert.match(
      stdout,
      /(reading|computing) [█░]+ \d+% \| [\d,]+ rows \| [\d.]+[KM]? tokens\/s \| (\d+:\d\d|–) left/,
    );
    // A program that a signal ends while it shows the bar could not turn line wrap on again.
    assert.ok(!stdout.includes(`${ESCAPE}[?7l`));
    assert.doesNotMatch(inTerminal([...words, '--quiet']).stdout, /tokens\/s/);
  });
});
