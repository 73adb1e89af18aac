// Tests that the published declaration files document the class and the options of every function that has a
// declaration.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import type { FunctionDeclaration } from '../../lib/index.js';
import * as exported from '../../lib/index.js';

const FOLDER = new URL('../../dist/types/lib/losses/', import.meta.url);

/** The types whose members an editor explains, and the files that declare them. */
const EXPLAINED = {
  'batch/batch': ['BatchInputs', 'TrinityColumns', 'VerlColumns'],
  'algorithm/config': ['TrinityObjectiveConfig', 'CamelCasedConfig'],
  'call/calls': ['ComputeSyncOptions', 'LossComputeSyncOptions', 'Result'],
};

describe('declaration files', () => {
  for (const [file, types] of Object.entries(EXPLAINED)) {
    const text = readFileSync(new URL(`../${file}.d.ts`, FOLDER), 'utf8');
    for (const type of types)
      it(`explain each member of ${type}`, () => {
        const [, members] = new RegExp(`interface ${type}\\b[^{]*\\{\\n([\\s\\S]*?)^\\}`, 'm').exec(text)!;
        const bare = members!.replace(/^ {4}\/\*\*[\s\S]*?\*\/\n {4}[^\n]*\n/gm, '');
        assert.equal(bare, '');
      });
  }

  const texts = readdirSync(FOLDER, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.d.ts'))
    .map((file) => readFileSync(new URL(file, FOLDER), 'utf8'));

  for (const [name, value] of Object.entries(exported)) {
    const { declaration } = value as { declaration?: FunctionDeclaration };
    if (!declaration) continue;
    it(`document ${name} once`, () => {
      const text = texts.find((candidate) => candidate.includes(`export declare class ${name} `))!;
      const comment = /\/\*\*(?:(?!\*\/)[\s\S])*\*\/\n$/.exec(
        text.slice(0, text.indexOf(`export declare class ${name} `)),
      )![0];
      assert.ok(comment.includes(`Source: ${declaration.source.join(', ')}.`), comment);
      const required = Object.entries(declaration.options).filter(([, each]) => each.required);
      for (const [option] of required)
        assert.match(comment, new RegExp(`The constructor needs .*\\b${option}\\b`));
      for (const metric of Object.keys(declaration.metrics))
        assert.ok(comment.includes(`${metric} (`), metric);
      const all = texts.join('\n');
      for (const [option, { help }] of Object.entries(declaration.options)) {
        const words = `/** ${help.replace(/^[a-z]/, (letter) => letter.toUpperCase())}. `;
        assert.ok(all.includes(words), option);
        assert.ok(!all.includes(`${words.trim()}\n${words}`), `${option} is documented twice`);
      }
    });
  }
});
