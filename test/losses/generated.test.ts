// Tests that the generated documentation is up to date: `npm run generate` would change nothing but measured numbers.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { columnsPage } from '../../scripts/generate/columns-page.js';
import { withConfigurationTables } from '../../scripts/generate/configuration-tables.js';
import { doctorPage } from '../../scripts/generate/doctor-page.js';
import { functionsPage } from '../../scripts/generate/functions-page.js';
import { numericsPage, UNMEASURED } from '../../scripts/generate/numerics-page.js';

const read = (file: string) => readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8');

describe('generated documentation', () => {
  it('has docs/functions.md', () => {
    assert.equal(read('docs/functions.md'), functionsPage(), 'docs/functions.md is stale: npm run generate');
  });

  it('has docs/columns.md', () => {
    assert.equal(read('docs/columns.md'), columnsPage(), 'docs/columns.md is stale: npm run generate');
  });

  it('has docs/doctor.md', () => {
    assert.equal(read('docs/doctor.md'), doctorPage(), 'docs/doctor.md is stale: npm run generate');
  });

  it("has docs/configurations.md's tables", () => {
    const page = read('docs/configurations.md');
    assert.equal(page, withConfigurationTables(page), 'docs/configurations.md is stale: npm run generate');
  });

  it('has docs/numerics.md, whose measured numbers may differ', () => {
    const page = read('docs/numerics.md');
    const tokens = Number(/largest error of (\d+) tokens/.exec(page)?.[1]);
    const withoutNumbers = page.replaceAll(/(?<=\| )(?:\d+\.\d\d \(\d+\.\d\d\))?(?= \|)/g, UNMEASURED);
    assert.equal(
      withoutNumbers,
      numericsPage({ tokens, of: () => undefined }),
      'docs/numerics.md is stale: npm run generate',
    );
  });
});
