/** Tests the examples of losses that users define: they must run as they are, and give the right results. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { PolicyLossFn } from '../../lib/index.js';
import { FUNCTIONS, VALUES } from '../../lib/program/symbols.js';

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
  it('describes every name and function of the language', () => {
    const page = readFileSync(new URL('../../docs/your-own-loss.md', import.meta.url), 'utf8');
    for (const name of [...VALUES.keys(), ...FUNCTIONS.keys()])
      assert.match(page, new RegExp(`\`${name}[\`(]`), name);
  });
});
