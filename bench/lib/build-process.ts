// A process that runs one build of the package, and times it on request. See compare-builds.ts.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Shape } from './batch.js';

/** One function in one form, such as 'gradient' or 'bfloat16'. */
export interface Case {
  readonly id: string;
  readonly form: string;
}

/** What every process of a comparison measures. */
export interface Measured {
  shape: Shape;
  threads: number;
  /** A pattern for the functions' names. */
  only: string | undefined;
}

/** What a process is asked, and what it answers. */
export type Request = ({ op: 'prepare' } & Case) | { op: 'time'; calls: number };
export interface Answers {
  start: Case[];
  prepare: number;
  time: number;
}

export class BuildProcess {
  /** The functions that the build has. */
  readonly cases: readonly Case[];
  readonly #child: ChildProcess;

  /**
   * Starts a process.
   * @param build a folder with a checkout, or a native module, which runs under the TypeScript of this checkout.
   */
  static async start(build: string, measured: Measured): Promise<BuildProcess> {
    const isModule = build.endsWith('.node');
    const checkout = isModule ? fileURLToPath(new URL('../..', import.meta.url)) : resolve(build);
    const { POLICY_LOSS_NATIVE: _, ...env } = process.env;
    const child = fork(
      fileURLToPath(new URL('build-child.ts', import.meta.url)),
      [checkout, JSON.stringify(measured)],
      { env: { ...env, ...(isModule && { POLICY_LOSS_NATIVE: resolve(build) }) } },
    );
    return new BuildProcess(child, await answerOf<Answers['start']>(child));
  }

  private constructor(child: ChildProcess, cases: readonly Case[]) {
    this.#child = child;
    this.cases = cases;
  }

  /** Prepares a function on arrays at new places in memory. Returns the milliseconds that a call takes at first. */
  prepare({ id, form }: Case): Promise<number> {
    return this.#ask<Answers['prepare']>({ op: 'prepare', id, form });
  }

  /** Makes so many calls. Returns the milliseconds of each on average. */
  time(calls: number): Promise<number> {
    return this.#ask<Answers['time']>({ op: 'time', calls });
  }

  end(): void {
    this.#child.kill();
  }

  #ask<T>(request: Request): Promise<T> {
    this.#child.send(request);
    return answerOf<T>(this.#child);
  }
}

/** Waits for the next answer of a process. Its error has been printed if it ends instead. */
async function answerOf<T>(child: ChildProcess): Promise<T> {
  const ended = new AbortController();
  const options = { signal: ended.signal };
  try {
    const exit = once(child, 'exit', options).then(() =>
      Promise.reject(new Error('a process of a build ended')),
    );
    const [answer] = await Promise.race([once(child, 'message', options), exit]);
    return answer as T;
  } finally {
    ended.abort();
  }
}
