// Tests the walk-through in CONTRIBUTING.md: applies its steps to a copy of the tree, then builds and tests the copy.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
// The number of files that the steps change or create. Generated documents do not count.
const PLACES = 6;

/**
 * Applies a diff to a text: replaces the diff's old lines with its new lines. The old lines must occur exactly once.
 */
function applyDiff(text: string, diff: string): string {
  const lines = diff.split('\n').filter((line) => line !== '');
  const side = (dropped: string) =>
    lines.filter((line) => !line.startsWith(dropped)).map((line) => `${line.slice(1)}\n`);
  const [before, after] = [side('+').join(''), side('-').join('')];
  assert.equal(text.split(before).length, 2, `expected these lines exactly once in the file:\n${before}`);
  return text.replace(before, () => after);
}

/**
 * Applies the steps of CONTRIBUTING.md to a copy of the repository (`tree`), and returns the files that they change or
 * create.
 */
function applySteps(tree: string): string[] {
  const guide = readFileSync(join(ROOT, 'CONTRIBUTING.md'), 'utf8');
  const section = guide.split('\n## Adding a loss\n')[1]!.split('\n## ')[0]!;
  const steps = [
    ...section.matchAll(/^\*\*\d+\. (Create|In) `([^`]+)`\*\*([\s\S]*?)(?=^\*\*\d+\. |(?![\s\S]))/gm),
  ];
  for (const [, action, file, body] of steps) {
    const path = join(tree, file!);
    const blocks = [...body!.matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm)].map(([, language, code]) => ({
      language,
      code: code!,
    }));
    if (action === 'Create') {
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path, blocks[0]!.code);
      continue;
    }
    if (file!.endsWith('.json')) {
      const cases = readFileSync(join(ROOT, 'test/walk-through/golden-cases.json'), 'utf8');
      const own = readFileSync(path, 'utf8').trimEnd();
      writeFileSync(path, `${own.slice(0, -1).trimEnd()},\n${cases.trimStart().slice(1).trimStart()}`);
      continue;
    }
    const diffs = blocks.filter(({ language }) => language === 'diff');
    assert.ok(diffs.length > 0, `step for ${file}: expected a diff`);
    for (const { code } of diffs) writeFileSync(path, applyDiff(readFileSync(path, 'utf8'), code));
  }
  return steps.map(([, , file]) => file!);
}

describe('the walk-through', () => {
  let tree: string;
  const run = (command: string, ...args: string[]) => {
    const { status, stdout, stderr } = spawnSync(command, args, {
      cwd: tree,
      encoding: 'utf8',
      env: environment,
    });
    assert.equal(status, 0, `${command} ${args.join(' ')}:\n${`${stdout}\n${stderr}`.slice(-8000)}`);
    return stdout;
  };
  // The copy must load the native module that was built in it, so the variable that names another one is removed.
  const { POLICY_LOSS_NATIVE, ...environment } = process.env;
  let touched: string[];

  before(function () {
    this.timeout(600_000);
    tree = mkdtempSync(join(tmpdir(), 'policy-loss-walk-through-'));
    const files = execFileSync('git', ['ls-files', '-co', '--exclude-standard', '-z'], {
      cwd: ROOT,
      encoding: 'utf8',
    });
    for (const file of files.split('\0').filter(Boolean)) cpSync(join(ROOT, file), join(tree, file));
    symlinkSync(join(ROOT, 'node_modules'), join(tree, 'node_modules'));
    touched = applySteps(tree);
    run('npx', 'cmake-js', 'build', '--runtime', 'node', '--CDPOLICY_LOSS_CUDA=OFF');
    run('npx', 'tsx', 'scripts/generate/generate.ts', '--tokens', '100');
  });

  after(() => rmSync(tree, { recursive: true, force: true }));

  it('changes or creates six files', () => assert.equal(new Set(touched).size, PLACES));

  it('passes the type check', function () {
    this.timeout(120_000);
    run('npm', 'run', 'build:ts');
    run('npx', 'tsc', '-p', '.');
  });

  it('passes the suites that cover every registered function', function () {
    this.timeout(900_000);
    const mocha = (suites: readonly string[], ...words: string[]) =>
      run('npx', 'mocha', ...words, ...suites.map((suite) => `test/${suite}.test.ts`));
    assert.match(mocha(['base/registry', 'losses/generated', 'matrix/golden']), /ratio_penalty/);
    // These suites take longer for all functions, and the others have already passed them.
    for (const suite of ['matrix/reference', 'matrix/bits', 'matrix/parts', 'losses/numerics'])
      assert.match(mocha([suite], '--grep', 'ratio_penalty'), /ratio_penalty[\s\S]* [1-9]\d* passing/);
  });

  it('shows the loss in `list`, README.md, docs/numerics.md and the benchmarks', function () {
    this.timeout(60_000);
    assert.match(run('npx', 'tsx', 'lib/cli/main.ts', 'list', 'ratio_penalty'), /beta/);
    for (const file of ['README.md', 'docs/numerics.md'])
      assert.match(readFileSync(join(tree, file), 'utf8'), /`ratio_penalty`/, file);
    const works =
      "import('./bench/lib/works.ts').then(({ works }) => import('./lib/index.ts').then((api) => " +
      'console.log(works(api).map(({ id }) => id).join())))';
    assert.match(run('npx', 'tsx', '-e', works), /\bratio_penalty\b/);
  });
});
