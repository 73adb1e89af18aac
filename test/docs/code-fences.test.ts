/**
 * Tests the code of README.md and of the pages in docs: programs compile under strict against the published types and run,
 * and commands run in the order of their page.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { captured, type Run } from '../support/captured.js';
import { runIn } from '../tools/cli/support.js';
import { commandsOf, PAGES, programsOf, ROOT } from './fences.js';
import { makeFiles } from './files.js';

/** The commands that are run in addition to those of this package. */
const TOOLS = /^(cp|mkdir|head|tail) /;
/** The options of a reader's project that is strict. */
const COMPILER_OPTIONS = {
  strict: true,
  module: 'nodenext',
  target: 'es2022',
  lib: ['es2023', 'esnext.disposable'],
  types: ['node'],
  allowJs: true,
  checkJs: true,
  skipLibCheck: true,
  noEmit: true,
};

describe('the code of README.md and docs', () => {
  const programs = PAGES.flatMap(programsOf);
  let folder: string;
  // The folder is in this package, so that programs import it by its name.
  before(() => {
    mkdirSync(join(ROOT, 'build'), { recursive: true });
    folder = mkdtempSync(join(ROOT, 'build/fences-'));
    for (const { name, source } of programs) writeFileSync(join(folder, name), source);
  });
  after(() => rmSync(folder, { recursive: true }));

  it('compiles under strict', () => {
    const files = [join(ROOT, 'test/docs/not-installed.d.ts'), ...programs.map(({ name }) => name)];
    writeFileSync(
      join(folder, 'tsconfig.json'),
      JSON.stringify({ compilerOptions: COMPILER_OPTIONS, files }),
    );
    const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
    const { status, stdout } = spawnSync(process.execPath, [tsc, '-p', folder], { encoding: 'utf8' });
    // The name of a file has its page, and the lines are those of the page.
    assert.equal(status, 0, stdout);
  });

  for (const { place, name, runs } of programs)
    if (runs)
      it(`${place} runs`, async () => {
        makeFiles(join(folder, 'programs'));
        const before = process.cwd();
        process.chdir(join(folder, 'programs'));
        try {
          await captured(() => import(pathToFileURL(join(folder, name)).href).then(() => 0));
        } finally {
          process.chdir(before);
        }
      });

  for (const page of PAGES) {
    const commands = commandsOf(page);
    if (commands.length === 0) continue;
    it(`the commands of ${page} run`, async function () {
      if (process.platform === 'win32') return this.skip();
      const cwd = join(folder, page.replace('/', '-'));
      makeFiles(cwd);
      for (const { place, command } of commands) {
        const { code, stdout, stderr } = await runCommand(command, cwd);
        assert.equal(code, 0, `${place}: ${command}\n${stdout}${stderr}`);
      }
    });
  }
});

async function runCommand(command: string, cwd: string): Promise<Run> {
  const words = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain!);
  if (words[0] === 'npx' && words[1] === 'policy-loss') return runIn(cwd, words.slice(2));
  assert.match(
    command,
    TOOLS,
    `expected a mark, because only npx policy-loss and some tools run: ${command}`,
  );
  const { status: code, stdout, stderr } = spawnSync('sh', ['-c', command], { cwd, encoding: 'utf8' });
  return { code, stdout, stderr };
}
