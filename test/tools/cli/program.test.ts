/** Tests what all commands share: help, suggestions for misspelt words, exit codes, and output to a terminal. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { EXAMPLE, Files, PROGRAM, ROOT, ROWS, type Run, run, runIn, runProcess } from './support.js';

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
      const examples = [...stdout.matchAll(/^ {2}\$ policy-loss (.*)$/gm)].map(([, words]) => words!);
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
    assert.match(misspelt.stderr, /Did you mean evaluate\?/);
  });

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
