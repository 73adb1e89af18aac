/** Helpers for tests of the queue: a real Redis server, and workers and submitters in processes of their own. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { PROGRAM, ROOT, type Run } from '../cli/support.js';

/** Skips the tests of a suite if there is no redis-server. */
export function needsRedis(context: Mocha.Context): void {
  if (spawnSync('redis-server', ['--version']).status === 0) return;
  console.log('      skipped: redis-server is not installed (Debian: redis-server)');
  context.skip();
}

/** Waits until a condition holds. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + 120_000;
  while (!(await holds())) {
    if (performance.now() > end) assert.fail(`waited too long until ${what}`);
    await sleep(20);
  }
}

/**
 * Kills a child and its process group when this process ends in whatever way, as nobody else could after SIGKILL. The
 * end of the pipe tells so.
 * @param child the leader of a process group.
 */
export function endWithTests(child: ChildProcess): void {
  if (child.pid === undefined) return;
  const script = 'read -r ended || kill -s KILL -- "-$0"';
  const guard = spawn('sh', ['-c', script, String(child.pid)], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  guard.unref();
  guard.stdin.on('error', () => {});
  (guard.stdin as Socket).unref();
  // The numbers of processes are used again, so a group that has ended must not be killed.
  child.once('close', () => guard.stdin.end('ended\n'));
}

const HOLD = new URL('./scenarios/hold.mjs', import.meta.url).href;

/** A program in a process of its own, with its output so far. */
export class Program {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  stdout = '';
  stderr = '';

  constructor(words: readonly string[], environment: NodeJS.ProcessEnv = {}) {
    // As the leader of a group, a worker can be killed together with the processes of its shards.
    this.#child = spawn(process.execPath, [PROGRAM, ...words], {
      cwd: ROOT,
      detached: true,
      env: { ...process.env, ...environment },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of ['stdout', 'stderr'] as const)
      this.#child[stream]!.setEncoding('utf8').on('data', (text: string) => {
        this[stream] += text;
      });
    this.#ended = once(this.#child, 'close');
    endWithTests(this.#child);
  }

  /** Sends a signal to the program only. */
  signal(name: NodeJS.Signals): void {
    this.#child.kill(name);
  }

  /** Sends a signal to the program and its processes. */
  signalAll(name: NodeJS.Signals): void {
    try {
      process.kill(-this.#child.pid!, name);
    } catch {
      // They have ended.
    }
  }

  /** Whether the program or one of its processes runs. */
  get hasProcesses(): boolean {
    try {
      process.kill(-this.#child.pid!, 0);
      return true;
    } catch {
      return false;
    }
  }

  /** Waits until the program has printed a text on stderr. */
  async says(pattern: RegExp): Promise<string> {
    await until(`${pattern}: ${this.stderr}`, () => pattern.test(this.stderr) || this.hasEnded);
    const [said] = pattern.exec(this.stderr) ?? assert.fail(`ended without ${pattern}: ${this.stderr}`);
    return said;
  }

  get hasEnded(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  /** Waits until the program has ended. */
  async end(): Promise<Run> {
    await this.#ended;
    return { code: this.#child.exitCode, stdout: this.stdout, stderr: this.stderr };
  }
}

/** A Redis server, and everything that runs with it. All of it is gone after end(). */
export class Cluster {
  readonly folder = mkdtempSync(join(tmpdir(), 'policy-loss-cluster-'));
  readonly parts = join(this.folder, 'parts');
  readonly #password: string | undefined;
  readonly #tls: Certificates | undefined;
  readonly #programs: Program[] = [];
  #port = 0;
  #server: Server | undefined;

  private constructor(password: string | undefined, tls: boolean) {
    this.#password = password;
    this.#tls = tls ? new Certificates(this.folder) : undefined;
  }

  /** @param tls whether the server accepts only connections with TLS, by the user USER. */
  static async start(password?: string, tls = false): Promise<Cluster> {
    const cluster = new Cluster(password, tls);
    try {
      for (let tries = 1; ; tries++)
        try {
          cluster.#port = anyPort();
          await cluster.startServer();
          return cluster;
        } catch (error) {
          if (tries === PORT_TRIES) throw error;
        }
    } catch (error) {
      await cluster.end();
      throw error;
    }
  }

  get url(): string {
    const password = this.#password === undefined ? '' : `:${encodeURIComponent(this.#password)}@`;
    // The certificate is for a name, and not for an address.
    return this.#tls
      ? `rediss://${USER}${password}localhost:${this.#port}`
      : `redis://${password}127.0.0.1:${this.#port}`;
  }

  /** The file of the authority that has signed the server's certificate; undefined without TLS. */
  get authority(): string | undefined {
    return this.#tls?.authority;
  }

  /** Starts the server, and waits until it answers. */
  async startServer(): Promise<void> {
    const folder = join(this.folder, 'redis');
    mkdirSync(folder, { recursive: true });
    const options = ['--bind', '127.0.0.1', '--dir', folder, '--save', '', '--appendonly', 'yes'];
    const port = this.#tls?.options(this.#port) ?? ['--port', String(this.#port)];
    const password = this.#password === undefined ? [] : ['--requirepass', this.#password];
    const user = this.#tls ? ['--user', USER, 'on', `>${this.#password}`, '~*', '&*', '+@all'] : [];
    const child = spawn('redis-server', [...options, ...port, ...password, ...user], {
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    endWithTests(child);
    const server: Server = { child, ended: once(child, 'close'), log: '' };
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => {
        server.log += text;
      });
    this.#server = server;
    const client = this.client();
    // It tries again until the server answers.
    client.on('error', () => {});
    try {
      const answered = client.info('server');
      answered.catch(() => {});
      const about = await Promise.race([
        answered,
        server.ended.then(() => undefined),
        sleep(120_000, undefined, { ref: false }),
      ]);
      assert.ok(about, `Redis does not answer: ${server.log}`);
      // Another server may have the port.
      assert.equal(Number(/process_id:(\d+)/.exec(about)?.[1]), child.pid, server.log);
    } finally {
      client.disconnect();
    }
  }

  async stopServer(): Promise<void> {
    this.#server?.child.kill('SIGTERM');
    await this.#server?.ended;
    this.#server = undefined;
  }

  /** Connects to the server. */
  client(): Redis {
    const password = this.#password === undefined ? {} : { password: this.#password };
    const tls = this.#tls && { tls: { ca: readFileSync(this.#tls.authority), servername: 'localhost' } };
    return new Redis({
      host: '127.0.0.1',
      port: this.#port,
      ...password,
      ...tls,
      maxRetriesPerRequest: null,
    });
  }

  /** Runs a program with the options of this queue. */
  run(...words: string[]): Program {
    return this.#start([...words, '--queue', this.url, '--parts', this.parts]);
  }

  /**
   * Starts a worker, and waits until it is ready.
   * @param hold the parts at which it stops; see scenarios/hold.mjs.
   */
  async worker(words: readonly string[] = [], hold?: { name: string; part: string }): Promise<Program> {
    const environment = hold && {
      NODE_OPTIONS: `--import ${HOLD}`,
      HOLD: hold.part,
      HOLD_FOLDER: this.folder,
      HOLD_NAME: hold.name,
    };
    const quick = ['--retry-seconds', '0.02'];
    const all = ['worker', '--queue', this.url, '--parts', this.parts, ...quick, ...words];
    const worker = this.#start(all, environment);
    await worker.says(/waiting for shards/);
    return worker;
  }

  /** Waits until a worker holds a part, and returns the part's name. */
  async held(name: string): Promise<string> {
    const file = join(this.folder, `held ${name}`);
    await until(`${name} holds a part`, () => existsSync(file) && readFileSync(file, 'utf8') !== '');
    return readFileSync(file, 'utf8');
  }

  /** Lets a worker go on that holds a part. */
  release(name: string): void {
    writeFileSync(join(this.folder, `go ${name}`), '');
  }

  /** Sets the time after which the locks of shards expire. Only workers that run can renew them. */
  async lockFor(ms: number): Promise<void> {
    const client = this.client();
    try {
      const locks = await client.keys('bull:*:lock');
      assert.ok(locks.length > 0);
      for (const lock of locks) assert.equal(await client.pexpire(lock, ms), 1);
    } finally {
      client.disconnect();
    }
  }

  /** Waits until a worker has given the part its name, or has failed to. */
  async released(name: string): Promise<void> {
    await until(`${name} goes on`, () => existsSync(join(this.folder, `released ${name}`)));
  }

  #start(words: readonly string[], environment?: NodeJS.ProcessEnv): Program {
    const trust = this.#tls && { NODE_EXTRA_CA_CERTS: this.#tls.authority };
    const program = new Program(words, { ...trust, ...environment });
    this.#programs.push(program);
    return program;
  }

  /** Returns the number of programs so far. */
  get programs(): number {
    return this.#programs.length;
  }

  /**
   * Kills programs, and waits until they have ended.
   * @param kept the number of programs to keep. They are the oldest.
   */
  async endPrograms(kept = 0): Promise<void> {
    const programs = this.#programs.splice(kept);
    for (const program of programs) program.signalAll('SIGKILL');
    await Promise.all(programs.map((program) => program.end()));
  }

  /** Forgets all runs. The server is started if a test has stopped it. */
  async clear(): Promise<void> {
    if (!this.#server) await this.startServer();
    const client = this.client();
    try {
      await client.flushall();
    } finally {
      client.disconnect();
    }
    rmSync(this.parts, { recursive: true, force: true, maxRetries: 10 });
  }

  async end(): Promise<void> {
    await this.endPrograms();
    await this.stopServer();
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10 });
  }
}

/** The user of a server with TLS. */
export const USER = 'trainer';

/** A certificate authority, and the certificate of a server for the name localhost. */
class Certificates {
  /** The file of the authority's certificate. */
  readonly authority: string;
  readonly #key: string;
  readonly #certificate: string;

  constructor(folder: string) {
    this.authority = makeAuthority(folder, 'authority');
    this.#key = join(folder, 'server.key');
    this.#certificate = join(folder, 'server.pem');
    openssl(
      ...['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'],
      ...['-CA', this.authority, '-CAkey', join(folder, 'authority.key')],
      ...['-keyout', this.#key, '-out', this.#certificate],
    );
  }

  /** Returns the options of a server that has this certificate, and no port without TLS. */
  options(port: number): string[] {
    return [
      ...['--port', '0', '--tls-port', String(port), '--tls-auth-clients', 'no'],
      ...['--tls-cert-file', this.#certificate, '--tls-key-file', this.#key],
      ...['--tls-ca-cert-file', this.authority],
    ];
  }
}

/** Makes a certificate authority. Returns the file of its certificate. */
export function makeAuthority(folder: string, name: string): string {
  const certificate = join(folder, `${name}.pem`);
  openssl('-subj', `/CN=${name}`, '-keyout', join(folder, `${name}.key`), '-out', certificate);
  return certificate;
}

function openssl(...words: string[]): void {
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  const made = spawnSync('openssl', ['req', '-x509', '-days', '2', ...key, ...words], { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
}

/** A Redis server. */
interface Server {
  child: ChildProcess;
  ended: Promise<unknown>;
  log: string;
}

const PORT_TRIES = 20;

/** Returns a port that the system gives to nobody else by itself, because it is below those that it draws from. */
export function anyPort(): number {
  return randomInt(12_000, 32_000);
}

/** Returns a result without the number of parts in which it was computed. */
export function withoutBatches(text: string): object {
  const { batches: _, ...rest } = JSON.parse(text);
  return rest;
}
