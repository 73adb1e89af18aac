// Runs torch_peer.py, a Python process that reads requests and writes answers. Each is one line of JSON.
import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from 'node:child_process';
import { createInterface, type Interface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** Returns the first of the given Python programs that can run `code`, or undefined if none can. */
export function findPython(code: string, among: readonly string[]): string | undefined {
  return among.find((path) => spawnSync(path, ['-c', code], { stdio: 'ignore' }).status === 0);
}

/** A running Python process that answers requests. */
export class TorchProcess {
  readonly #process: ChildProcessWithoutNullStreams;
  readonly #reader: Interface;
  readonly #lines: AsyncIterator<string>;
  #standardError = '';

  constructor(python: string, script: string, args: string[], env: Record<string, string>) {
    const path = fileURLToPath(new URL(script, import.meta.url));
    this.#process = spawn(python, ['-B', path, ...args], { env: { ...process.env, ...env } });
    this.#process.stderr.on('data', (data) => {
      this.#standardError = (this.#standardError + data).slice(-2000);
    });
    // Writing to a process that has ended fails. This error is ignored, because ask() reports that the answer is
    // missing.
    this.#process.stdin.on('error', () => {});
    this.#reader = createInterface({ input: this.#process.stdout });
    this.#lines = this.#reader[Symbol.asyncIterator]();
  }

  /**
   * Sends a request and waits for its answer.
   * @throws Error if the request fails, with Python's message, or if the process has ended.
   */
  async ask<T>(request: object): Promise<T> {
    this.#process.stdin.write(`${JSON.stringify(request)}\n`);
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`the PyTorch process ended: ${this.#standardError.trim().split('\n').at(-1)}`);
    const answer = JSON.parse(value);
    if (answer.error) throw new Error(`PyTorch: ${answer.error}`);
    return answer;
  }

  end(): void {
    this.#reader.close();
    this.#process.kill();
  }
}
