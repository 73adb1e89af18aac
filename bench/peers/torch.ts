// Runs PyTorch as a peer, in three forms: eager, compiled by torch.compile, and compiled together with its gradient.
// PyTorch runs in a Python process (torch_peer.py). That process also measures the times, so that they do not include
// the exchange of messages.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Results } from '../lib/agreement.js';
import { FLOAT_COLUMNS, type Inputs, ROW_INPUTS } from '../lib/batch.js';
import type { Contender } from '../lib/race.js';
import type { Work } from '../lib/works.js';
import { findPython, TorchProcess } from './torch-process.js';

/** How PyTorch runs a loss, with the name in tables. */
export const FORMS = {
  eager: 'eager PyTorch',
  compiled: 'torch.compile',
  grad_and_value: 'torch.compile(grad_and_value)',
} as const;
type Form = keyof typeof FORMS;
const ALL_FORMS = Object.keys(FORMS) as Form[];

/** When a timed call ends: as soon as loss and metrics are on the host, or as soon as the device has computed them. */
type Until = 'host' | 'device';

/** Where bench/install-torch.sh installs PyTorch. */
const INSTALLED = fileURLToPath(new URL('../../build/torch/bin/python', import.meta.url));

/** The inputs that PyTorch gets. The keys are their names in a batch, and the values are Trinity-RFT's names. */
const PER_TOKEN = { ...FLOAT_COLUMNS, actionMask: 'action_mask', attentionMask: 'attention_mask' };
const PER_ROW = { ...ROW_INPUTS, expertMask: 'expert_mask' };

type Values = Float32Array | Float64Array | Int32Array | Uint8Array | Uint16Array;
/** PyTorch's names of the dtypes of typed arrays. */
const DTYPES: Record<string, string> = {
  Float32Array: 'float32',
  Float64Array: 'float64',
  Int32Array: 'int32',
  Uint8Array: 'uint8',
  Uint16Array: 'bfloat16',
};

/** An input of PyTorch. */
export interface Tensor {
  values: Values;
  shape: readonly number[];
}

/** What PyTorch needs to know about a loss. */
export interface TorchLoss {
  readonly family: Work['family'] | 'logits' | 'hidden';
  readonly name: string;
  readonly args: Record<string, number>;
  readonly wrt: readonly string[];
}

/** The versions, the device and the losses of the Python process, as the process reports them. */
export interface AboutTorch {
  version: string;
  device: string;
  /** The names of the losses that torch_functions.py lists, by family, such as 'policy' or 'kl'. */
  functions: Record<string, string[]>;
}

/** A loss that is ready to be called and timed in one form, with its inputs loaded. */
export interface Prepared extends Contender {
  /** Computes the results, so that they can be compared with this package's. */
  evaluate(): Promise<Results>;
  /** A contender whose calls end when their results are on the host. */
  readonly untilHost: Contender;
}

/** The prepared forms of a loss, and the reasons why others could not be prepared. */
export interface AllForms {
  prepared: Prepared[];
  problems: Partial<Record<Form, string>>;
}

/** Returns the inputs of a batch for load(). */
function tensorsOf(inputs: Inputs): Record<string, Tensor> {
  const entries = Object.entries({ ...PER_TOKEN, ...PER_ROW }).map(([key, name]) => {
    const values = inputs[key] as Values;
    return [name, { values, shape: key in PER_ROW ? [values.length] : inputs.shape }] as const;
  });
  return Object.fromEntries(entries);
}

/** A Python process that runs PyTorch on one device. */
export class Torch {
  readonly about: AboutTorch;
  readonly #process: TorchProcess;
  readonly #until: Until;
  readonly #folder = mkdtempSync(join(tmpdir(), 'policy-loss-bench-'));

  /** Starts the process. Returns undefined if no Python program has a torch that can use the requested device. */
  static async start(options: {
    device: 'cpu' | 'cuda:0';
    python?: string | undefined;
    until?: Until;
    /** Whether other programs use the CPU. PyTorch's threads then sleep while they wait, instead of spinning. */
    busy?: boolean;
  }): Promise<Torch | undefined> {
    const { device, until = 'host', busy = false } = options;
    const needed = device === 'cpu' ? 'import torch' : 'import torch; assert torch.cuda.is_available()';
    const candidates = options.python ? [options.python] : [INSTALLED, 'python3', '/usr/bin/python3'];
    const python = findPython(
      needed,
      candidates.filter((path) => path !== INSTALLED || existsSync(path)),
    );
    if (python === undefined) return undefined;
    const process = new TorchProcess(python, 'torch_peer.py', [device], busy ? { GOMP_SPINCOUNT: '0' } : {});
    return new Torch(process, until, await process.ask<AboutTorch>({ op: 'about' }));
  }

  private constructor(process: TorchProcess, until: Until, about: AboutTorch) {
    this.#process = process;
    this.#until = until;
    this.about = about;
  }

  covers({ family, name }: Pick<Work, 'family' | 'name'>): boolean {
    return this.about.functions[family]?.includes(name) === true;
  }

  /** Returns a contender that copies `bytes` bytes to the device's memory, from there or from the host's pinned memory. */
  copy(name: string, source: 'device' | 'pinned', bytes: number): Contender {
    return { name, time: (calls) => this.#times({ op: 'copy', source, bytes, calls }) };
  }

  /** Passes a batch to the process. All following calls use it, and so many threads on a CPU. */
  load(inputs: Inputs, threads?: number): Promise<void> {
    return this.loadTensors(tensorsOf(inputs), inputs.step, threads);
  }

  /** Passes inputs to the process, through files. */
  async loadTensors(tensors: Record<string, Tensor>, step: number, threads?: number): Promise<void> {
    const files: Record<string, { path: string; dtype: string; shape: readonly number[] }> = {};
    for (const [name, { values, shape }] of Object.entries(tensors))
      files[name] = { path: this.#write(name, values), dtype: DTYPES[values.constructor.name]!, shape };
    await this.#process.ask({ op: 'load', files, step, threads });
    for (const { path } of Object.values(files)) rmSync(path);
  }

  /**
   * Prepares a loss on the loaded inputs in all forms that PyTorch can run.
   * @param tokens the number of elements of each gradient.
   */
  async prepare(loss: TorchLoss, tokens: number): Promise<AllForms> {
    const all: AllForms = { prepared: [], problems: {} };
    const { family, name, args, wrt } = loss;
    for (const form of ALL_FORMS)
      try {
        await this.#process.ask({ op: 'prepare', form, family, name, args, wrt });
        all.prepared.push(this.#prepared(form, wrt, tokens));
      } catch (error) {
        all.problems[form] = (error as Error).message;
      }
    return all;
  }

  /** Drops what prepare() has made. */
  async release(): Promise<void> {
    await this.#process.ask({ op: 'release' });
  }

  end(): void {
    this.#process.end();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #prepared(form: Form, wrt: readonly string[], tokens: number): Prepared {
    const timed = (until: Until): Contender => ({
      name: FORMS[form],
      time: (calls) => this.#times({ op: 'time', form, calls, until }),
    });
    return {
      ...timed(this.#until),
      untilHost: timed('host'),
      evaluate: async () => {
        const zeros = new Float32Array(tokens);
        const files = wrt.map((column) => this.#write(`gradient_${column}`, zeros));
        const outcome = await this.#process.ask<Omit<Results, 'gradients'>>({ op: 'evaluate', form, files });
        const gradients = files.map((file) => {
          const { buffer, byteOffset } = readFileSync(file);
          return new Float32Array(buffer, byteOffset, tokens);
        });
        return { ...outcome, gradients };
      },
    };
  }

  async #times(request: object): Promise<number[]> {
    return (await this.#process.ask<{ milliseconds: number[] }>(request)).milliseconds;
  }

  #write(name: string, values: Values): string {
    const path = join(this.#folder, name);
    writeFileSync(path, values);
    return path;
  }
}
