// Writes the reference of all exports into build/docs, from the declarations that npm run build:ts wrote: npm run docs
//
// On first use it installs TypeDoc in this folder, with the version of TypeScript that TypeDoc needs.
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));

if (!existsSync(new URL('node_modules', import.meta.url)))
  execFileSync('npm', ['ci'], { cwd: here, stdio: 'inherit', shell: process.platform === 'win32' });

const typedoc = fileURLToPath(new URL('node_modules/typedoc/bin/typedoc', import.meta.url));
const { status } = spawnSync(process.execPath, [typedoc, ...process.argv.slice(2)], {
  cwd: here,
  stdio: 'inherit',
});
process.exitCode = status ?? 1;
