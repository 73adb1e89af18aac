// Writes the entry points of the package into dist, after tsc.
//
// The code is an ES module, which require() can load. TypeScript, however, does not let the declarations of a CommonJS
// module refer to those of an ES module if `module` is node16. A CommonJS declaration can be imported from everywhere. So
// the declarations are in dist/types, whose package.json makes them CommonJS, and both entry points refer to them. There
// is only one copy, so a class has the same type in a file that imports it and in one that requires it.
import { copyFileSync, writeFileSync } from 'node:fs';

const root = new URL('../../', import.meta.url);
const write = (file, text) => writeFileSync(new URL(`dist/${file}`, root), text);

for (const [folder, types] of [
  ['', './types/lib'],
  ['tfjs/', '../types/lib/tfjs'],
]) {
  write(`${folder}index.cjs`, "module.exports = require('./index.js');\n");
  for (const file of ['index.d.ts', 'index.d.cts'])
    write(folder + file, `export * from '${types}/index.js';\n`);
}
write('types/package.json', '{ "type": "commonjs" }\n');
// The declarations import ../../binding.js from the folders of dist/types/lib.
copyFileSync(new URL('binding.d.ts', root), new URL('dist/types/binding.d.ts', root));
