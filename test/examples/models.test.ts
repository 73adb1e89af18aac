/** Tests the examples in examples/models, which need the packages that `npm ci --prefix examples/models` installs. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '../support/temporary-folder.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const FOLDER = join(ROOT, 'examples/models');

describe('the examples with models', () => {
  const files = temporaryFolder();

  /** Runs a file of the folder and returns what it prints. */
  function run(file: string, ...words: string[]): string {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['--import', 'tsx', file, ...words], {
      cwd: FOLDER,
      encoding: 'utf8',
      env: { ...process.env, TMPDIR: files.directory },
    });
    assert.equal(status, 0, stdout + stderr);
    return stdout;
  }

  it('type-check', () => {
    const { status, stdout } = spawnSync(
      process.execPath,
      [join(ROOT, 'node_modules/typescript/bin/tsc'), '-p', FOLDER],
      { encoding: 'utf8' },
    );
    assert.equal(status, 0, stdout);
  });

  it('have locked packages, each with a digest and without an address', () => {
    const { packages } = JSON.parse(readFileSync(join(FOLDER, 'package-lock.json'), 'utf8')) as {
      packages: Record<string, { integrity?: string; resolved?: string; link?: boolean }>;
    };
    for (const [name, { integrity, resolved, link }] of Object.entries(packages)) {
      if (!name.startsWith('node_modules/')) continue;
      if (link) assert.equal(resolved, '../..', name);
      else assert.deepEqual([integrity?.slice(0, 7), resolved], ['sha512-', undefined], name);
    }
  });

  it('compute GRPO from the logits of ONNX Runtime as from log-probabilities in float64', () => {
    const results = run('onnx.ts')
      .split(/^(?=float)/m)
      .map((part) => {
        const [heading, ...lines] = part.trimEnd().split('\n');
        const numbers = lines.map((line) => line.trim().split(': ') as [string, string]);
        const values: Record<string, number> = Object.fromEntries(
          numbers.map(([name, value]) => [name, Number(value)]),
        );
        return { heading, values };
      });
    assert.deepEqual(
      results.map(({ heading }) => heading),
      ['float32 logits', 'float16 logits'],
    );
    const [single, half] = results.map(({ values }) => values) as [
      Record<string, number>,
      Record<string, number>,
    ];
    const difference = 'largest difference from float64';
    assert.ok(single[difference]! < 1e-5, `${single[difference]}`);
    // Logits of up to 32 are rounded to multiples of 1/64, and two of them count most.
    assert.ok(half[difference]! < 0.02 && half[difference]! > 1e-4, `${half[difference]}`);
    for (const { 'mean log-probability': own, 'mean log-probability in the file': theirs } of [
      single,
      half,
    ]) {
      // The model knows the texts about as well as the policy that wrote them.
      assert.ok(Math.abs(own! - theirs!) < 0.5, `${own}, and ${theirs} in the file`);
    }
    for (const name of ['loss', 'pg_clipfrac', 'mean log-probability', 'largest number of the gradient'])
      assert.ok(Math.abs(single[name]! - half[name]!) < 0.01 * Math.abs(single[name]!), name);
    const left = readdirSync(files.directory).filter((name) => name.startsWith('policy-loss'));
    assert.deepEqual(left, []);
  });

  it('write ONNX files', () => {
    assert.match(run('write-onnx.ts', files.directory), /^Wrote .*float32\.onnx and .*float16\.onnx\n$/);
    for (const name of ['float32', 'float16'])
      assert.ok(statSync(files.path(`${name}.onnx`)).size > 4 * 4 * 53 ** 2);
  });

  it('train a model in TensorFlow.js until the reward is clearly up, and draw its curve', () => {
    const output = run('train-tfjs.ts');
    const [, first, last] = /^reward: ([\d.]+) in the first step, ([\d.]+) in the last$/m.exec(output)!;
    assert.ok(Number(first) < 0.1, output);
    assert.ok(Number(last) > 0.6, output);
    const curve = output.split('\n').filter((line) => /^\d\.\d │/.test(line));
    assert.equal(curve.length, 11);
    assert.equal(curve.join('').split('•').length - 1, 60, 'one dot for each step');
    assert.match(output, /^"a" is answered with "b[a-h]*\.?"$/m);
  });
});
