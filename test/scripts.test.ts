/** Tests that scripts and documents name only npm scripts and files that exist. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { globSync } from 'tinyglobby';
// @ts-expect-error: this module is plain JavaScript, because pack-gpu.mjs imports it.
import { COPIED } from '../scripts/gpu/packed.mjs';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const text = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const { scripts } = JSON.parse(text('package.json')) as { scripts: Record<string, string> };

/** Returns the files that may name npm scripts. */
function files(): string[] {
  const folders = ['.ci', '.github', 'bench', 'docs', 'examples', 'lib', 'scripts', 'test'];
  // Does not enter node_modules: the one in examples/models has a link to the repository.
  return globSync(['*.md', '.ci/run', ...folders.map((folder) => `${folder}/**/*.{md,mjs,sh,ts,yml}`)], {
    cwd: ROOT,
    ignore: ['**/node_modules'],
    dot: true,
  });
}

describe('scripts', () => {
  it('that are called or documented exist in package.json', () => {
    const named = files().flatMap((file) =>
      [...text(file).matchAll(/npm run ([a-z][\w:-]*)/g)].map(([, name]) => ({ file, name: name! })),
    );
    assert.ok(named.length > 20);
    for (const { file, name } of named) assert.ok(name in scripts, `${file}: npm run ${name}`);
  });

  it('call files that exist', () => {
    const paths = Object.values(scripts).flatMap((line) =>
      [...line.matchAll(/\b(?:scripts|test|bench)\/[\w./-]+\.(?:sh|ts|mjs)\b/g)].map(([path]) => path),
    );
    assert.ok(paths.length > 10);
    for (const path of paths) assert.ok(existsSync(join(ROOT, path)), path);
  });

  // With --parallel, Mocha only warns of a file that does not exist.
  it('name only suites that exist', () => {
    const lists = ['scripts/sanitize/test.sh', 'scripts/test/test.sh'].flatMap((script) =>
      [...text(script).matchAll(/(?:suites|files)=\(([^)]*test\/[^)]*)\)/g)].map(([, words]) => words!),
    );
    assert.equal(lists.length, 5);
    const print = ['-c', `shopt -s failglob; printf '%s\\n' ${lists.join(' ').replaceAll(/\s+/g, ' ')}`];
    const suites = execFileSync('bash', print, { cwd: ROOT, encoding: 'utf8' }).match(/\S+\.test\.ts/g)!;
    const [, names] = /const suites = \[(.*?)\]/s.exec(text('test/every-isa.mjs'))!;
    suites.push(...[...names!.matchAll(/'(.*)'/g)].map(([, name]) => `test/${name}.test.ts`));
    assert.ok(suites.length > 40);
    for (const path of suites) assert.ok(existsSync(join(ROOT, path)), path);
  });

  it('for pack:gpu list only files that exist', () => {
    const { include } = JSON.parse(text('tsconfig.pack.json')) as { include: string[] };
    for (const path of [...(COPIED as string[]), ...include]) assert.ok(existsSync(join(ROOT, path)), path);
    const python = readdirSync(join(ROOT, 'bench/peers')).filter((file) => file.endsWith('.py'));
    for (const file of python) assert.ok(COPIED.includes(`bench/peers/${file}`), file);
  });
});
