/** Tests that the scripts of docs/clusters.md work, and the commands of its examples for Kubernetes and docker-compose. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { drawRows } from '../../support/rollout-rows.js';
import { Files, PROGRAM, ROOT, runJson } from '../cli/support.js';
import { anyPort, endWithTests, needsRedis, until, withoutBatches } from './support.js';

const PAGE = readFileSync(join(ROOT, 'docs', 'clusters.md'), 'utf8');

/** Returns the code blocks of the page that are in a language and have a text. */
function blocks(language: string, has: string): string[] {
  const all = [...PAGE.matchAll(new RegExp(`^\`\`\`${language}\\b[^\\n]*\\n(.*?)^\`\`\``, 'gms'))];
  return all.map(([, text]) => text!).filter((text) => text.includes(has));
}

describe('docs/clusters.md', () => {
  let files: Files;
  let inputs: string[];
  beforeEach(() => {
    files = new Files();
    mkdirSync(files.path('rollouts'));
    inputs = [1, 2, 3].map((seed) => files.write(`rollouts/${seed}.jsonl`, drawRows(seed, 20)));
    write('policy-loss', `#!/bin/sh\nexec '${process.execPath}' '${PROGRAM}' "$@"\n`);
    write('jq', `#!/bin/sh\nexec '${process.execPath}' -p 'JSON.parse(require("fs").readFileSync(0))'"$1"\n`);
  });
  afterEach(() => files.remove());

  const write = (name: string, text: string) => {
    writeFileSync(files.path(name), text);
    chmodSync(files.path(name), 0o755);
  };
  /** Replaces the folder that all machines share, and makes several shards. */
  const local = (text: string) =>
    text.replaceAll('/shared/', `${files.directory}/`).replace('--algorithm', '--shard-size 16K --algorithm');
  const environment = (more: NodeJS.ProcessEnv = {}) => ({
    ...process.env,
    PATH: `${files.directory}:${process.env.PATH}`,
    ...more,
  });
  const execute = (command: string, words: readonly string[], more?: NodeJS.ProcessEnv): string => {
    const options = { cwd: files.directory, encoding: 'utf8', timeout: 240_000 } as const;
    const { status, stdout, stderr } = spawnSync(command, words, { ...options, env: environment(more) });
    assert.equal(status, 0, stderr);
    return stdout;
  };
  const assertMerged = async (merged: string) => {
    const alone = await runJson('evaluate', ...inputs, '--algorithm', 'grpo');
    assert.ok(JSON.parse(merged).batches > 2, merged);
    assert.deepEqual(withoutBatches(merged), withoutBatches(JSON.stringify(alone)));
  };

  it('has scripts for Slurm that give the result of evaluate', async () => {
    const scripts = blocks('sh', '#!/bin/bash').map((text) => [/^# (\S+\.sh)$/m.exec(text)![1]!, text]);
    assert.deepEqual(
      scripts.map(([name]) => name),
      ['submit.sh', 'shard.sh', 'merge.sh'],
    );
    for (const [name, text] of scripts) write(name!, local(text!));
    // Runs jobs at once. The tasks of an array run in reverse.
    write(
      'sbatch',
      `#!/bin/bash
      set -e
      while [[ $1 == --* ]]; do
        case $1 in --array=0-*) last=\${1#--array=0-};; esac
        shift
      done
      script=$1; shift
      if [[ -z \${last+x} ]]; then bash "$script" "$@" >&2
      else for ((i = last; i >= 0; i--)); do SLURM_ARRAY_TASK_ID=$i bash "$script" "$@" >&2; done; fi
      echo 7`,
    );
    execute('bash', ['submit.sh']);
    await assertMerged(readFileSync(files.path('run/result.json'), 'utf8'));
  });

  it('has a Job for Kubernetes whose pods give the result of evaluate', async () => {
    const [text, ...others] = blocks('yaml', 'kind: Job');
    assert.deepEqual(others, []);
    const { apiVersion, spec } = parse(text!);
    assert.equal(apiVersion, 'batch/v1');
    // An index is tried again by itself only in an indexed Job whose pods do not start their containers again.
    assert.equal(spec.completionMode, 'Indexed');
    assert.ok(spec.backoffLimitPerIndex > 0);
    const pod = spec.template.spec;
    assert.equal(pod.restartPolicy, 'Never');
    const [{ command, args, volumeMounts }] = pod.containers;
    assert.deepEqual(
      volumeMounts.map(({ name }: { name: string }) => name),
      pod.volumes.map(({ name }: { name: string }) => name),
    );
    const plan = local('/shared/run/plan.json');
    mkdirSync(files.path('run'));
    const words = ['plan', local('/shared/rollouts/*.jsonl'), '--algorithm', 'grpo', '--shard-size', '16K'];
    const { shards } = await runJson(...words, '--out', plan);
    for (const phase of ['count', 'compute'])
      for (let index = 0; index < shards; index++) {
        const [first, ...rest] = [...command, ...args].map((word: string) =>
          local(word).replace('--phase count', `--phase ${phase}`),
        );
        execute(first!, rest, { JOB_COMPLETION_INDEX: String(index) });
      }
    const [merge] = blocks('sh', 'kubectl apply').map((text) => /^policy-loss merge .*$/m.exec(text)![0]);
    await assertMerged(execute('sh', ['-c', `${local(merge!)} --json --quiet`]));
  });

  it('has a docker-compose file whose services give the result of evaluate', async function () {
    needsRedis(this);
    const [text, ...others] = blocks('yaml', 'services:');
    assert.deepEqual(others, []);
    const [script] = blocks('sh', 'docker compose');
    const port = anyPort();
    const password = 'c0ffee';
    // What docker-compose does with variables.
    const interpolated = text!.replaceAll('$' + '{REDIS_PASSWORD}', password).replaceAll('$$', '$');
    const { redis, worker } = parse(interpolated).services;
    assert.equal(worker.depends_on.redis.condition, 'service_healthy');
    write('docker-entrypoint.sh', '#!/bin/sh\nexec "$@"\n');
    write('docker', '#!/bin/sh\nexit 0\n');
    write('openssl', `#!/bin/sh\necho ${password}\n`);
    const onPort = (text: string) =>
      text
        .replace('redis-server', `redis-server --port ${port} --bind 127.0.0.1 --dir ${files.directory}`)
        .replace('redis-cli', `redis-cli -p ${port}`)
        .replace(/@(redis|127\.0\.0\.1):6379/, `@127.0.0.1:${port}`);

    const ends: (() => Promise<void>)[] = [];
    const start = (words: readonly string[], more: NodeJS.ProcessEnv): void => {
      const [command, ...rest] = words.map((word) => onPort(local(word)));
      const child = spawn(command!, rest, { detached: true, stdio: 'ignore', env: environment(more) });
      endWithTests(child);
      const closed = once(child, 'close');
      ends.push(async () => {
        if (child.exitCode === null) process.kill(-child.pid!, 'SIGKILL');
        await closed;
      });
    };
    try {
      start(redis.command, redis.environment);
      const healthy = () => {
        const { status } = spawnSync('sh', ['-c', onPort(redis.healthcheck.test)], {
          env: environment(redis.environment),
        });
        return status === 0;
      };
      await until('Redis is healthy', healthy);
      assert.ok(existsSync(files.path('appendonlydir')), 'Redis keeps its data');
      const ofWorker = Object.fromEntries(
        Object.entries<string>(worker.environment).map(([name, value]) => [name, onPort(value)]),
      );
      start(worker.command.split(' '), ofWorker);
      const submit = onPort(local(script!)).trimEnd();
      await assertMerged(execute('bash', ['-euc', `${submit} --json --quiet`]));
    } finally {
      for (const end of ends) await end();
    }
  });
});
