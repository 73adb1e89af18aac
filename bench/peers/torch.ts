// Eager PyTorch on the CPU, in a process of its own (torch_cpu.py) that answers a line with a line. Its times are taken
// in that process, without the way there and back.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FLOAT_COLUMNS, type Inputs } from '../lib/batch.js';
import type { Outcome, Work } from '../lib/works.js';
import type { Found, Peer, Prepared } from './peer.js';
import { findPython, TorchProcess } from './torch-process.js';

const NAME = 'eager PyTorch';

// After a parallel loop OpenMP's threads would go on spinning in wait for the next, on the cores of whoever has the next
// turn. These are read by the OpenMP of GCC, and the last one by that of LLVM and Intel.
const QUIET = { OMP_WAIT_POLICY: 'PASSIVE', GOMP_SPINCOUNT: '0', KMP_BLOCKTIME: '0' };

/** PyTorch, where a python3 with torch is found. */
export async function torch(threads: number): Promise<Found> {
  const python = findPython('import torch');
  if (python === undefined) return { name: NAME, absent: 'there is no python3 with torch' };
  const process = new TorchProcess(python, 'torch_cpu.py', [], QUIET);
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
