/**
 * Tests that no output option can destroy a file that the command reads, and that a program that ends early leaves no
 * temporary folder.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  copyFileSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { makeTemporaryFolder, removeTemporaryFolders } from '../../../lib/tools/rollouts/write/temporary.js';
import { EXAMPLE, Files, fails, PROGRAM, ROWS, run, TRINITY } from './support.js';

const ROLLOUTS = readFileSync(EXAMPLE);
const FIXTURES = new URL('../rollouts/fixtures/', import.meta.url);

describe('an output file that is also read', () => {
  let files: Files;
  let input: string;
  beforeEach(() => {
    files = new Files();
    input = files.path('in.jsonl');
    writeFileSync(input, ROLLOUTS);
  });
  afterEach(() => files.remove());

  /** Asserts that every command with an output option refuses this output and leaves the input as it is. */
  async function refused(inputs: readonly string[], output: string, read = input): Promise<void> {
    const before = readFileSync(read);
    for (const words of [
      ['evaluate', ...inputs, '--loss', 'ppo', '--report', output],
      ['compare', ...inputs, '--loss', 'ppo', '--loss', 'sft', '--report', output],
      ['doctor', ...inputs, '--report', output],
      ...(output.endsWith('.jsonl') ? [['gradients', ...inputs, '--loss', 'ppo', '--out', output]] : []),
    ]) {
      await fails(
        2,
        words,
        /^error: --(out|report) .*: expected a file other than the files that are read, got /,
      );
      assert.deepEqual(readFileSync(read), before);
    }
    assert.deepEqual(
      readdirSync(files.directory).filter((name) => name.startsWith('.')),
      [],
    );
  }

  it('is refused under its own name and under other names', async () => {
    await refused([input], input);
    await refused([EXAMPLE, input], input);
    await refused([input], join(files.directory, '..', basename(files.directory), 'in.jsonl'));
  });

  it('is refused as a symbolic link or a hard link, on either side', async () => {
    const [soft, chain, hard] = ['soft.jsonl', 'chain.jsonl', 'hard.jsonl'].map((name) =>
      files.path(name),
    ) as [string, string, string];
    symlinkSync(input, soft);
    symlinkSync(soft, chain);
    linkSync(input, hard);
    for (const link of [soft, chain, hard]) {
      await refused([input], link);
      await refused([link], input);
    }
    assert.ok(statSync(input).isFile());
  });

  it('is refused if a pattern matches it', async () => {
    writeFileSync(files.path('in-2.jsonl'), ROLLOUTS);
    await refused([files.path('*.jsonl')], input);
  });

  it('is refused for every format, and for the files that belong to a database', async () => {
    for (const name of ['rollouts.csv', 'stored.npz', 'padded.safetensors', 'rollouts.sqlite']) {
      const copy = files.path(name);
      copyFileSync(new URL(name, FIXTURES), copy);
      await refused([copy], copy, copy);
    }
    const database = files.path('rollouts.sqlite');
    await refused([`${database}#rollouts`], database, database);
    for (const ending of ['-wal', '-journal']) {
      writeFileSync(database + ending, '');
      await refused([`${database}#rollouts`], database + ending, database + ending);
    }
  });

  it('is refused if it is the configuration', async () => {
    const config = files.path('trinity.yaml');
    copyFileSync(TRINITY, config);
    const words = ['evaluate', input, '--config', config, '--report', config];
    await fails(2, words, /--report .*: expected a file other than/);
    assert.deepEqual(readFileSync(config), readFileSync(TRINITY));
  });

  it('is refused if it is standard input', async () => {
    const words = ['gradients', '-', '--loss', 'ppo', '--out', input];
    const child = spawn(process.execPath, [PROGRAM, ...words], {
      stdio: [openSync(input, 'r'), 'ignore', 'pipe'],
    });
    let stderr = '';
    child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
    });
    const [code] = await once(child, 'close');
    assert.match(stderr, /^error: --out .*, got the same file as standard input\n$/);
    assert.equal(code, 2);
    assert.deepEqual(readFileSync(input), ROLLOUTS);
  });

  it('is replaced as a whole, behind a link too', async () => {
    const [page, link] = [files.path('page.html'), files.path('link.html')];
    writeFileSync(page, 'before');
    const { ino } = statSync(page);
    symlinkSync(page, link);
    const { code } = await run('evaluate', input, '--loss', 'ppo', '--quiet', '--report', link);
    assert.equal(code, 0);
    assert.ok(lstatSync(link).isSymbolicLink());
    assert.match(readFileSync(page, 'utf8'), /^<!doctype html>/i);
    assert.notEqual(statSync(page).ino, ino);
  });

  it('may replace any other file', async () => {
    const other = files.path('other.jsonl');
    copyFileSync(input, other);
    const { code } = await run('gradients', input, '--loss', 'ppo', '--out', other);
    assert.equal(code, 0);
    assert.notDeepEqual(readFileSync(other), ROLLOUTS);
  });
});

describe('temporary folders', () => {
  let files: Files;
  let many: string;
  before(() => {
    files = new Files();
    many = files.write('many.jsonl', Array.from({ length: 16 }, () => ROWS).flat());
  });
  after(() => files.remove());

  /** Starts writing gradients, and returns as soon as the temporary folder exists. */
  async function writing(format: string, folder: string) {
    const out = join(folder, `gradients.${format}`);
    const words = ['gradients', many, '--loss', 'ppo', '--batch-tokens', '2000', '--out', out];
    const child = spawn(process.execPath, [PROGRAM, ...words], { stdio: 'ignore' });
    const ended = once(child, 'close');
    while (child.exitCode === null && readdirSync(folder).length === 0) await sleep(1);
    return { child, ended };
  }

  for (const signal of ['SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM'] as const)
    it(`are removed at ${signal}`, async () => {
      for (const [format, delay] of [
        ['jsonl', 0],
        ['jsonl.gz', 150],
        ['safetensors', 5],
        ['parquet', 40],
      ] as const) {
        const folder = files.path(`${signal}-${format}`);
        mkdirSync(folder);
        const { child, ended } = await writing(format, folder);
        await sleep(delay);
        child.kill(signal);
        const [code, by] = await ended;
        const left = readdirSync(folder).filter((name) => name.startsWith('.'));
        assert.deepEqual(left, [], `${format} after ${delay} ms`);
        // On a fast machine, the program may have ended before the signal.
        if (code === null) assert.equal(by, signal);
        else assert.equal(code, 0);
      }
    });

  it('are removed while other threads create files in them', async () => {
    const folder = makeTemporaryFolder(files.path('.busy-'));
    const ends = new Int32Array(new SharedArrayBuffer(4));
    const create = `
      const { threadId, workerData } = require('node:worker_threads');
      const { writeFileSync } = require('node:fs');
      const { folder, ends } = workerData;
      let last = Infinity;
      try {
        for (let i = 0; Date.now() < last; i++) {
          writeFileSync(folder + '/' + threadId + '-' + i, '');
          if (last === Infinity && Atomics.load(ends, 0)) last = Date.now() + 200;
        }
      } catch {}`;
    const given = { eval: true, workerData: { folder, ends } };
    const workers = Array.from({ length: 4 }, () => new Worker(create, given));
    const ended = Promise.all(workers.map((worker) => once(worker, 'exit')));
    while (readdirSync(folder).length < 200) await nextTurn();
    Atomics.store(ends, 0, 1);
    removeTemporaryFolders();
    assert.equal(existsSync(folder), false);
    await ended;
    assert.equal(existsSync(folder), false);
  });
});
