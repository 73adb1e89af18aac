// Measures how the command line handles a large file. Writes 2 GB of rollouts into a temporary folder, runs the built
// command line on them in its own process, and prints its speed and its peak memory. The memory must not grow with the
// file, so the run fails if the peak is above 300 MB.
//
//   npm run build:ts && npx tsx bench/large-file.ts [--gigabytes 2] [--format jsonl|jsonl.gz|csv]
//       [-- options of the command 'evaluate']
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { createGzip } from 'node:zlib';
import { generator } from '../test/support/random.js';

const MOST_MEMORY = 300e6;

const { values: flags, positionals } = parseArgs({
  options: {
    gigabytes: { type: 'string', default: '2' },
    format: { type: 'string', default: 'jsonl' },
  },
  allowPositionals: true,
});
const options = positionals.length > 0 ? positionals : ['--loss', 'ppo'];

// The seed is fixed, so that every run writes the same file.
const random = generator(1).uniform;

/** Makes a rollout with random values and 100 to 1,899 tokens. textOf() adds the task_id. */
function makeRow(): Record<string, unknown> {
  const tokens = 100 + Math.floor(1800 * random());
  const list = (value: (t: number) => number) =>
    Array.from({ length: tokens }, (_, t) => Number(value(t).toPrecision(6)));
  const old = list(() => -3 * random());
  return {
    prompt: 'What is asked. '.repeat(20),
    response: 'said '.repeat(tokens),
    reward: Number(random().toFixed(3)),
    logprobs: list((t) => old[t]! + 0.4 * (random() - 0.5)),
    old_logprobs: old,
    ref_logprobs: list((t) => old[t]! + 0.4 * (random() - 0.5)),
  };
}

/**
 * Yields the lines of the file until they have `bytes` bytes in total. Each line is a random choice from 512 rollouts.
 * Eight successive lines have the same task_id.
 */
function* textOf(bytes: number, csv: boolean): Generator<string> {
  const rows = Array.from({ length: 512 }, makeRow);
  const cell = (value: unknown) =>
    typeof value === 'number'
      ? String(value)
      : `"${typeof value === 'string' ? value : JSON.stringify(value)}"`;
  const bodies = rows.map((row) =>
    csv ? Object.values(row).map(cell).join(',') : JSON.stringify(row).slice(1),
  );
  if (csv) yield `task_id,${Object.keys(rows[0]!).join(',')}\n`;
  for (let written = 0, index = 0; written < bytes; index++) {
    const body = bodies[Math.floor(random() * bodies.length)]!;
    const task = index >> 3;
    const line = csv ? `${task},${body}\n` : `{"task_id":${task},${body}\n`;
    written += line.length;
    yield line;
  }
}

/** Runs the command line in a new process. Returns its output, its peak memory in bytes, and its time. */
async function run(words: readonly string[]): Promise<{ stdout: string; memory: number; seconds: number }> {
  const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
  const tell =
    'import{writeSync}from"node:fs";process.on("exit",()=>writeSync(3,String(process.resourceUsage().maxRSS)))';
  const start = performance.now();
  const child = spawn(process.execPath, ['--import', `data:text/javascript,${tell}`, main, ...words], {
    stdio: ['ignore', 'pipe', 'inherit', 'pipe'],
  });
  const [[code], stdout, kilobytes] = await Promise.all([
    once(child, 'close'),
    textOfStream(child.stdout!),
    textOfStream(child.stdio[3] as Readable),
  ]);
  const seconds = (performance.now() - start) / 1000;
  if (code !== 0) throw new Error(`policy-loss: expected exit code 0, got ${code}`);
  return { stdout, memory: 1024 * Number(kilobytes), seconds };
}

async function textOfStream(stream: Readable): Promise<string> {
  let text = '';
  for await (const chunk of stream) text += chunk;
  return text;
}

const directory = mkdtempSync(join(tmpdir(), 'policy-loss-large-'));
try {
  const file = join(directory, `rollouts.${flags.format}`);
  const bytes = Number(flags.gigabytes) * 1e9;
  const text = Readable.from(textOf(bytes, flags.format.startsWith('csv')));
  const target = createWriteStream(file);
  if (file.endsWith('.gz')) await pipeline(text, createGzip({ level: 1 }), target);
  else await pipeline(text, target);
  const { size } = statSync(file);
  console.log(`${file}: ${(size / 1e9).toFixed(2)} GB`);

  const { stdout, memory, seconds } = await run(['evaluate', file, '--json', ...options]);
  const { rows, tokens, loss } = JSON.parse(stdout) as { rows: number; tokens: number; loss: number };
  console.log(`evaluate ${options.join(' ')}: loss ${loss}, ${rows} rows, ${tokens} tokens`);
  console.log(
    `${seconds.toFixed(1)} s, ${(size / 1e6 / seconds).toFixed(0)} MB/s, peak ${(memory / 1e6).toFixed(0)} MB`,
  );
  if (memory > MOST_MEMORY) {
    console.error(`peak memory: expected at most ${MOST_MEMORY / 1e6} MB, got ${memory / 1e6} MB`);
    process.exitCode = 1;
  }
} finally {
  rmSync(directory, { recursive: true });
}
