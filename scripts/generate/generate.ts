// Writes the generated code in native/generated, and the generated documentation: docs/functions.md, docs/columns.md,
// docs/doctor.md, docs/numerics.md, and the tables of docs/configurations.md. The errors in docs/numerics.md are measured on
// this machine. Every run draws the same inputs, but the last digit of an error may differ between instruction sets.
//
//   npm run generate [-- --tokens 10000]
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { columnsPage } from './columns-page.js';
import { compiledSegments } from './compiled-segments.js';
import { withConfigurationTables } from './configuration-tables.js';
import { doctorPage } from './doctor-page.js';
import { functionsPage } from './functions-page.js';
import { nativeColumns } from './native-columns.js';
import { measureAll, numericsPage } from './numerics-page.js';

const { values: flags } = parseArgs({ options: { tokens: { type: 'string', default: '10000' } } });
const root = new URL('../../', import.meta.url);
const generated = new URL('native/generated/', root);
mkdirSync(generated, { recursive: true });
writeFileSync(new URL('columns.h', generated), nativeColumns());
for (const [name, text] of Object.entries(compiledSegments())) writeFileSync(new URL(name, generated), text);
const configurations = new URL('docs/configurations.md', root);
writeFileSync(configurations, withConfigurationTables(readFileSync(configurations, 'utf8')));
mkdirSync(new URL('docs/', root), { recursive: true });
writeFileSync(new URL('docs/columns.md', root), columnsPage());
writeFileSync(new URL('docs/doctor.md', root), doctorPage());
writeFileSync(new URL('docs/functions.md', root), functionsPage());
writeFileSync(new URL('docs/numerics.md', root), numericsPage(measureAll(Number(flags.tokens))));
