/**
 * Reads the code of README.md and of the pages in docs.
 *
 * TypeScript or JavaScript that begins with an import begins a program. Code without imports continues the program before
 * it, in a block of its own, so it may use and shadow the names declared there.
 *
 * Code that cannot run here has the reason after its language: ```ts no-run=gpu. It is compiled all the same.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));
export const PAGES = ['README.md', ...readdirSync(join(ROOT, 'docs')).map((name) => `docs/${name}`)];

const LANGUAGES = ['ts', 'js', 'sh', 'text', 'yaml'];
/** The reasons not to run code, and what the code must then contain. */
const REASONS: Record<string, RegExp> = {
  clone: /\bnpm ci\b/,
  cluster: /\b(sbatch|SBATCH|kubectl)\b/,
  gpu: /cuda|device|resident|pinned/i,
  install: /\bnpm install\b/,
  model: /onnxruntime|@huggingface/,
  queue: /redis|bullmq/i,
  server: /\b(s3|https?):\/\//,
};

/** Code between two lines of three backquotes. */
export interface Fence {
  /** Where it is, such as `docs/api.md:5`. */
  readonly place: string;
  /** The number of lines up to its first line of code. */
  readonly line: number;
  readonly language: string;
  readonly runs: boolean;
  readonly code: string;
}

/** Code that is compiled and run as one file. */
export interface Program {
  readonly place: string;
  /** The name of a file for it. */
  readonly name: string;
  readonly runs: boolean;
  /** The source. Each line of code has the number that it has in the page. */
  readonly source: string;
}

/** Returns the code of a page. */
export function fencesOf(page: string): Fence[] {
  const text = readFileSync(join(ROOT, page), 'utf8');
  return [...text.matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)].map((match) => {
    const [, head = '', code = ''] = match;
    const line = text.slice(0, match.index).split('\n').length;
    const place = `${page}:${line}`;
    const [language = '', mark, ...rest] = head.split(' ');
    assert.ok(LANGUAGES.includes(language), `${place}: expected one of ${LANGUAGES}, got '${language}'`);
    if (mark !== undefined) {
      const reason = mark.startsWith('no-run=') ? REASONS[mark.slice('no-run='.length)] : undefined;
      assert.ok(
        reason && rest.length === 0,
        `${place}: expected no-run= and one of ${Object.keys(REASONS)}, got '${head}'`,
      );
      assert.match(code, reason, `${place}: expected a reason for '${mark}' in the code`);
    }
    return { place, line, language, runs: mark === undefined, code };
  });
}

/** Returns the programs of a page. */
export function programsOf(page: string): Program[] {
  const programs: Fence[][] = [];
  for (const fence of fencesOf(page)) {
    if (fence.language !== 'ts' && fence.language !== 'js') continue;
    const last = programs.at(-1);
    if (/^import /m.test(fence.code)) programs.push([fence]);
    else {
      assert.ok(last, `${fence.place}: expected an import, because no code comes before it`);
      assert.equal(
        fence.runs,
        last[0]!.runs,
        `${fence.place}: expected the mark of ${last[0]!.place}, which it continues`,
      );
      last.push(fence);
    }
  }
  return programs.map(programOf);
}

function programOf(fences: readonly Fence[]): Program {
  const [{ place, line, language, runs }] = fences as [Fence];
  const lines: string[] = [];
  for (const fence of fences) {
    while (lines.length < fence.line) lines.push('');
    if (fence !== fences[0]) lines[fence.line - 1] = '{';
    lines.push(...fence.code.split('\n'));
  }
  lines.push('}'.repeat(fences.length - 1));
  const name = `${basename(place).replace(/\.md:.*/, '')}-${line}.${language === 'ts' ? 'ts' : 'mjs'}`;
  return { place, name, runs, source: lines.join('\n') };
}

/** Returns the lines of the shell scripts of a page that can run here, without comments. */
export function commandsOf(page: string): { place: string; command: string }[] {
  return fencesOf(page)
    .filter(({ language, runs }) => language === 'sh' && runs)
    .flatMap(({ place, code }) =>
      code
        .replaceAll('\\\n', '')
        .split('\n')
        .map((line) => line.replace(/(^|\s)#.*/, '').trim())
        .filter(Boolean)
        .map((command) => ({ place, command })),
    );
}
