// Eager PyTorch on the CPU, in a process of its own (torch_cpu.py) that answers a line with a line. Its times are taken
// in that process, without the way there and back.
import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { FLOAT_COLUMNS, type Inputs } from '../lib/batch.js';
import type { Outcome, Work } from '../lib/works.js';
import type { Found, Peer, Prepared } from './peer.js';

const NAME = 'eager PyTorch';

// After a parallel loop OpenMP's threads would go on spinning in wait for the next, on the cores of whoever has the next
// turn. These are read by the OpenMP of GCC, and the last one by that of LLVM and Intel.
const QUIET = { OMP_WAIT_POLICY: 'PASSIVE', GOMP_SPINCOUNT: '0', KMP_BLOCKTIME: '0' };

/** PyTorch, where a python3 with torch is found. */
export async function torch(threads: number): Promise<Found> {
  const python = ['python3', '/usr/bin/python3'].find(
    (path) => spawnSync(path, ['-c', 'import torch'], { stdio: 'ignore' }).status === 0,
  );
  if (python === undefined) return { name: NAME, absent: 'there is no python3 with torch' };
  const process = new TorchProcess(python);
  const { version } = await process.ask<{ version: string }>({ op: 'about', threads });
  return new TorchPeer(process, version);
}

class TorchPeer implements Peer {
  readonly name = NAME;
  readonly version: string;
  readonly #process: TorchProcess;
  readonly #directory = mkdtempSync(join(tmpdir(), 'policy-loss-bench-'));
  #tokens = 0;

  constructor(process: TorchProcess, version: string) {
    this.#process = process;
    this.version = version;
  }

  covers(work: Work): boolean {
    return work.computes;
  }

  async load(inputs: Inputs): Promise<void> {
    const columns: Record<string, string> = {};
    for (const [name, theirs] of Object.entries(FLOAT_COLUMNS))
      columns[theirs] = this.#write(theirs, inputs[name] as Float32Array);
    columns.action_mask = this.#write('action_mask', inputs.actionMask);
    columns.expert_mask = this.#write('expert_mask', inputs.expertMask);
    this.#tokens = inputs.logprob.length;
    await this.#process.ask({ op: 'load', shape: inputs.shape, columns, step: inputs.step });
  }

  async prepare({ family, name, args, wrt }: Work, gradient: boolean): Promise<Prepared> {
    await this.#process.ask({ op: 'prepare', family, name, args, gradient, wrt });
    return {
      name: NAME,
      time: async (calls) =>
        (await this.#process.ask<{ milliseconds: number[] }>({ op: 'time', calls })).milliseconds,
      evaluate: async () => {
        const zeros = new Float32Array(this.#tokens);
        const files = wrt.map((column) => this.#write(`gradient_${column}`, zeros));
        const outcome = await this.#process.ask<Outcome>({ op: 'evaluate', files });
        if (gradient)
          wrt.forEach((column, i) => {
            const { buffer, byteOffset } = readFileSync(files[i]!);
            const values = new Float32Array(buffer, byteOffset, this.#tokens);
            outcome[column === 'logprob' ? 'grad' : 'gradEntropy'] = values;
          });
        return outcome;
      },
      release: async () => {},
    };
  }

  async end(): Promise<void> {
    this.#process.end();
    rmSync(this.#directory, { recursive: true });
  }

  #write(name: string, values: Float32Array | Uint8Array): string {
    const path = join(this.#directory, name);
    writeFileSync(path, values);
    return path;
  }
}

class TorchProcess {
  readonly #process: ChildProcessWithoutNullStreams;
  readonly #reader: Interface;
  readonly #lines: AsyncIterator<string>;
  #words = '';

  constructor(python: string) {
    const script = fileURLToPath(new URL('torch_cpu.py', import.meta.url));
    this.#process = spawn(python, ['-B', script], { env: { ...process.env, ...QUIET } });
    this.#process.stderr.on('data', (data) => {
      this.#words = (this.#words + data).slice(-2000);
    });
    this.#process.stdin.on('error', () => {}); // It ended; the answer that does not come says so.
    this.#reader = createInterface({ input: this.#process.stdout });
    this.#lines = this.#reader[Symbol.asyncIterator]();
  }

  /** @throws Error with what PyTorch said, where it could not. */
  async ask<T>(request: object): Promise<T> {
    this.#process.stdin.write(`${JSON.stringify(request)}\n`);
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`PyTorch's process ended: ${this.#words.trim().split('\n').at(-1)}`);
    const answer = JSON.parse(value);
    if (answer.error) throw new Error(`PyTorch: ${answer.error}`);
    return answer;
  }

  end(): void {
    this.#reader.close();
    this.#process.kill();
  }
}
