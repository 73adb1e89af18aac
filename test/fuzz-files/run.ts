/** Runs cases of the file fuzzer: makes the files, and has them read in a process of its own, which is watched. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { describeFailure, search } from '../support/fuzzing.js';
import { COMMANDS, type FileCase, type Format, fileCase, type MadeFile, makeFile } from './cases.js';
import type { Order, Verdict } from './reader.js';

const READER = fileURLToPath(new URL('./reader.ts', import.meta.url));
// Replaces Node's functions that open sockets. When the process ends, it reports which of them were called.
const OFFLINE = new URL('../life/scenarios/offline.mjs', import.meta.url).href;

const MAX_MEMORY = 2 ** 30;
// The time limits. The first two bound how long a core may be busy, on a machine of any speed.
const BUSY_MS = 5000;
const BUSY_MS_PER_BYTE = 400e-6;
// What a Parquet file claims to hold has no relation to its size, up to a limit.
const DECODING_MS = 30_000;
const HANG_MS = 60_000;
const FILES_PER_READER = 150;
const LAST_WORDS_MS = 50;

export interface Outcome {
  executions: number;
  /** The number of files that could be read. */
  read: number;
  /** The greatest memory of a process that read files, in bytes. */
  memory: number;
  /** What failed, with the case as JSON. Undefined if every case passed. */
  fault?: string;
}

/** Runs random cases of some formats until the time is over or a case fails. */
export async function fuzzFiles(seconds: number, seed: number, formats: readonly Format[]): Promise<Outcome> {
  const runner = new Runner();
  try {
    const failure = await search({
      seconds,
      seed,
      cases: fileCase(formats),
      casesPerRound: 100,
      run: (one) => runner.run(one),
    });
    await runner.endReader();
    return { ...runner.outcome, ...(failure && { fault: describeFailure(failure) }) };
  } finally {
    runner.close();
  }
}

/** A process that reads files. `ended` resolves when it has ended, with the reason. */
interface Reader {
  child: ChildProcess;
  ended: Promise<string>;
}

/** Runs cases one after another. */
export class Runner {
  readonly outcome: Outcome = { executions: 0, read: 0, memory: 0 };
  readonly #folder = mkdtempSync(join(tmpdir(), 'policy-loss-fuzz-'));
  #reader: Reader | undefined;
  #files = 0;

  /**
   * Runs a case.
   * @throws Error if the file is read wrongly, or if it takes too much time or memory
   */
  async run(one: FileCase): Promise<void> {
    const made = makeFile(one, this.#folder);
    const order = orderOf(one, made);
    if (this.#files >= FILES_PER_READER) await this.endReader();
    const isFirst = this.#files === 0;
    let verdict = await this.#judge(order, made);
    if (verdict.memory > MAX_MEMORY && !isFirst) {
      // Some of the memory may be due to the files before. So this file is read again in a new process.
      await this.endReader();
      verdict = await this.#judge(order, made);
    }
    this.outcome.executions++;
    if (verdict.isRead) this.outcome.read++;
    this.outcome.memory = Math.max(this.outcome.memory, verdict.memory);
    if (verdict.fault !== undefined) throw new Error(verdict.fault);
    if (verdict.memory > MAX_MEMORY) {
      await this.endReader();
      throw new Error(`took ${verdict.memory} bytes of memory, expected at most ${MAX_MEMORY}`);
    }
  }

  async #judge(order: Order, { unpackedBytes }: MadeFile): Promise<Verdict> {
    this.#reader ??= this.#start();
    const { child, ended } = this.#reader;
    this.#files++;
    const answered = new Promise<Verdict>((resolve) => child.once('message', resolve));
    const limit = HANG_MS + 10 * BUSY_MS_PER_BYTE * unpackedBytes;
    let hung = false;
    const watchdog = new AbortController();
    setTimeout(limit, undefined, watchdog).then(
      () => {
        hung = true;
        child.kill('SIGKILL');
      },
      () => {}, // the answer came in time
    );
    child.send(order, () => {}); // if the process has ended, so does the race below
    const result = await Promise.race([answered, ended]);
    watchdog.abort();
    if (typeof result === 'object') return result;
    this.#reader = undefined;
    this.#files = 0;
    throw new Error(hung ? `hung for ${limit} ms` : result);
  }

  #start(): Reader {
    const node = ['--no-warnings', '--expose-gc', '--import', 'tsx', '--import', OFFLINE];
    const child = spawn(process.execPath, [...node, READER], {
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
      env: { ...process.env, POLICY_LOSS_SEEN: this.#seenFile },
    });
    let complaint = '';
    child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      complaint += text;
    });
    const ended = once(child, 'exit').then(async ([code, signal]) => {
      // The loader's own process may keep stderr open, so the event 'close' might never come.
      await setTimeout(LAST_WORDS_MS);
      return `ended by ${signal ?? `code ${code}`}: ${complaint}`;
    });
    return { child, ended };
  }

  get #seenFile(): string {
    return join(this.#folder, 'seen.json');
  }

  /**
   * Ends the process that reads files. The next case starts another one.
   * @throws Error if the process tried to open a socket
   */
  async endReader(): Promise<void> {
    const reader = this.#reader;
    if (!reader) return;
    this.#reader = undefined;
    this.#files = 0;
    if (reader.child.connected) reader.child.disconnect();
    const how = await reader.ended;
    if (!how.startsWith('ended by code 0')) throw new Error(how);
    const { seen } = existsSync(this.#seenFile)
      ? JSON.parse(readFileSync(this.#seenFile, 'utf8'))
      : { seen: [] };
    if (seen.length > 0) throw new Error(`tried to use the network: ${seen.join(', ')}`);
  }

  close(): void {
    this.#reader?.child.kill('SIGKILL');
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function orderOf({ command, format }: FileCase, { name, unpackedBytes, expected }: MadeFile): Order {
  const decoding = format.includes('parquet') ? DECODING_MS : 0;
  return {
    file: name,
    words: COMMANDS[command]!,
    expected,
    busyMs: BUSY_MS + decoding + BUSY_MS_PER_BYTE * unpackedBytes,
  };
}
