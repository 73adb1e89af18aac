/** The program around its commands: help, misspelt words, exit codes, and what a terminal is shown. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { EXAMPLE, Files, PROGRAM, ROOT, ROWS, type Run, run, runIn } from './support.js';

const COMMANDS = ['evaluate', 'compare', 'sweep', 'gradients', 'list', 'devices'];

const files = new Files();
after(() => files.remove());

describe('policy-loss', () => {
  it('tells its version', async () => {
    const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    assert.deepEqual(await run('--version'), { code: 0, stdout: `${version}\n`, stderr: '' });
  });

  it('helps, with the commands and examples', async () => {
    const { code, stdout } = await run('--help');
    assert.equal(code, 0);
    for (const command of COMMANDS) assert.match(stdout, new RegExp(`^ +${command} .*[a-z]`, 'm'));
    assert.match(stdout, /Examples:\n +\$ policy-loss evaluate/);
    assert.match(stdout, /Exit codes: 0 done, 1 bad data, 2 bad usage/);
  });

  for (const command of COMMANDS)
    it(`helps with ${command}, with examples that are as they say`, async () => {
      const { code, stdout, stderr } = await run(command, '--help');
      assert.equal(code, 0);
      assert.equal(stderr, '');
      assert.match(stdout, new RegExp(`^Usage: policy-loss ${command}`));
      const examples = [...stdout.matchAll(/^ {2}\$ policy-loss (.*)$/gm)].map(([, words]) => words!);
      assert.ok(examples.length >= 2);
      for (const example of examples) {
        assert.ok(example.startsWith(command));
        // What they name is not there, and they have come so far as to look for it.
        const words = example.split(' ').map((word) => word.replaceAll("'", ''));
        const { code, stderr } = await runIn(files.directory, words);
        if (words.includes('cuda') && code === 2) assert.match(stderr, /device 'cuda' is not there/);
        else if (code !== 0) {
          assert.match(stderr, /expected a readable file|cannot be read|expected at least one matching file/, example);
          assert.equal(code, 1, example);
        }
      }
    });

  it('explains itself and exits with 2 when called with nothing, or with a command that is not there', async () => {
    const nothing = await run();
    assert.equal(nothing.code, 2);
    assert.equal(nothing.stdout, '');
    assert.match(nothing.stderr, /Usage: policy-loss/);
    const misspelt = await run('evaluat', EXAMPLE);
    assert.equal(misspelt.code, 2);
    assert.match(misspelt.stderr, /Did you mean evaluate\?/);
  });

  it('names the nearest of an option that is not there, in every command', async () => {
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

  it('ends in peace when nobody reads on', async () => {
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

/** What makes a terminal change colour. */
const ESCAPE = String.fromCharCode(0x1b);
const COLOURS = new RegExp(`${ESCAPE}\\[\\d+m`, 'g');

/** Runs the program in a terminal of its own, which util-linux' script makes. */
function inTerminal(words: readonly string[], env: NodeJS.ProcessEnv = {}): Run {
  const command = [process.execPath, PROGRAM, ...words].map((word) => `'${word}'`).join(' ');
  const { status, stdout, stderr } = spawnSync('script', ['-qec', command, '/dev/null'], {
    encoding: 'utf8',
    // Node takes a terminal of a CI machine for one without colours.
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
      ['evaluate', EXAMPLE, '--loss', 'ppo'],
      ['compare', EXAMPLE, '--loss', 'ppo', '--loss', 'gspo'],
      ['list', 'gspo'],
    ]) {
      const coloured = inTerminal(words);
      assert.equal(coloured.code, 0);
      assert.ok(coloured.stdout.includes(`${ESCAPE}[36m`));
      const plain = inTerminal(words, { NO_COLOR: '1' });
      assert.ok(!plain.stdout.includes(ESCAPE));
      // Colours take no room.
      assert.equal(coloured.stdout.replace(COLOURS, '').replace(/ +\r$/gm, '\r'), plain.stdout);
    }
  });

  it('shows how far long work has come, and nothing of it in the end', () => {
    const many = files.write('many.jsonl', Array.from({ length: 160 }, () => ROWS).flat());
    const words = ['evaluate', many, '--loss', 'ppo', '--batch-tokens', '100000'];
    const { stdout, code } = inTerminal(words);
    assert.equal(code, 0);
    assert.match(
      stdout,
      /(reading|computing) [█░]+ \d+% \| [\d,]+ rows \| [\d.]+[KM]? tokens\/s \| (\d+:\d\d|–) left/,
    );
    assert.doesNotMatch(inTerminal([...words, '--quiet']).stdout, /tokens\/s/);
  });
});
