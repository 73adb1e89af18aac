/** Tests rollouts from standard input, and files whose names look like options. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { EXAMPLE, Files, PROGRAM, type Run, runIn, runJson } from './support.js';

const ROLLOUTS = readFileSync(EXAMPLE, 'utf8');

let files: Files;
before(() => {
  files = new Files();
  mkdirSync(files.path('tmp'));
});
after(() => files.remove());

/** Runs the program with the given standard input. */
async function runWithInput(input: string, ...words: string[]): Promise<Run> {
  const env = { ...process.env, TMPDIR: files.path('tmp') };
  const child = spawn(process.execPath, [PROGRAM, ...words], { cwd: files.directory, env });
  const result: Run = { code: null, stdout: '', stderr: '' };
  for (const stream of ['stdout', 'stderr'] as const)
    child[stream].setEncoding('utf8').on('data', (text: string) => {
      result[stream] += text;
    });
  // The program may end before it has read everything.
  child.stdin.on('error', () => {});
  child.stdin.end(input);
  const [code] = await once(child, 'close');
  return { ...result, code };
}

describe('the file name -', () => {
  it('reads JSON lines from standard input, with every command', async () => {
    for (const words of [
      ['--loss', 'ppo'],
      ['--algorithm', 'grpo', '--report', files.path('report.html')],
    ]) {
      const { code, stdout, stderr } = await runWithInput(ROLLOUTS, 'evaluate', '-', ...words, '--json');
      assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
      assert.deepEqual(JSON.parse(stdout), await runJson('evaluate', EXAMPLE, ...words));
    }
    for (const [command, ...words] of [
      ['compare', '--loss', 'ppo', '--loss', 'sft'],
      ['sweep', '--loss', 'ppo', '--clip-range', '0.1,0.2'],
    ] as const) {
      const { stdout } = await runWithInput(ROLLOUTS, command, ...words, '--json', '-');
      assert.deepEqual(JSON.parse(stdout), await runJson(command, EXAMPLE, ...words));
    }
    const { code } = await runWithInput(ROLLOUTS, 'gradients', '-', '--loss', 'ppo', '--out', 'out.jsonl');
    assert.equal(code, 0);
    const [first] = readFileSync(files.path('out.jsonl'), 'utf8').split('\n');
    assert.equal(JSON.parse(first!).row, 1);
  });

  it('may be one of several files', async () => {
    const { stdout } = await runWithInput(ROLLOUTS, 'evaluate', EXAMPLE, '-', '--loss', 'ppo', '--json');
    assert.equal(JSON.parse(stdout).rows, 2 * ROLLOUTS.trimEnd().split('\n').length);
  });

  it('is called standard input in messages', async () => {
    const bad = `${ROLLOUTS.trimEnd()}\n{`;
    const { code, stderr } = await runWithInput(bad, 'evaluate', '-', '--loss', 'ppo');
    assert.match(stderr, /^error: standard input, line 257: expected a JSON object/);
    assert.equal(code, 1);
  });

  it('is computed in parts like a file, and leaves no copy behind', async () => {
    for (const words of [
      ['evaluate', '--loss', 'ppo'],
      ['evaluate', EXAMPLE, '--algorithm', 'grpo'],
      ['compare', '--loss', 'ppo', '--loss', 'gspo'],
    ]) {
      const [command, ...options] = [...words, '--batch-tokens', '1000', '--json'];
      const { code, stdout, stderr } = await runWithInput(ROLLOUTS, command!, '-', ...options);
      assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
      const { batches, ...result } = JSON.parse(stdout);
      assert.ok(batches > 9);
      assert.deepEqual({ batches, ...result }, await runJson(command!, EXAMPLE, ...options.slice(0, -1)));
    }
    assert.deepEqual(readdirSync(files.path('tmp')), []);
  });

  it('needs a folder for its copy', async () => {
    rmSync(files.path('tmp'), { recursive: true });
    const { code, stderr } = await runWithInput(ROLLOUTS, 'evaluate', '-', '--loss', 'ppo');
    mkdirSync(files.path('tmp'));
    assert.match(
      stderr,
      /^error: standard input: expected a folder for its copy in .*tmp, got nothing: no such file/,
    );
    assert.equal(code, 1);
  });

  it('is not the file ./- or a file that a pattern matches', async () => {
    writeFileSync(files.path('-'), ROLLOUTS);
    for (const name of ['./-', '[-]'])
      for (const words of [[name], ['--', name]]) {
        const { code, stdout } = await runIn(files.directory, [
          'evaluate',
          '--loss',
          'ppo',
          '--json',
          ...words,
        ]);
        assert.equal(code, 0);
        assert.deepEqual(JSON.parse(stdout), await runJson('evaluate', EXAMPLE, '--loss', 'ppo'));
      }
  });
});

describe('a file name that begins with a hyphen', () => {
  it('names a file if the file exists, in every command', async () => {
    for (const name of ['-rf.jsonl', '-o.jsonl', '-q.jsonl']) {
      writeFileSync(files.path(name), ROLLOUTS);
      for (const words of [
        ['evaluate', name, '--loss', 'ppo'],
        ['evaluate', '--loss', 'ppo', name],
        ['evaluate', '--loss', 'ppo', '--', name],
        ['evaluate', '--loss', 'ppo', `./${name}`],
        ['evaluate', '--loss', 'ppo', name.replace('-', '[-]')],
        ['compare', name, '--loss', 'ppo', '--loss', 'sft'],
        ['sweep', '--loss', 'ppo', '--clip-range', '0.1,0.2', name],
        ['gradients', name, '--loss', 'ppo', '--out', 'gradients.jsonl'],
        ['gradients', EXAMPLE, '--loss', 'ppo', '--out', '-out.jsonl'],
      ]) {
        const { code, stderr } = await runIn(files.directory, words);
        assert.deepEqual({ code, stderr }, { code: 0, stderr: '' }, words.join(' '));
      }
    }
    assert.ok(readFileSync(files.path('-out.jsonl')).length > 0);
  });

  it('is an unknown option otherwise', async () => {
    const { code, stderr } = await runIn(files.directory, ['evaluate', '-no.jsonl', '--loss', 'ppo']);
    assert.match(stderr, /unknown option '-no\.jsonl'/);
    assert.equal(code, 2);
  });

  it('still leaves short options alone', async () => {
    const words = ['gradients', EXAMPLE, '--loss', 'ppo', '-q', '-oattached.jsonl'];
    const { code, stderr } = await runIn(files.directory, words);
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
    assert.ok(readFileSync(files.path('attached.jsonl')).length > 0);
  });
});
