/** Tests the examples of losses that users define: they must run as they are, and give the right results. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import {
  type Batch,
  type ExpressionOptions,
  LOSS_FN,
  lossFromExpression,
  type PolicyLossFn,
} from '../../lib/index.js';
import { FUNCTIONS, VALUES } from '../../lib/program/symbols.js';
import { makeBatch } from '../support/draw.js';
import { packedBatch } from '../support/subject.js';
import { assertArray, assertNumber } from '../support/tolerance.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** Runs a program in the repository's folder. Returns what it prints. Asserts that it prints no error. */
async function outputOf(
  program: string,
  words: string[],
  env: NodeJS.ProcessEnv = process.env,
): Promise<string> {
  const { stdout, stderr } = await promisify(execFile)(program, words, { cwd: ROOT, env });
  assert.equal(stderr, '');
  return stdout;
}

describe('the examples of user-defined losses', () => {
  it('own-loss.ts computes the same as the built-in loss, and passes all checks', async () => {
    const stdout = await outputOf(process.execPath, ['--import', 'tsx', 'examples/own-loss.ts']);
    const results = [...stdout.matchAll(/^(expression|built-in PPO) \{(.*?)^\}/gms)].map(
      ([, , text]) => text!,
    );
    assert.equal(results.length, 2, stdout);
    const [ours, builtIn] = results.map((text) =>
      [...text.matchAll(/-?\d+(\.\d+)?/g)].map(([x]) => Number(x)),
    );
    assert.ok(ours!.length > 8);
    ours!.forEach((x, i) => {
      assert.ok(Math.abs(x - builtIn![i]!) < 1e-6, `${results[0]} and ${results[1]}`);
    });
    assert.match(stdout, /^ok +gradient: /m);
    assert.doesNotMatch(stdout, /^FAILED/m);
  });

  it('my-losses.mjs exports losses that pass all checks', async () => {
    const load = (file: string) => import(new URL(file, import.meta.url).href);
    const losses: Record<string, new () => PolicyLossFn<object>> = await load('../../examples/my-losses.mjs');
    // The example imports the compiled package, whose checkLoss() accepts only losses of its own.
    const { checkLoss }: typeof import('../../lib/index.js') = await load('../../dist/index.js');
    assert.equal(Object.keys(losses).length, 2);
    for (const Loss of Object.values(losses)) {
      const report = await checkLoss(new Loss());
      assert.ok(report.ok, String(report));
    }
  });

  (process.platform === 'win32' ? it.skip : it)('own-loss.sh runs every command', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'policy-loss-'));
    try {
      // In the repository, npx does not find the package's own program.
      writeFileSync(
        join(folder, 'npx'),
        `#!/bin/sh\nshift\nexec '${process.execPath}' dist/tools/cli/main.js "$@" --quiet\n`,
      );
      chmodSync(join(folder, 'npx'), 0o755);
      const path = [folder, process.env.PATH].join(delimiter);
      const stdout = await outputOf('sh', ['examples/own-loss.sh'], { ...process.env, PATH: path });
      const commands = readFileSync(join(ROOT, 'examples/own-loss.sh'), 'utf8').match(/^npx/gm)!.length;
      assert.equal(stdout.match(/^(256 rows, 9164 tokens|rows +256)$/gm)?.length, commands, stdout);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

describe('docs/your-own-loss.md', () => {
  const page = readFileSync(new URL('../../docs/your-own-loss.md', import.meta.url), 'utf8');

  it('describes every name and function of the language', () => {
    for (const name of [...VALUES.keys(), ...FUNCTIONS.keys()])
      assert.match(page, new RegExp(`\`${name}[\`(]`), name);
  });

  const SAMPLES: Record<string, [name: string, args: object, options: ExpressionOptions<never, never>]> = {
    dpo: ['trl/dpo', { beta: 0.3 }, { options: { beta: 0.3 } }],
    simpo: [
      'trl/cpo',
      { loss_type: 'simpo', cpo_alpha: 0, beta: 2, simpo_gamma: 0.5 },
      { options: { beta: 2, gamma: 0.5 } },
    ],
    critic: ['verl/value', { cliprange_value: 0.2 }, { options: { c: 0.2 } }],
    rewardModel: ['trl/reward', {}, {}],
  };
  for (const [sample, [name, args, options]] of Object.entries(SAMPLES))
    it(`${sample} is ${name} in one line`, () => {
      const text = new RegExp(`const ${sample} = lossFromExpression\\('([^']+)'`).exec(page)?.[1];
      assert.ok(text !== undefined, sample);
      const drawn = makeBatch({
        seed: 6,
        rows: 12,
        columns: 9,
        values: 'moderate',
        mask: 'random',
        packed: true,
      });
      // Both rows of a pair have its margin.
      const margin = Float64Array.from({ length: 12 }, (_, row) => (row >> 1) / 4);
      const batch: Batch = packedBatch({ ...drawn, margin });
      const [ours, theirs] = [lossFromExpression(text, options), LOSS_FN.create(name, { ...args })].map(
        (fn) => ({ ...(fn as PolicyLossFn).computeSync(batch, { grad: true }) }) as Record<string, unknown>,
      );
      assertNumber(ours!.loss as number, theirs!.loss as number, sample);
      const grads = ['grad', 'gradValues', 'gradRewards'].filter((key) => theirs![key] !== undefined);
      assert.equal(grads.length, 1);
      for (const key of grads)
        assertArray(ours![key] as Float32Array, theirs![key] as Float32Array, `${sample}: ${key}`);
    });
});
