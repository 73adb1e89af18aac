// Runs PyTorch as a peer, eager or with torch.compile. PyTorch runs in a Python process (torch_peer.py). That process
// also measures the times, so that they do not include the exchange of messages.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FLOAT_COLUMNS, type Inputs, ROW_INPUTS } from '../lib/batch.js';
import type { Contender } from '../lib/race.js';
import type { Outcome, Work } from '../lib/works.js';
import type { Found, Peer, Prepared } from './peer.js';
import { findPython, TorchProcess } from './torch-process.js';

/** How PyTorch runs a loss: eagerly, or compiled by torch.compile. */
type Form = 'eager' | 'compiled';
/** When a timed call ends: as soon as loss and metrics are on the host, or as soon as the device has computed them. */
type Until = 'host' | 'device';

const NAMES: Record<Form, string> = { eager: 'eager PyTorch', compiled: 'torch.compile' };

// These variables keep OpenMP's threads from spinning. By default they spin after a parallel loop, which slows down the
// next contender. GCC's OpenMP reads the first two variables; the OpenMP of LLVM and Intel reads the third.
const NO_SPINNING = { OMP_WAIT_POLICY: 'PASSIVE', GOMP_SPINCOUNT: '0', KMP_BLOCKTIME: '0' };

/** The inputs that PyTorch gets. The keys are their names in a batch, and the values are Trinity-RFT's names. */
const PER_TOKEN = { ...FLOAT_COLUMNS, actionMask: 'action_mask' };
const PER_ROW = { ...ROW_INPUTS, expertMask: 'expert_mask' };

/** PyTorch's names of the dtypes of typed arrays. */
const DTYPES: Record<string, string> = {
  Float32Array: 'float32',
  Float64Array: 'float64',
  Int32Array: 'int32',
  Uint8Array: 'uint8',
};
type Values = Float32Array | Float64Array | Int32Array | Uint8Array;

/** The versions, the device and the losses of the Python process, as the process reports them. */
export interface AboutTorch {
  version: string;
  device: string;
  /** The CUDA version that PyTorch was built for. Null if it was built without CUDA. */
  cuda: string | null;
  /** The names of the losses that torch_functions.py lists, by family, such as 'policy' or 'kl'. */
  functions: Record<string, string[]>;
}

/** Returns eager PyTorch on the CPU as a peer, or says why it is absent. It needs a python3 that has torch. */
export async function torch(threads: number): Promise<Found> {
  const session = await TorchSession.start({ device: 'cpu', threads });
  return session?.peer('eager') ?? { name: NAMES.eager, absent: 'no python3 with torch was found' };
}

/** A prepared loss. Its `untilHost` always times calls until their results are on the host. */
export interface PreparedTorch extends Prepared {
  readonly untilHost: Contender;
}

/** A Python process that runs PyTorch on one device. */
export class TorchSession {
  readonly about: AboutTorch;
  readonly #process: TorchProcess;
  readonly #until: Until;
  readonly #folder = mkdtempSync(join(tmpdir(), 'policy-loss-bench-'));
  #loaded: Inputs | undefined;

  /** Starts the process. Returns undefined if no Python program has a torch that can use the requested device. */
  static async start(options: {
    device: 'cpu' | 'cuda:0';
    threads?: number;
    python?: string | undefined;
    until?: Until;
  }): Promise<TorchSession | undefined> {
    const { device, threads, until = 'host' } = options;
    const needed = device === 'cpu' ? 'import torch' : 'import torch; assert torch.cuda.is_available()';
    const python = options.python ? findPython(needed, [options.python]) : findPython(needed);
    if (python === undefined) return undefined;
    const process = new TorchProcess(python, 'torch_peer.py', [device], NO_SPINNING);
    return new TorchSession(process, until, await process.ask<AboutTorch>({ op: 'about', threads }));
  }

  private constructor(process: TorchProcess, until: Until, about: AboutTorch) {
    this.#process = process;
    this.#until = until;
    this.about = about;
  }

  /** Returns the reason why torch.compile cannot be used here, or undefined if it can. */
  async compileProblem(): Promise<string | undefined> {
    return (
      (await this.#process.ask<{ problem: string | null }>({ op: 'compile_problem' })).problem ?? undefined
    );
  }

  peer(form: Form): TorchPeer {
    return new TorchPeer(this, form);
  }

  /**
   * Returns a contender that copies `bytes` bytes to the device's memory, either from the same device or from the
   * host's pinned memory.
   */
  copy(name: string, source: 'device' | 'pinned', bytes: number): Contender {
    return { name, time: (calls) => this.#times({ op: 'copy', source, bytes, calls }) };
  }

  /**
   * Returns a contender that computes PPO with an entropy bonus from logits that PyTorch draws, and the gradient with
   * respect to them.
   */
  fromLogits(name: string, shape: readonly [number, number], dtype: 'float32' | 'bfloat16'): Contender {
    return { name, time: (calls) => this.#times({ op: 'logits', shape, dtype, calls }) };
  }

  /** Passes the inputs to the process through files, unless it already has these inputs. */
  async load(inputs: Inputs): Promise<void> {
    if (this.#loaded === inputs) return;
    const { shape, step } = inputs;
    const files: Record<string, { path: string; dtype: string; shape: readonly number[] }> = {};
    for (const [key, name] of Object.entries({ ...PER_TOKEN, ...PER_ROW })) {
      const values = inputs[key] as Values;
      const dtype = DTYPES[values.constructor.name]!;
      files[name] = { path: this.#write(name, values), dtype, shape: key in PER_ROW ? [shape[0]] : shape };
    }
    await this.#process.ask({ op: 'load', files, step });
    for (const { path } of Object.values(files)) rmSync(path);
    this.#loaded = inputs;
  }

  async prepare(form: Form, work: Work, gradient: boolean): Promise<PreparedTorch> {
    const { family, name, args, wrt } = work;
    await this.#process.ask({ op: 'prepare', form, family, name, args, gradient, wrt });
    const timed = (until: Until): Contender => ({
      name: NAMES[form],
      time: (calls) => this.#times({ op: 'time', form, calls, until }),
    });
    return {
      ...timed(this.#until),
      untilHost: timed('host'),
      evaluate: () => this.#evaluate(form, gradient ? wrt : []),
      release: async () => {
        await this.#process.ask({ op: 'release', form });
      },
    };
  }

  end(): void {
    this.#process.end();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #times(request: object): Promise<number[]> {
    return (await this.#process.ask<{ milliseconds: number[] }>(request)).milliseconds;
  }

  async #evaluate(form: Form, wrt: Work['wrt']): Promise<Outcome> {
    const tokens = this.#loaded!.logprob.length;
    const zeros = new Float32Array(tokens);
    const files = wrt.map((column) => this.#write(`gradient_${column}`, zeros));
    const outcome = await this.#process.ask<Outcome>({ op: 'evaluate', form, files });
    wrt.forEach((column, i) => {
      const { buffer, byteOffset } = readFileSync(files[i]!);
      outcome[column === 'logprob' ? 'grad' : 'gradEntropy'] = new Float32Array(buffer, byteOffset, tokens);
    });
    return outcome;
  }

  #write(name: string, values: Values): string {
    const path = join(this.#folder, name);
    writeFileSync(path, values);
    return path;
  }
}

/** One form of PyTorch (eager or compiled) as a peer. Its end() ends the whole session. */
export class TorchPeer implements Peer {
  readonly name: string;
  readonly version: string;
  readonly #session: TorchSession;
  readonly #form: Form;

  constructor(session: TorchSession, form: Form) {
    this.name = NAMES[form];
    this.version = session.about.version;
    this.#session = session;
    this.#form = form;
  }

  get session(): TorchSession {
    return this.#session;
  }

  covers({ family, name, computes }: Work): boolean {
    return computes && this.#session.about.functions[family]?.includes(name) === true;
  }

  load(inputs: Inputs): Promise<void> {
    return this.#session.load(inputs);
  }

  prepare(work: Work, gradient: boolean): Promise<PreparedTorch> {
    return this.#session.prepare(this.#form, work, gradient);
  }

  async end(): Promise<void> {
    this.#session.end();
  }
}
