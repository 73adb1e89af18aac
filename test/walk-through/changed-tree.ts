// Applies the steps of CONTRIBUTING.md to a copy of the tree, and runs commands there.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));
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
 * Applies the steps of a section of CONTRIBUTING.md to a copy of the repository (`tree`), and returns the files that they
 * change or create.
 */
function applySteps(tree: string, title: string): string[] {
  const guide = readFileSync(join(ROOT, 'CONTRIBUTING.md'), 'utf8');
  const section = guide.split(`\n## ${title}\n`)[1]!.split('\n## ')[0]!;
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
      const [, name] = /`(test\/walk-through\/[\w-]+\.json)`/.exec(body!)!;
      const cases = readFileSync(join(ROOT, name!), 'utf8');
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

/** A copy of the tree to which the steps of a section of CONTRIBUTING.md were applied. */
export class ChangedTree {
  readonly path = mkdtempSync(join(tmpdir(), 'policy-loss-walk-through-'));
  /** The files that the steps change or create. */
  readonly touched: ReadonlySet<string>;
  readonly #environment: NodeJS.ProcessEnv;

  /** @param environment variables of the commands that are different from those of this process. */
  constructor(title: string, environment: NodeJS.ProcessEnv = {}) {
    this.#environment = { ...process.env, ...environment };
    const list = ['ls-files', '-co', '--exclude-standard', '-z'];
    const files = execFileSync('git', list, { cwd: ROOT, encoding: 'utf8' });
    for (const file of files.split('\0').filter(Boolean))
      if (existsSync(join(ROOT, file))) cpSync(join(ROOT, file), join(this.path, file));
    symlinkSync(join(ROOT, 'node_modules'), join(this.path, 'node_modules'));
    this.touched = new Set(applySteps(this.path, title));
  }

  /** Runs a command in the tree, which must succeed, and returns what it prints. */
  run(command: string, ...args: string[]): string {
    const options = { cwd: this.path, encoding: 'utf8', env: this.#environment } as const;
    const { status, stdout, stderr } = spawnSync(command, args, options);
    assert.equal(status, 0, `${command} ${args.join(' ')}:\n${`${stdout}\n${stderr}`.slice(-8000)}`);
    return stdout;
  }

  /** Runs suites, given as their paths in test/ without the ending. Returns what they print. */
  mocha(suites: readonly string[], ...words: string[]): string {
    return this.run('npx', 'mocha', ...words, ...suites.map((suite) => `test/${suite}.test.ts`));
  }

  /** Returns the text of a file of the tree. */
  read(file: string): string {
    return readFileSync(join(this.path, file), 'utf8');
  }

  /** Writes a file of the tree. */
  write(file: string, text: string): void {
    writeFileSync(join(this.path, file), text);
  }

  remove(): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}
