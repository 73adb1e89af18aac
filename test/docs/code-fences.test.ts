/**
 * Tests the code of README.md and of the pages in docs: programs compile under strict against the published types and run,
 * and commands run in the order of their page.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { captured } from '../support/captured.js';
import { runIn } from '../tools/cli/support.js';
import { commandsOf, PAGES, type Program, programsOf, ROOT } from './fences.js';
import { makeFiles } from './files.js';

/** The other programs that commands may use. */
const TOOLS = /^(cp|mkdir|head|tail) /;

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
    const compilerOptions = {
      module: 'nodenext',
      target: 'es2022',
      lib: ['es2023', 'esnext.disposable'],
      types: ['node'],
      strict: true,
      noEmit: true,
      allowJs: true,
      checkJs: true,
      skipLibCheck: true,
    };
    const files = [join(ROOT, 'test/docs/not-installed.d.ts'), ...programs.map(({ name }) => name)];
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files }));
    const tsc = createRequire(import.meta.url)
      .resolve('typescript/package.json')
      .replace('package.json', 'bin/tsc');
    const { stdout } = spawnSync(process.execPath, [tsc, '-p', '.', '--pretty', 'false'], {
      cwd: folder,
      encoding: 'utf8',
    });
    assert.equal(stdout, '');
  });

  for (const program of programs.filter(({ runs }) => runs)) it(`${program.place} runs`, () => runs(program));

  async function runs({ name }: Program): Promise<void> {
    const place = join(folder, `run-${name}`);
    makeFiles(place);
    const before = process.cwd();
    process.chdir(place);
    try {
      await captured(async () => {
        await import(pathToFileURL(join(folder, name)).href);
        return 0;
      });
    } finally {
      process.chdir(before);
    }
  }

  for (const page of PAGES) {
    const commands = commandsOf(page);
    if (commands.length === 0) continue;
    it(`the commands of ${page} run`, async function () {
      if (process.platform === 'win32') return this.skip();
      const place = join(folder, page.replace('/', '-'));
      makeFiles(place);
      for (const { place: where, command } of commands) {
        const words = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain!);
        const run =
          words[0] === 'npx' && words[1] === 'policy-loss'
            ? await runIn(place, words.slice(2))
            : inShell(place, command, where);
        assert.equal(run.code, 0, `${where}: ${command}\n${run.stdout}${run.stderr}`);
      }
    });
  }
});

function inShell(cwd: string, command: string, where: string) {
  assert.match(
    command,
    TOOLS,
    `${where}: expected npx policy-loss or a tool that the tests allow, or else a mark: ${command}`,
  );
  const { status: code, stdout, stderr } = spawnSync('sh', ['-c', command], { cwd, encoding: 'utf8' });
  return { code, stdout, stderr };
}
