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
import { textOf } from './lib/rollout-text.js';

const MOST_MEMORY = 300e6;

const { values: flags, positionals } = parseArgs({
  options: {
    gigabytes: { type: 'string', default: '2' },
    format: { type: 'string', default: 'jsonl' },
  },
  allowPositionals: true,
});
const options = positionals.length > 0 ? positionals : ['--loss', 'ppo'];

/** Runs the command line in a new process. Returns its output, its peak memory in bytes, and its time. */
async function run(words: readonly string[]): Promise<{ stdout: string; memory: number; seconds: number }> {
  const main = fileURLToPath(new URL('../dist/tools/cli/main.js', import.meta.url));
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
