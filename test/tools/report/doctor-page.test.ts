/** Tests the page of the doctor in a browser: it opens from a file, loads nothing else, and draws its charts. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { EXAMPLE, Files, ROWS, run } from '../cli/support.js';
import { assertFits, describeInBrowser, Reader } from './support.js';

describeInBrowser('the page of the doctor in a browser', () => {
  let reader: Reader;
  let files: Files;
  before(() => {
    reader = new Reader();
    files = new Files();
  });
  after(async () => {
    files.remove();
    await reader.close();
  });

  async function pageOf(file: string): Promise<string> {
    const page = files.path('page.html');
    assert.equal((await run('doctor', file, '--report', page)).code, 0);
    return readFileSync(page, 'utf8');
  }

  it('opens silently, fits any width, and draws a chart per distribution', async () => {
    for (const colorScheme of ['light', 'dark'] as const) {
      const { page, noise } = await reader.open(await pageOf(EXAMPLE), { colorScheme });
      // The example has ratios, the distance from the reference, and entropies.
      assert.equal(await page.locator('.plot canvas').count(), 3);
      await assertFits(page, [1200, 600, 320]);
      assert.deepEqual(noise, []);
    }
  });

  it('shows the findings, with texts of files escaped', async () => {
    const file = files.write(
      '<img src=x onerror=alert(1)>.jsonl',
      ROWS.map((row) => ({ ...row, entropy: row.entropy.map((h) => -h) })),
    );
    const { page, noise } = await reader.open(await pageOf(file));
    assert.equal(await page.locator('h1').textContent(), '2 errors and warnings');
    // Negative entropies do not fit the log-probabilities either.
    const error = page.locator('#finding-entropy-negative');
    assert.match(
      (await error.textContent())!,
      /error Entropies are negative.*Try:.*Seen in 256 of 256 rows: .*<img src=x/s,
    );
    assert.equal(await page.locator('img').count(), 0);
    assert.deepEqual(noise, []);
  });

  it('says so if nothing is wrong', async () => {
    const file = files.write('fine.jsonl', ROWS.slice(0, 8));
    const { page } = await reader.open(await pageOf(file));
    assert.equal(await page.locator('h1').textContent(), 'No errors or warnings');
    assert.match((await page.locator('#findings').textContent())!, /Nothing is wrong or suspicious\./);
  });
});
