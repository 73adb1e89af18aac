/**
 * Tests that no command of the command line opens a socket or makes a DNS query. In these tests, Node's functions that
 * open sockets throw. Sockets that were opened in another way are found among the process's file descriptors when it
 * ends. Also tests that the package's dependencies are exactly the packages that it imports.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Fields } from '../fuzz-files/fields.js';
import { F32, I64, safetensorsOf } from '../fuzz-files/tensor-files.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const PROGRAM = join(ROOT, 'dist', 'tools', 'cli', 'main.js');
const OFFLINE = new URL('./scenarios/offline.mjs', import.meta.url).href;
const ROLLOUTS = join(ROOT, 'examples', 'rollouts.jsonl');
const TRINITY = join(ROOT, 'examples', 'trinity.yaml');
const LOSSES = join(ROOT, 'examples', 'my-losses.mjs');

interface Seen {
  seen: string[];
  sockets: string[];
  code: number | null;
  output: string;
}

describe('offline', () => {
  let folder: string;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'policy-loss-offline-'));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  /**
   * Runs a program in which Node's network functions throw. The output goes to a file, because Node's pipes are sockets
   * too.
   */
  async function runOffline(words: readonly string[]): Promise<Seen> {
    const [said, report] = [join(folder, 'said'), join(folder, 'seen')];
    rmSync(report, { force: true });
    const out = openSync(said, 'w');
    const child = spawn(process.execPath, ['--import', OFFLINE, ...words], {
      cwd: folder,
      stdio: ['ignore', out, out],
      env: { ...process.env, POLICY_LOSS_SEEN: report, HOME: folder, USERPROFILE: folder },
    });
    const [code] = (await once(child, 'exit')) as [number | null];
    return { ...JSON.parse(readFileSync(report, 'utf8')), code, output: readFileSync(said, 'utf8') };
  }

  // Writes the logits of two tokens, and the tokens that were chosen.
  function writeLogits(to: string, shape: number[]): string {
    const file = join(to, 'logits.safetensors');
    const tensors = [
      { name: 'logits', dtype: F32, shape, data: Buffer.alloc(32) },
      { name: 'targets', dtype: I64, shape: shape.slice(0, -1), data: Buffer.alloc(16) },
    ];
    writeFileSync(file, Buffer.concat(safetensorsOf(tensors, new Fields())));
    return file;
  }

  const COMMANDS: Record<string, (folder: string) => string[]> = {
    evaluate: () => ['evaluate', ROLLOUTS, '--loss', 'ppo', '--json'],
    'evaluate --report': (to) => [
      'evaluate',
      ROLLOUTS,
      '--loss',
      'gspo',
      '--report',
      join(to, 'report.html'),
    ],
    'evaluate --loss-expr': () => ['evaluate', ROLLOUTS, '--loss-expr', '-A*r*scale', '--set', 'scale=2'],
    'evaluate --loss-file': () => ['evaluate', ROLLOUTS, '--loss-file', LOSSES, '--loss', 'penalised'],
    'evaluate --config': () => ['evaluate', ROLLOUTS, '--config', TRINITY],
    compare: () => ['compare', ROLLOUTS, '--loss', 'ppo', '--loss', 'gspo', '--algorithm', 'grpo'],
    sweep: () => ['sweep', ROLLOUTS, '--loss', 'ppo', '--clip-range', '0.1:0.3:0.1'],
    gradients: (to) => ['gradients', ROLLOUTS, '--loss', 'cispo', '--out', join(to, 'gradients.jsonl')],
    plan: (to) => [
      'plan',
      ROLLOUTS,
      '--algorithm',
      'grpo',
      '--shard-size',
      '200K',
      '--for-report',
      '--out',
      join(to, 'plan.json'),
    ],
    run: (to) => ['run', join(to, 'plan.json'), '--out', join(to, 'parts')],
    merge: (to) => ['merge', join(to, 'plan.json'), join(to, 'parts'), '--report', join(to, 'merged.html')],
    // These two need a queue, so that only their help is offline.
    worker: () => ['worker', '--help'],
    join: () => ['join', '--help'],
    cancel: () => ['cancel', '--help'],
    doctor: () => ['doctor', ROLLOUTS],
    diff: () => ['diff', ROLLOUTS, ROLLOUTS, '--loss', 'ppo'],
    identify: () => ['identify', ROLLOUTS, '--logged', 'loss=-0.12', '--loss', 'ppo', '--micro-batches', '1'],
    logprobs: (to) => {
      const file = writeLogits(to, [2, 4]);
      return ['logprobs', '--logits', file, '--targets', file, '--out', join(to, 'logprobs.jsonl')];
    },
    distill: (to) => {
      const file = writeLogits(to, [1, 2, 4]);
      const loss = ['--loss', 'trl/gkd', '--grad-out', join(to, 'gradient.safetensors')];
      return ['distill', ...loss, '--logits', file, '--teacher-logits', `${file}:logits`];
    },
    list: () => ['list'],
    devices: () => ['devices'],
    completion: () => ['completion', 'bash'],
    build: () => ['build', '--help'],
    help: () => ['--help'],
  };

  it('is tested with every command', async () => {
    const { output } = await runOffline([PROGRAM, '--help']);
    const commands = [...output.matchAll(/^ {2}(\w+)(?= )/gm)].map(([, name]) => name!);
    assert.ok(commands.length >= 7, output);
    for (const name of commands)
      assert.ok(
        Object.keys(COMMANDS).some((of) => of.split(' ')[0] === name),
        name,
      );
  });

  for (const [what, words] of Object.entries(COMMANDS))
    it(`${what} opens no socket`, async () => {
      const { seen, sockets, code, output } = await runOffline([PROGRAM, ...words(folder)]);
      assert.deepEqual({ seen, sockets }, { seen: [], sockets: [] });
      assert.equal(code, 0, output);
      assert.notEqual(output, '');
    });

  it('evaluate reads SQLite and Parquet without a socket', async () => {
    const parquet = join(folder, 'rollouts.parquet');
    const { code, output } = await runOffline([
      PROGRAM,
      'gradients',
      ROLLOUTS,
      '--loss',
      'ppo',
      '--out',
      parquet,
    ]);
    assert.equal(code, 0, output);
    const sqlite = `${join(ROOT, 'test', 'tools', 'rollouts', 'fixtures', 'rollouts.sqlite')}#rollouts`;
    const columns = ['--column', 'logprobs=grad', '--column', 'old_logprobs=grad', '--column', 'reward=row'];
    for (const words of [[sqlite], [parquet, ...columns, '--column', 'advantages=grad']]) {
      const run = await runOffline([PROGRAM, 'evaluate', ...words, '--loss', 'ppo']);
      assert.deepEqual({ seen: run.seen, sockets: run.sockets }, { seen: [], sockets: [] });
      assert.equal(run.code, 0, run.output);
      assert.match(run.output, /pg_loss/);
    }
  });

  it('is tested with functions that report each attempt to open a socket', async () => {
    const ways: Record<string, string> = {
      'net.Server.listen': "require('node:net').createServer().listen(0)",
      'net.Socket.connect': "require('node:net').connect(1)",
      'dns.lookup': "require('node:dns').lookup('localhost', () => {})",
      'dgram.createSocket': "require('node:dgram').createSocket('udp4')",
      'node:http.get': "require('node:http').get('http://localhost')",
      fetch: "fetch('http://localhost')",
    };
    for (const [what, way] of Object.entries(ways)) {
      const file = join(folder, 'way.cjs');
      writeFileSync(file, way);
      const { seen, code } = await runOffline([file]);
      assert.deepEqual(seen, [what]);
      assert.notEqual(code, 0);
    }
  });

  it('uses the network only where files on servers are read', () => {
    const files = readdirSync(join(ROOT, 'lib'), { recursive: true, encoding: 'utf8' }).filter((file) =>
      /\.c?ts$/.test(file),
    );
    assert.ok(files.length > 100);
    for (const file of files) {
      if (file === join('tools', 'rollouts', 'remote', 'http.ts')) continue;
      const text = readFileSync(join(ROOT, 'lib', file), 'utf8');
      assert.doesNotMatch(
        text,
        /['"](node:)?(net|http|https|http2|tls|dgram|dns|dns\/promises|inspector|cluster)['"]|\bfetch\(|WebSocket/,
        file,
      );
    }
  });
});

describe('dependencies', () => {
  const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const lock = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8'));

  it('are exactly the packages that are imported, except for peers', () => {
    const imported = new Set<string>();
    const files = readdirSync(join(ROOT, 'lib'), { recursive: true, encoding: 'utf8' })
      .filter((file) => /\.c?ts$/.test(file))
      .map((file) => join('lib', file));
    for (const file of [...files, 'CMakeLists.txt']) {
      const text = readFileSync(join(ROOT, file), 'utf8');
      for (const [, name] of text.matchAll(
        /(?:from|import|require|resolve)\(?\s*['"]((?:@[\w-]+\/)?[\w-]+)(?:\/[\w./-]+)?['"]/g,
      ))
        if (name !== 'node' && name !== manifest.name && !(name! in manifest.peerDependencies))
          imported.add(name!);
    }
    const peers = Object.keys(manifest.peerDependencies);
    const own = [...imported].filter((name) => !peers.includes(name)).sort();
    assert.deepEqual(own, Object.keys(manifest.dependencies).sort());
  });

  it('are locked, each with a digest', () => {
    assert.equal(lock.lockfileVersion, 3);
    assert.deepEqual(lock.packages[''].dependencies, manifest.dependencies);
    assert.deepEqual(lock.packages[''].devDependencies, manifest.devDependencies);
    for (const [name, entry] of Object.entries(lock.packages) as [string, { integrity?: string }][])
      if (name !== '') assert.match(entry.integrity ?? '', /^sha512-/, name);
  });

  it('run no script during installation', () => {
    for (const script of ['preinstall', 'install', 'postinstall', 'prepare'])
      assert.equal(manifest.scripts[script], undefined, script);
    // When npm installs a package that has a binding.gyp, it builds the package.
    assert.ok(!readdirSync(ROOT).includes('binding.gyp'));
    for (const [name, entry] of Object.entries(lock.packages) as [
      string,
      { dev?: boolean; hasInstallScript?: boolean },
    ][])
      assert.ok(entry.dev || !entry.hasInstallScript, `${name} runs a script`);
  });
});
