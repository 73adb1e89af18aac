// Writes the entry points of the package into dist, after tsc.
//
// The code is an ES module, which Node's require() loads by the condition module-sync: a program that both imports and
// requires the package has one copy of it. Some other loaders, such as Jest's, cannot require ES modules. For them, each
// file of the library is also written as CommonJS, under the same name with the ending .cjs.
//
// TypeScript does not let the declarations of a CommonJS module refer to those of an ES module if `module` is node16. A
// CommonJS declaration can be imported from everywhere. So the declarations are in dist/types, whose package.json makes
// them CommonJS, and both entry points refer to them. There is only one copy, so a class has the same type in a file that
// imports it and in one that requires it.
import { copyFileSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { sep } from 'node:path';
import { transformSync } from 'esbuild';

const root = new URL('../../', import.meta.url);
const write = (file, text) => writeFileSync(new URL(`dist/${file}`, root), text);

for (const file of readdirSync(new URL('dist/', root), { recursive: true })) {
  if (!file.endsWith('.js') || file.startsWith(`tools${sep}`)) continue;
  const { code } = transformSync(readFileSync(new URL(`dist/${file}`, root), 'utf8'), {
    format: 'cjs',
    platform: 'node',
    // The loader of the native module uses __dirname where import.meta.url is missing.
    logOverride: { 'empty-import-meta': 'silent' },
  });
  write(file.replace(/\.js$/, '.cjs'), code.replace(/require\("(\.[^"]+)\.js"\)/g, 'require("$1.cjs")'));
}
for (const [folder, types] of [
  ['', './types/lib'],
  ['tfjs/', '../types/lib/tfjs'],
])
  for (const file of ['index.d.ts', 'index.d.cts'])
    write(folder + file, `export * from '${types}/index.js';\n`);
write('types/package.json', '{ "type": "commonjs" }\n');
// The declarations import ../../binding.js from the folders of dist/types/lib.
copyFileSync(new URL('binding.d.ts', root), new URL('dist/types/binding.d.ts', root));
