/**
 * Tests what reaches stdout and stderr: no control character from a file or from the command line, and every write that
 * fails ends in one line and an exit code.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ProgressBar } from '../../../lib/tools/cli/output.js';
import { captured } from '../../support/captured.js';
import { EXAMPLE, Files, PROGRAM, ROOT, ROWS, runWide } from './support.js';

/** Clears the screen, sets the window's title, changes the colour and reverses the direction of text. */
const HOSTILE = '\u001b[2J\u001b]0;owned\u0007\u009b31m\u202e\u2028\u2029\u2066\u007f\r\u0085\t\nerror: fake';
const SHOWN =
  '\\u001b[2J\\u001b]0;owned\\u0007\\u009b31m\\u202e\\u2028\\u2029\\u2066\\u007f\\r\\u0085\\t\\nerror: fake';
const CONTROL = /(?!\n)[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/u;

let files: Files;
before(() => {
  files = new Files();
});
after(() => files.remove());

/** Returns the bytes of a safetensors file with the given header. */
function safetensors(header: string): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(Buffer.byteLength(header)));
  return Buffer.concat([length, Buffer.from(header), Buffer.alloc(8)]);
}

describe('control characters', () => {
  const config = 'algorithm:\n  algorithm_type: grpo\n';
  const tensor = { dtype: 'F32', shape: [1, 2], data_offsets: [0, 8] };

  /** Files with control characters in all kinds of places. */
  const CONTENTS: Record<string, string | Buffer> = {
    [`name ${HOSTILE}.jsonl`]: readFileSync(EXAMPLE),
    [`name ${HOSTILE}.yaml`]: config,
    'key.jsonl': JSON.stringify({ [HOSTILE]: 1, [`${HOSTILE}2`]: 2 }),
    'value.jsonl': JSON.stringify({ logprobs: HOSTILE }),
    'element.jsonl': JSON.stringify({ logprobs: [HOSTILE] }),
    'syntax.jsonl': `{"a": ${HOSTILE}`,
    'header.csv': `"${HOSTILE}"\n1\n`,
    'cell.csv': `logprobs\n"${HOSTILE}"\n`,
    'key.safetensors': safetensors(JSON.stringify({ [HOSTILE]: tensor })),
    'dtype.safetensors': safetensors(JSON.stringify({ logprobs: { ...tensor, dtype: HOSTILE } })),
    'syntax.safetensors': safetensors(`{${HOSTILE}`),
    'value.yaml': `algorithm:\n  algorithm_type: ${JSON.stringify(HOSTILE)}\n`,
    'key.yaml': `algorithm:\n  algorithm_type: grpo\n  ${JSON.stringify(HOSTILE)}: 1\n`,
    'syntax.yaml': `algorithm: [${HOSTILE}`,
  };
  before(() => {
    for (const [name, contents] of Object.entries(CONTENTS)) writeFileSync(files.path(name), contents);
  });

  /** Runs the program and asserts that it prints control characters neither to stdout nor to stderr. */
  async function clean(...words: string[]): Promise<string> {
    const { code, stdout, stderr } = await runWide(...words);
    assert.doesNotMatch(stdout, CONTROL, words.join(' '));
    assert.doesNotMatch(stderr, CONTROL, words.join(' '));
    // A line end would let a text from a file look like a message of the program.
    assert.doesNotMatch(stdout + stderr, /^error: fake/m, words.join(' '));
    assert.notEqual(code, null);
    return stdout + stderr;
  }

  for (const name of Object.keys(CONTENTS))
    it(`are visible in messages about ${name.replace(HOSTILE, 'with control characters')}`, async () => {
      const file = files.path(name);
      if (name.endsWith('.yaml')) await clean('evaluate', EXAMPLE, '--config', file);
      else {
        await clean('evaluate', file, '--loss', 'ppo', '--skip-bad-rows');
        assert.ok((await clean('evaluate', file, '--loss', 'ppo', '--backend', 'verl')).length > 0);
      }
    });

  it('are visible as escape sequences', async () => {
    const said = await clean('evaluate', files.path('value.jsonl'), '--loss', 'ppo');
    assert.ok(said.includes(`got '${SHOWN.slice(0, 10)}`), said);
    assert.ok((await clean('evaluate', `no ${HOSTILE}`, '--loss', 'ppo')).includes(SHOWN));
  });

  it('are visible in tables, CSV and JSON', async () => {
    const config = files.path(`name ${HOSTILE}.yaml`);
    const words = ['compare', EXAMPLE, '--config', config, '--loss', 'ppo'];
    assert.ok((await clean(...words)).includes(SHOWN));
    assert.ok((await clean(...words, '--csv')).includes(SHOWN));
    const out = files.path(`out ${HOSTILE}.jsonl`);
    const gradients = ['gradients', EXAMPLE, '--loss', 'ppo', '--out', out];
    assert.ok((await clean(...gradients)).includes(SHOWN));
    assert.ok((await clean(...gradients, '--csv')).includes(SHOWN));
    // Escape sequences are part of JSON, so no information is lost there.
    assert.equal(JSON.parse(await clean(...gradients, '--json')).file, out);
  });

  it('are visible in what diff says about rows and columns that one dump lacks', async () => {
    const [{ logprobs, task_id, run_id }] = ROWS as [(typeof ROWS)[0]];
    const one = files.write(`one ${HOSTILE}.jsonl`, [{ logprobs, task_id, run_id }]);
    const two = files.write('two.jsonl', [{ logprobs, task_id, run_id: HOSTILE }]);
    const said = await clean('diff', one, two);
    assert.match(said, /^Rows only in a: 1 \(.*one \\u001b\[2J/m);
  });

  it('are visible in a progress bar', async () => {
    const { now } = performance;
    const shown = await captured(async () => {
      try {
        Object.assign(process.stderr, { isTTY: true });
        performance.now = () => 0;
        const bar = new ProgressBar(false);
        performance.now = () => 1000;
        bar.begin(HOSTILE);
        bar.advance(0.5, HOSTILE as never, 1, HOSTILE);
        bar.stop();
        return 0;
      } finally {
        performance.now = now;
      }
    });
    assert.ok(shown.stderr.includes(SHOWN.slice(0, 20)));
    for (const sequence of ['\u001b[2J', '\u001b]', '\u009b', '\u202e', '\n'])
      assert.ok(!shown.stderr.includes(sequence));
  });

  it('are visible in messages about the command line', async () => {
    for (const words of [
      [HOSTILE],
      ['list', HOSTILE],
      ['devices', `--${HOSTILE}`],
      ['evaluate', EXAMPLE, '--loss', HOSTILE],
      ['evaluate', EXAMPLE, '--loss', 'ppo', `--${HOSTILE}`],
      ['evaluate', EXAMPLE, '--loss', 'ppo', `-${HOSTILE}`],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--clip-range', HOSTILE],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--batch-tokens', HOSTILE],
      ['evaluate', EXAMPLE, '--loss', 'ppo', `--batch-tokens=${HOSTILE}`],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--device', HOSTILE],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--backend', HOSTILE],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--column', HOSTILE],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--column', `${HOSTILE}=a`],
      ['evaluate', EXAMPLE, '--loss', 'ppo', '--report', `/no ${HOSTILE}/x.html`],
      ['gradients', EXAMPLE, '--loss', 'ppo', '--out', HOSTILE],
      ['sweep', EXAMPLE, '--loss', 'ppo', '--clip-range', `1,${HOSTILE}`],
    ])
      assert.ok((await clean(...words)).includes('\\u001b'), words.join(' '));
  });

  it('are visible in the stack of an unexpected error', () => {
    // The program calls this function for its progress bar.
    const bug = `performance.now = () => { throw new Error(${JSON.stringify(HOSTILE)}); };`;
    const words = [
      '--import',
      `data:text/javascript,${encodeURIComponent(bug)}`,
      PROGRAM,
      'evaluate',
      EXAMPLE,
      '--loss',
      'ppo',
    ];
    const { status, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8' });
    assert.match(stderr, /^Error: \\u001b\[2J.*\n(?:.*\n)*? +at /);
    assert.doesNotMatch(stderr, CONTROL);
    assert.equal(status, 1);
  });

  it('are visible in reports', async () => {
    const rollouts = files.write(`report ${HOSTILE}.jsonl`, [
      { ...ROWS[0], prompt: HOSTILE, response: HOSTILE, task_id: HOSTILE },
    ]);
    const report = files.path('report.html');
    const words = ['--loss', 'sft', '--config', files.path(`name ${HOSTILE}.yaml`), '--report', report];
    await clean('compare', rollouts, ...words);
    const page = readFileSync(report, 'utf8').replace(/<(script|style)\b.*?<\/\1>/gs, '');
    // A prompt may have tabs, and HTML shows them as spaces.
    assert.doesNotMatch(page, /(?![\n\t])[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/u);
  });

  it('are made visible in one place: no other code writes to a stream', () => {
    const lib = join(ROOT, 'lib');
    for (const name of readdirSync(lib, { recursive: true, encoding: 'utf8' })) {
      if (!name.endsWith('.ts') || name === join('cli', 'streams.ts')) continue;
      const text = readFileSync(join(lib, name), 'utf8');
      assert.doesNotMatch(text, /\bstd(out|err)\.write\b|\bconsole\.\w+\(/, name);
    }
  });
});

describe('a write that fails', () => {
  /** Runs the program with a shell that sets up its streams. */
  function inShell(script: string, ...words: string[]) {
    return spawnSync('sh', ['-c', script, process.execPath, PROGRAM, ...words], {
      cwd: files.directory,
      encoding: 'utf8',
    });
  }

  const COMMANDS = [
    ['evaluate', EXAMPLE, '--loss', 'ppo', '--json'],
    ['sweep', EXAMPLE, '--loss', 'ppo', '--clip-range', '0.1,0.2', '--csv'],
    ['devices'],
    ['gradients', '--help'],
    ['--version'],
  ];

  before(function () {
    if (!existsSync('/dev/full')) this.skip();
  });

  it('to stdout ends in one line and exit code 1', () => {
    for (const words of COMMANDS) {
      const { status, stderr } = inShell('"$0" "$@" > /dev/full', ...words);
      assert.match(stderr, /^error: stdout: expected a writable stream, got an error \(ENOSPC: [^\n]*\)\n$/);
      assert.equal(status, 1);
    }
  });

  it('to stdout is also noticed if the beginning fits on the disk', () => {
    // The limit is 512 or 1,024 bytes, depending on the shell.
    const { status, stderr } = inShell('ulimit -f 1; "$0" "$@" > full.txt', 'list', '--json');
    assert.match(stderr, /^error: stdout: expected a writable stream, got an error \(EFBIG: [^\n]*\)\n$/);
    assert.equal(status, 1);
  });

  it('to stderr shows in the exit code, and results are still printed', () => {
    const bad = files.write('bad.jsonl', [...ROWS, '{']);
    const words = ['evaluate', bad, '--loss', 'ppo', '--skip-bad-rows', '--json'];
    const { status, stdout } = inShell('"$0" "$@" 2> /dev/full', ...words);
    assert.equal(JSON.parse(stdout).skipped, 1);
    assert.equal(status, 1);
    assert.equal(inShell('"$0" "$@" 2> /dev/full', 'evaluate', EXAMPLE, '--loss', 'none').status, 2);
  });

  it('to --report or --out ends in one line', () => {
    const words = [EXAMPLE, '--loss', 'ppo', '--quiet'];
    const report = inShell('"$0" "$@"', 'evaluate', ...words, '--report', '/dev/full');
    assert.match(report.stderr, /^error: --report \/dev\/full: expected a file that can be written[^\n]*\n$/);
    assert.equal(report.status, 2);
    for (const name of ['a.jsonl', 'a.jsonl.gz', 'a.safetensors', 'a.parquet']) {
      const out = inShell('ulimit -f 8; "$0" "$@"', 'gradients', ...words, '--out', name);
      assert.match(out.stderr, /^error: a\.\S+: expected a writable file, got an error [^\n]*\n$/);
      assert.equal(out.status, 1);
      assert.deepEqual(
        readdirSync(files.directory).filter((entry) => entry.includes('a.')),
        [],
      );
    }
  });

  it('to --report leaves the page before', () => {
    const words = ['evaluate', EXAMPLE, '--loss', 'ppo', '--quiet', '--report', 'r.html'];
    writeFileSync(files.path('r.html'), 'before');
    const { status, stderr } = inShell('ulimit -f 8; "$0" "$@"', ...words);
    assert.match(
      stderr,
      /^error: --report r\.html: expected a file that can be written, got an error \(EFBIG/,
    );
    assert.equal(status, 2);
    assert.equal(readFileSync(files.path('r.html'), 'utf8'), 'before');
    assert.deepEqual(
      readdirSync(files.directory).filter((entry) => entry.startsWith('.')),
      [],
    );
  });

  it('because the reader is gone is quiet', () => {
    for (const words of COMMANDS) {
      const { status, stderr } = inShell('{ "$0" "$@"; echo "code $?" >&2; } | true', ...words);
      assert.equal(stderr, 'code 0\n', words.join(' '));
      assert.equal(status, 0);
    }
  });
});
