// A program of PyTorch's in a process of its own that answers a line with a line: torch_cpu.py or torch_gpu.py.
import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from 'node:child_process';
import { createInterface, type Interface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** A python3 that can run these words, of those that are looked for. */
export function findPython(words: string, among = ['python3', '/usr/bin/python3']): string | undefined {
  return among.find((path) => spawnSync(path, ['-c', words], { stdio: 'ignore' }).status === 0);
}

export class TorchProcess {
  readonly #process: ChildProcessWithoutNullStreams;
  readonly #reader: Interface;
  readonly #lines: AsyncIterator<string>;
  #words = '';

  constructor(python: string, script: string, args: string[] = [], env: Record<string, string> = {}) {
    const path = fileURLToPath(new URL(script, import.meta.url));
    this.#process = spawn(python, ['-B', path, ...args], { env: { ...process.env, ...env } });
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
