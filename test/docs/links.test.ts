/** Tests that README.md is short and names every page of docs, and that links lead to files of the package and to headings. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join, normalize } from 'node:path';
import { PAGES, ROOT } from './fences.js';

const MOST_BYTES = 8192;
const read = (file: string) => readFileSync(join(ROOT, file), 'utf8');
const { files } = JSON.parse(read('package.json')) as { files: string[] };

/** Returns the links of a page to other files and to headings, without those to web servers. */
function linksOf(page: string): { link: string; file: string; heading: string | undefined }[] {
  const text = read(page).replaceAll(/^```[\s\S]*?^```$/gm, '');
  return [...text.matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)/g)].map(([link, name = '', heading]) => ({
    link,
    file: name === '' ? page : normalize(join(page, '..', name)),
    heading,
  }));
}

/** Returns the anchors of a page's headings, as GitHub makes them. */
function anchorsOf(page: string): string[] {
  return [...read(page).matchAll(/^#+ (.*)$/gm)].map(([, title]) =>
    title!
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}_ -]/gu, '')
      .replaceAll(' ', '-'),
  );
}

describe('README.md and docs', () => {
  it('have a short README', () => {
    assert.ok(statSync(join(ROOT, 'README.md')).size <= MOST_BYTES);
  });

  it('have a link to every page in the README', () => {
    const linked = linksOf('README.md').map(({ file }) => file);
    assert.deepEqual(
      PAGES.filter((page) => page !== 'README.md' && !linked.includes(page)),
      [],
    );
  });

  for (const page of PAGES)
    it(`${page}: links lead to files of the package and to headings`, () => {
      for (const { link, file, heading } of linksOf(page)) {
        assert.ok(existsSync(join(ROOT, file)), `${link}: expected an existing file, got ${file}`);
        const shipped = ['README.md', ...files].some((name) => `${file}/`.startsWith(`${name}/`));
        assert.ok(shipped, `${link}: expected a file of the package, got ${file}`);
        if (heading !== undefined)
          assert.ok(
            anchorsOf(file).includes(heading),
            `${link}: expected a heading of ${file}, got ${heading}`,
          );
      }
    });
});
