/**
 * Tests the report's page in a browser: it opens from a file, loads nothing else, and shows its numbers in charts and
 * tables.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import type { RolloutPart } from '../../../lib/tools/rollouts/index.js';
import { EXAMPLE, Files, runJson } from '../cli/support.js';
import {
  assertFits,
  builderOf,
  computed,
  dataOf,
  describeInBrowser,
  examplePage,
  exampleParts,
  lossSubject,
  madePage,
  madeSubject,
  type OpenPage,
  partOf,
  Reader,
} from './support.js';

/**
 * Returns for each canvas its width, the numbers of its colours and of its opaque pixels (`drawn`), and the mean
 * lightness of these pixels, from 0 to 1.
 */
function canvases(page: Page) {
  return page.evaluate(() =>
    [...document.querySelectorAll('canvas')].map((canvas) => {
      const { width, height } = canvas;
      const { data } = canvas.getContext('2d')!.getImageData(0, 0, width, height);
      const colours = new Set<number>();
      let light = 0;
      let drawn = 0;
      for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3]! < 200) continue;
        colours.add((data[i]! << 16) | (data[i + 1]! << 8) | data[i + 2]!);
        drawn++;
        light += (data[i]! + data[i + 1]! + data[i + 2]!) / 765;
      }
      return { colours: colours.size, drawn, light: light / drawn, width };
    }),
  );
}

describeInBrowser('a report in a browser', () => {
  let reader: Reader;
  let example: RolloutPart;
  let three: string;
  /**
   * The page of three losses, in each colour scheme. Tests share these pages, so a test that changes one must restore
   * it.
   */
  let light: OpenPage;
  let dark: OpenPage;
  before(async () => {
    reader = new Reader();
    [example] = (await exampleParts()) as [RolloutPart];
    three = await examplePage('ppo', 'gspo', 'sapo');
    light = await reader.open(three, { colorScheme: 'light' });
    dark = await reader.open(three, { colorScheme: 'dark' });
  });
  afterEach(() => reader.closeAllBut(light, dark));
  after(() => reader.close());

  for (const colorScheme of ['light', 'dark'] as const)
    it(`opens silently, loads nothing else, and draws all charts, in the ${colorScheme} scheme`, async () => {
      const { page, noise } = colorScheme === 'light' ? light : dark;
      const drawn = await canvases(page);
      // Three charts show the ratios per token, the ratios per rollout and the advantages. Each of the three losses
      // adds a chart of its gradients and two curves. Four charts show the curves of all losses.
      assert.equal(drawn.length, 3 + 3 + 6 + 4);
      for (const [i, { colours, drawn: pixels, light }] of drawn.entries()) {
        assert.ok(colours > 20 && pixels > 1000, `chart ${i}: ${colours} colours in ${pixels} pixels`);
        assert.equal(light > 0.5, colorScheme === 'light', `chart ${i}: lightness ${light}`);
      }
      const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(background, colorScheme === 'dark' ? 'rgb(20, 24, 28)' : 'rgb(251, 251, 250)');
      assert.deepEqual(noise, []);
    });

  it('redraws the charts when the scheme changes', async () => {
    const { page } = light;
    await page.emulateMedia({ colorScheme: 'dark' });
    // The page is notified of the change before the next frame, so after two frames it has redrawn the charts.
    await page.evaluate(
      () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
    );
    assert.deepEqual(await canvases(page), await canvases(dark.page));
    await page.emulateMedia({ colorScheme: 'light' });
  });

  it('fits any width without a scrollbar', async () => {
    const { page, noise } = await reader.open(three, { viewport: { width: 1600, height: 900 } });
    await assertFits(page, [1600, 1000, 600, 320]);
    assert.deepEqual(noise, []);
  });

  it('is light on paper, with charts that fit side by side', async () => {
    const { page } = dark;
    const screen = await canvases(page);
    await page.evaluate(() => void dispatchEvent(new Event('beforeprint')));
    const paper = await canvases(page);
    for (const [i, { width, light }] of paper.entries()) {
      assert.equal(width, 300);
      assert.ok(light > 0.5 && light > screen[i]!.light, `chart ${i}: lightness ${light}`);
    }
    await page.evaluate(() => void dispatchEvent(new Event('afterprint')));
    assert.deepEqual(await canvases(page), screen);
  });

  it('shows the metrics of every subject with all digits', async () => {
    const names = ['ppo', 'gspo', 'sapo'];
    const results = computed(names, example).map(({ result }) => result);
    const { page } = light;
    const table = await page.locator('#metrics tr').evaluateAll((rows) =>
      rows.slice(1).map((row) => ({
        name: row.querySelector('th')!.textContent!,
        values: [...row.querySelectorAll('td')].map((cell) => cell.querySelector('data')?.value),
      })),
    );
    const expected = new Map<string, (number | undefined)[]>([
      ['loss', results.map(({ loss }) => loss)],
      ['gradient norm', results.map(({ gradNorm }) => gradNorm)],
    ]);
    for (const name of results.flatMap(({ metrics }) => Object.keys(metrics)))
      expected.set(
        name,
        results.map(({ metrics }) => metrics[name]),
      );
    assert.equal(table.length, expected.size);
    for (const { name, values } of table)
      assert.deepEqual(
        values.map((value) => (value === undefined ? undefined : Number(value))),
        expected.get(name),
        name,
      );
    assert.match(
      (await page.locator('.lead').textContent())!,
      /^256 rollouts, 9,164 tokens, from examples\/rollouts\.jsonl\.$/,
    );
  });

  it('names its regions and images for screen readers', async () => {
    const { page } = light;
    const unnamed = await page.evaluate(() =>
      [...document.querySelectorAll('[role=img], [role=group], [role=region], figure, section, nav')]
        .filter((element) => {
          const by = element.getAttribute('aria-labelledby');
          const name = by ? document.getElementById(by)?.textContent : element.getAttribute('aria-label');
          return !name?.trim();
        })
        .map((element) => element.outerHTML.slice(0, 80)),
    );
    assert.deepEqual(unnamed, []);
    const ids = await page.evaluate(() => [...document.querySelectorAll('[id]')].map(({ id }) => id));
    assert.equal(new Set(ids).size, ids.length);
    const levels = await page.evaluate(() =>
      [...document.querySelectorAll('h1, h2, h3, h4')].map(({ tagName }) => Number(tagName[1])),
    );
    assert.equal(levels[0], 1);
    levels.forEach((level, i) => {
      assert.ok(i === 0 || level <= levels[i - 1]! + 1, `heading ${i} has level ${level}`);
    });
  });

  it('counts every token in its histograms', async () => {
    const { charts } = await dataOf(light.page);
    const totals = charts.flatMap((chart) =>
      chart.kind === 'histogram' ? [[chart.total, chart.bins.counts.reduce((sum, n) => sum + n, 0)]] : [],
    );
    const { cuSeqlens } = example.batch;
    assert.equal(cuSeqlens.at(-1), 9164);
    const [ratios, rows, advantages] = totals;
    assert.equal(ratios![0], 9164);
    assert.equal(rows![0], 256);
    assert.equal(advantages![0], 9164);
    for (const [total, counted] of totals.slice(0, 3)) assert.ok(Math.abs(total! - counted!) < 0.05);
  });

  it('shows the numbers under the pointer', async () => {
    const { page } = light;
    const readout = page.locator('[data-readout="0"]');
    const idle = await readout.textContent();
    assert.match(idle!, /^Median 1; 98% of tokens between 0\.8\d+ and 1\.2\d*\.$/);
    const plot = page.locator('[data-chart="0"] .u-over');
    await plot.scrollIntoViewIfNeeded();
    const { width } = (await plot.boundingBox())!;
    await plot.hover({ position: { x: width / 2, y: 50 } });
    assert.match((await readout.textContent())!, /^[\d.]+ to [\d.]+: [\d,]+ tokens?, [\d.]+%$/);
    await page.mouse.move(2, 2);
    assert.equal(await readout.textContent(), idle);

    const curves = page.locator('[data-chart="6"] .u-over');
    await curves.scrollIntoViewIfNeeded();
    await curves.hover({ position: { x: 2, y: 50 } });
    const [ratio, positive, negative] = await Promise.all(
      ['x', '0', '1'].map((slot) => page.locator(`[data-readout="6"] [data-slot="${slot}"]`).textContent()),
    );
    assert.match(ratio!, /^at ratio 0\.50?/);
    // At ratio 0.5, PPO's loss for advantage 1 is −0.5. For advantage −1 the ratio is clipped to 0.8, which is then the
    // loss.
    assert.match(positive!, /^−0\.50?/);
    assert.equal(negative, '0.8');
  });

  it('zooms in by dragging, and out by a double click', async () => {
    const { page, noise } = await reader.open(three);
    const plot = page.locator('[data-chart="6"] .u-over');
    await plot.scrollIntoViewIfNeeded();
    const box = (await plot.boundingBox())!;
    const ratioAt = async (x: number) => {
      await plot.hover({ position: { x, y: 40 } });
      const text = await page.locator('[data-readout="6"] [data-slot="x"]').textContent();
      return Number(/[\d.]+$/.exec(text!)![0]);
    };
    const before = await ratioAt(3);
    await page.mouse.move(box.x + box.width * 0.4, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.6, box.y + 40, { steps: 4 });
    await page.mouse.up();
    const zoomed = await ratioAt(3);
    assert.ok(zoomed > before + 0.2, `${before}, then ${zoomed}`);
    await plot.dblclick({ position: { x: 40, y: 40 } });
    assert.equal(await ratioAt(3), before);
    assert.deepEqual(noise, []);
  });

  it('draws the losses over each other', async () => {
    const { page } = light;
    const { charts } = await dataOf(page);
    const overlaid = charts.flatMap((chart, i) =>
      chart.kind === 'lines' && chart.lines.length === 3 ? [{ chart, i }] : [],
    );
    assert.equal(overlaid.length, 4);
    const [{ chart, i: index }] = overlaid as [(typeof overlaid)[number]];
    const readout = page.locator(`[data-readout="${index}"]`);
    assert.deepEqual(await readout.locator('.key').allTextContents(), [
      'ppo',
      'gspo',
      'sapo',
      'token ratios',
    ]);
    // PPO's loss for advantage 1 is −ratio up to the bound 1.2.
    chart.xs.forEach((x, i) => {
      assert.ok(Math.abs(chart.lines[0]!.values[i]! + Math.min(Math.exp(x), 1.2)) < 0.01, `at ${x}`);
    });
    const plot = page.locator(`[data-chart="${index}"] .u-over`);
    await plot.scrollIntoViewIfNeeded();
    await plot.hover({ position: { x: 2, y: 50 } });
    assert.match((await readout.locator('[data-slot="0"]').textContent())!, /^−0\.50?/);
    assert.match((await readout.locator('[data-slot="x"]').textContent())!, /^at ratio 0\.50?/);
  });

  it('shows in a narrow window that a table continues', async () => {
    const { page } = await reader.open(await examplePage('ppo', 'gspo', 'sapo', 'cispo'), {
      viewport: { width: 400, height: 900 },
    });
    const found = await page.locator('#metrics .scroll').evaluate((element) => ({
      hidden: element.scrollWidth - element.clientWidth,
      // The browser of the tests hides the bar itself.
      bar: Number.parseFloat(getComputedStyle(element, '::-webkit-scrollbar').height),
      shadow: getComputedStyle(element).backgroundImage,
    }));
    assert.ok(found.hidden > 100);
    assert.ok(found.bar >= 8, `a bar of ${found.bar} pixels`);
    assert.match(found.shadow, /linear-gradient/);
    await assertFits(page, [400]);
  });

  it('escapes all text, and runs no script in it', async () => {
    const hostile =
      '</script></style><script>hacked = 1</script><img src="x:y" onerror="hacked = 2">\'"&amp;<!-- \u202e';
    const shown = hostile.replace('\u202e', '\ufffd');
    const part = partOf(
      [
        {
          logprobs: [-1, -2],
          oldLogprobs: [-1.5, -2],
          kept: { prompt: hostile, response: hostile, tokens: [hostile, hostile] },
        },
        { logprobs: [-1], oldLogprobs: [-1], kept: { prompt: hostile, response: hostile } },
      ],
      hostile,
    );
    const builder = builderOf([madeSubject(hostile), lossSubject('ppo', hostile)], [hostile]);
    const grad = Float32Array.of(1, 2, 3);
    builder.add(part, [{ grad }, { grad, advantages: grad }]);
    const result = { loss: 1, metrics: { [hostile]: 2 }, gradNorm: 3 };
    const { page, noise } = await reader.open(builder.finish([result, result]));
    assert.equal(await page.evaluate(() => 'hacked' in globalThis), false);
    assert.equal(await page.locator('img').count(), 0);
    assert.equal(await page.locator('script').count(), 3);
    assert.equal(await page.title(), `${shown} and ppo – policy-loss report`);
    assert.equal(await page.locator('.prompt').first().textContent(), shown);
    assert.equal(await page.locator('.strip.words i').first().textContent(), shown);
    assert.equal(
      await page.locator('#metrics th code', { hasText: 'hacked = 1' }).last().textContent(),
      shown,
    );
    assert.ok((await page.locator('.rollout h4').first().textContent())!.startsWith(shown));
    // The page's Content Security Policy must block even a script element that was added to the page.
    await page.evaluate(() => {
      const script = document.createElement('script');
      script.textContent = 'globalThis.hacked = 3';
      document.body.append(script);
    });
    assert.equal(await page.evaluate(() => 'hacked' in globalThis), false);
    assert.ok(
      noise.every((line) => line.includes('Content Security Policy')),
      noise.join('\n'),
    );
  });

  it('opens without rows, and with rows without tokens', async () => {
    for (const part of [
      partOf([]),
      partOf([{ logprobs: [] }]),
      partOf([{ logprobs: [-1], oldLogprobs: [-1], mask: [0] }]),
    ]) {
      const { page, noise } = await reader.open(madePage(part, part.rows > 0 ? [...part.batch.logprob] : []));
      assert.equal(await page.locator('.rollout').count(), 0);
      assert.equal(await page.locator('canvas').count(), 0);
      assert.deepEqual(noise, []);
    }
  });

  it('is written by the command line', async () => {
    const files = new Files();
    try {
      const file = files.path('out.html');
      const { loss, metrics } = await runJson('evaluate', EXAMPLE, '--loss', 'ppo', '--report', file);
      const { page, noise } = await reader.open(readFileSync(file, 'utf8'));
      const values = await page
        .locator('#metrics data')
        .evaluateAll((all) => all.map((data) => Number((data as HTMLDataElement).value)));
      assert.equal(values[0], loss);
      assert.deepEqual(values.slice(2), Object.values(metrics));
      // Two histograms of ratios, one of advantages, one of gradients, and two curves of the loss.
      assert.equal(await page.locator('canvas').count(), 6);
      assert.equal(await page.locator('.rollout').count(), 10);
      assert.equal(await page.locator('#cosines').count(), 0);
      assert.deepEqual(noise, []);
    } finally {
      files.remove();
    }
  });

  it('has the cosines of compare', async () => {
    const files = new Files();
    try {
      const file = files.path('out.html');
      const words = ['--loss', 'ppo', '--loss', 'gspo', '--loss', 'sft'];
      const { cosines } = await runJson('compare', EXAMPLE, ...words, '--report', file);
      const { page, noise } = await reader.open(readFileSync(file, 'utf8'));
      const values = await page
        .locator('#cosines data')
        .evaluateAll((all) => all.map((data) => Number((data as HTMLDataElement).value)));
      assert.deepEqual(values, cosines.flat());
      assert.deepEqual(noise, []);
    } finally {
      files.remove();
    }
  });

  it('plots a sweep', async () => {
    const files = new Files();
    try {
      const file = files.path('out.html');
      const words = ['--loss', 'ppo', '--clip-range', '0.3,0.1,0.2', '--loss-agg-mode'];
      const { points } = await runJson(
        ...['sweep', EXAMPLE, ...words, 'token-mean,seq-mean-token-mean', '--report', file],
      );
      const { page, noise } = await reader.open(readFileSync(file, 'utf8'));
      const { charts } = await dataOf(page);
      const [chart] = charts;
      assert.ok(chart?.kind === 'lines');
      assert.deepEqual(chart.xs, [0.1, 0.2, 0.3]);
      const lossesOf = (mode: string) =>
        chart.xs.map((x) => {
          const { loss } = points.find(
            ({ options }: { options: Record<string, unknown> }) =>
              options['clip-range'] === x && options['loss-agg-mode'] === mode,
          );
          return Number(loss.toPrecision(6));
        });
      assert.deepEqual(
        chart.lines.map(({ values }) => values),
        ['token-mean', 'seq-mean-token-mean'].map(lossesOf),
      );
      assert.ok((await page.locator('canvas').count()) >= 3);
      assert.equal(await page.locator('#values tbody tr').count(), 6);
      for (const { colours } of await canvases(page)) assert.ok(colours > 10);
      await assertFits(page, [1200, 400]);
      assert.deepEqual(noise, []);

      await runJson('sweep', EXAMPLE, '--algorithm', 'grpo', '--advantage-fn', 'grpo,rloo', '--report', file);
      const named = await reader.open(readFileSync(file, 'utf8'));
      const [byName] = (await dataOf(named.page)).charts;
      assert.ok(byName?.kind === 'lines');
      assert.deepEqual(byName.names, ['grpo', 'rloo']);
      assert.deepEqual(named.noise, []);
    } finally {
      files.remove();
    }
  });
});
