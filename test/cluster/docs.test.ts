/** Tests that the scripts of docs/clusters.md work. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Files, PROGRAM, ROOT, runJson } from '../cli/support.js';
import { drawRows } from '../support/rollout-rows.js';
import { withoutBatches } from './support.js';

describe('docs/clusters.md', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  it('has scripts for Slurm that give the result of evaluate', async function () {
    this.timeout(300_000);
    const page = readFileSync(join(ROOT, 'docs', 'clusters.md'), 'utf8');
    const scripts = [...page.matchAll(/^```sh\n(#!\/bin\/bash\n# (\S+\.sh)\n.*?)^```/gms)];
    assert.deepEqual(
      scripts.map(([, , name]) => name),
      ['submit.sh', 'shard.sh', 'merge.sh'],
    );
    mkdirSync(files.path('rollouts'));
    const inputs = [1, 2, 3].map((seed) => files.write(`rollouts/${seed}.jsonl`, drawRows(seed, 20)));
    const write = (name: string, text: string) => {
      writeFileSync(files.path(name), text);
      chmodSync(files.path(name), 0o755);
    };
    for (const [, text, name] of scripts)
      write(
        name!,
        text!
          .replaceAll('/shared/', `${files.directory}/`)
          .replace('--algorithm', '--shard-size 16K --algorithm'),
      );
    write('policy-loss', `#!/bin/sh\nexec '${process.execPath}' '${PROGRAM}' "$@"\n`);
    write('jq', `#!/bin/sh\nexec '${process.execPath}' -p 'JSON.parse(require("fs").readFileSync(0))'"$1"\n`);
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
    const { status, stderr } = spawnSync('bash', ['submit.sh'], {
      cwd: files.directory,
      encoding: 'utf8',
      timeout: 240_000,
      env: { ...process.env, PATH: `${files.directory}:${process.env.PATH}` },
    });
    assert.equal(status, 0, stderr);
    const merged = readFileSync(files.path('run/result.json'), 'utf8');
    const alone = await runJson('evaluate', ...inputs, '--algorithm', 'grpo');
    assert.ok(JSON.parse(merged).batches > 2, merged);
    assert.deepEqual(withoutBatches(merged), withoutBatches(JSON.stringify(alone)));
  });
});
