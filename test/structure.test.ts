/**
 * Tests how the files of the library depend on each other: imports of types and links in comments count, too. The table in
 * CONTRIBUTING.md says what the folders of lib are for.
 */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { posix } from 'node:path';

const ROOT = new URL('../', import.meta.url);

/** The rooms of lib. A file imports files of its own room and of those before it. */
const ROOMS = [
  'lib/base',
  'lib/batch',
  'lib/device',
  'lib/call',
  'lib/program',
  'lib/logits',
  'lib/losses',
  'lib/define',
  'lib/algorithm',
  'lib/tfjs',
  'lib/index.ts',
  'lib/tools/rollouts',
  'lib/tools/parts',
  'lib/tools/cluster',
  'lib/tools/doctor',
  'lib/tools/diff',
  'lib/tools/identify',
  'lib/tools/cli',
];

/** The rooms that work in every engine of JavaScript, except for these files. */
const WITHOUT_NODE = ['lib/base', 'lib/batch', 'lib/losses', 'lib/program'];
const WITH_NODE = [
  // Finds the native module among the files of the package, and loads it.
  'lib/base/native.ts',
  // Has what Node offers and JavaScript does not: setImmediate(), Buffers that are not cleared, and warnings.
  'lib/base/node.ts',
];

const COMMANDS = 'lib/tools/cli/commands';
/** The files that add the commands to the program. */
const ADDING_COMMANDS = ['lib/tools/cli/commands.ts', 'lib/tools/cli/program.ts'];

/** The entry points of the package, and the packages that each loads. */
const ENTRIES = {
  'dist/index.js': ['acorn', 'fastest-levenshtein', 'node-gyp-build', 'yaml'],
  'dist/index.cjs': ['acorn', 'fastest-levenshtein', 'node-gyp-build', 'yaml'],
  'dist/tfjs/index.js': ['@tensorflow/tfjs-core', 'fastest-levenshtein'],
  'dist/tfjs/index.cjs': ['@tensorflow/tfjs-core', 'fastest-levenshtein'],
};

/** What a file imports: files of the project, with their paths from its root, and packages or modules of Node. */
interface Imports {
  readonly files: readonly string[];
  readonly packages: readonly string[];
}

function importsIn(file: string, text: string): Imports {
  const names = [...text.matchAll(/\b(?:from|import|require2?)\s*\(?\s*['"]([\w@./:-]+)['"]/g)].map(
    ([, name]) => name!,
  );
  const isFile = (name: string) => name.startsWith('.');
  return {
    files: names.filter(isFile).map((name) => posix.join(posix.dirname(file), name)),
    packages: names.filter((name) => !isFile(name)),
  };
}

function read(file: string): string {
  return readFileSync(new URL(file, ROOT), 'utf8');
}

const FILES = readdirSync(new URL('lib/', ROOT), { recursive: true, encoding: 'utf8' })
  .map((name) => posix.join('lib', name.replaceAll('\\', '/')))
  .filter((name) => name.endsWith('.ts'));

const IMPORTS = new Map(
  FILES.map((file) => {
    const { files, packages } = importsIn(file, read(file));
    return [file, { files: files.map((name) => name.replace(/\.js$/, '.ts')), packages }];
  }),
);

/** All imports of a file of lib by another one. The contract of the native module is for all. */
const EDGES = [...IMPORTS].flatMap(([file, { files }]) =>
  files.filter((name) => name !== 'binding.ts').map((name) => [file, name] as const),
);

function isIn(file: string, folder: string): boolean {
  return file === folder || file.startsWith(`${folder}/`);
}

/** The number of a file's room. */
function roomOf(file: string): number {
  return ROOMS.findIndex((room) => isIn(file, room));
}

function none(what: string, offending: readonly string[]): void {
  assert.ok(offending.length === 0, `${what}:\n${offending.join('\n')}`);
}

function noImport(what: string, isWrong: (from: string, to: string) => boolean): void {
  none(
    what,
    EDGES.filter(([from, to]) => isWrong(from, to)).map(([from, to]) => `${from} imports ${to}`),
  );
}

/** Returns the circles of a graph, each as a path. */
function circlesIn(graph: ReadonlyMap<string, readonly string[]>): string[] {
  const circles: string[] = [];
  const done = new Set<string>();
  const visit = (file: string, path: readonly string[]) => {
    const at = path.indexOf(file);
    if (at >= 0) circles.push([...path.slice(at), file].join(' → '));
    else if (!done.has(file)) for (const next of graph.get(file) ?? []) visit(next, [...path, file]);
    done.add(file);
  };
  for (const file of graph.keys()) visit(file, []);
  return circles;
}

describe('structure of lib', () => {
  it('imports are found in every form', () => {
    const text = `
      import './a.js'; import b from './b.js'; import type { C } from '../c.js'; export * from './d.js';
      type E = import('./e.js').E; await import(
        './f.js',
      ); /** {@link import('./g.js').g} */ import {
        h,
      } from '@scope/h'; require("i-i");`;
    assert.deepEqual(importsIn('lib/room/file.ts', text), {
      files: ['a', 'b', '../c', 'd', 'e', 'f', 'g'].map((name) => posix.join('lib/room', `${name}.js`)),
      packages: ['@scope/h', 'i-i'],
    });
    const graph = new Map([
      ['a', ['b', 'c']],
      ['b', ['c']],
      ['c', ['d', 'b']],
      ['d', []],
    ]);
    assert.deepEqual(circlesIn(graph), ['b → c → b']);
    noImport('Imports of files that lib lacks', (_, to) => !FILES.includes(to));
  });

  it('no circles among files', () => {
    none('Circles', circlesIn(new Map([...IMPORTS].map(([file, { files }]) => [file, files]))));
  });

  it('a room imports only the rooms before it', () => {
    none(
      'Files without a room',
      FILES.filter((file) => roomOf(file) < 0),
    );
    none(
      'Rooms without a file',
      ROOMS.filter((room) => !FILES.some((file) => isIn(file, room))),
    );
    noImport('Imports of a later room', (from, to) => roomOf(from) < roomOf(to));
  });

  it('the library imports no tools', () => {
    noImport('Imports of tools', (from, to) => !isIn(from, 'lib/tools') && isIn(to, 'lib/tools'));
  });

  it('commands are imported only by the program, and not by each other', () => {
    noImport('Imports of commands', (from, to) => isIn(to, COMMANDS) && !ADDING_COMMANDS.includes(from));
  });

  it('base, batch, losses and program need no Node', () => {
    const usesNode = FILES.filter((file) => WITHOUT_NODE.some((room) => isIn(file, room))).flatMap((file) => {
      const code = read(file).replace(/^\s*(?:\/\/|\/?\*).*$/gm, '');
      const modules = IMPORTS.get(file)!.packages.filter((name) => name.startsWith('node:'));
      const globals = code.match(/\b(?:process|Buffer|setImmediate)(?=\.|\()/g) ?? [];
      return modules.length + globals.length > 0
        ? [[file, [...modules, ...globals].join(', ')] as const]
        : [];
    });
    none(
      'Uses of Node',
      usesNode.filter(([file]) => !WITH_NODE.includes(file)).map(([file, what]) => `${file} uses ${what}`),
    );
    none(
      'Files that need no exception',
      WITH_NODE.filter((file) => !usesNode.some(([name]) => name === file)),
    );
  });
});

describe('what the package loads', () => {
  for (const [entry, expected] of Object.entries(ENTRIES))
    it(`${entry} loads nothing of the tools`, () => {
      const packages = new Set<string>();
      const files = new Set([entry]);
      for (const file of files) {
        const imports = importsIn(file, read(file));
        for (const name of imports.files) files.add(name);
        for (const name of imports.packages) if (!name.startsWith('node:')) packages.add(name);
      }
      none(
        'Files of the tools',
        [...files].filter((file) => isIn(file, 'dist/tools')),
      );
      assert.deepEqual([...packages].sort(), expected);
      assert.ok(existsSync(new URL('dist/tools/cli/main.js', ROOT)), 'the tools are elsewhere');
    });
});
