/** The report's page in a browser: it opens from a file in silence, draws, and shows the numbers that it was given. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import type { PageData } from '../../lib/cli/report/page-data.js';
import type { RolloutPart } from '../../lib/rollouts/index.js';
import { EXAMPLE, Files, runJson } from '../cli/support.js';
import {
  builderOf,
  CHROMIUM,
  computed,
  examplePage,
  exampleParts,
  lossSubject,
  madePage,
  madeSubject,
  partOf,
  Reader,
} from './support.js';

const dataOf = (page: Page): Promise<PageData> =>
  page.locator('#data').evaluate((element) => JSON.parse(element.textContent!));

/** How many colours each canvas has, and how light its pixels are from 0 to 1: most are the grid's, close to the page's. */
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

const suite = Reader.available ? describe : describe.skip;

suite(`a report's page (in ${CHROMIUM}; PLAYWRIGHT_CHROMIUM names another)`, () => {
  let reader: Reader;
  let example: RolloutPart;
  let three: string;
  before(async () => {
    reader = new Reader();
    [example] = (await exampleParts()) as [RolloutPart];
    three = await examplePage('ppo', 'gspo', 'sapo');
  });
  after(() => reader.close());

  for (const colorScheme of ['light', 'dark'] as const)
    it(`opens without a word or a request, and draws all charts, in the ${colorScheme} scheme`, async () => {
      const { page, noise } = await reader.open(three, { colorScheme });
      const drawn = await canvases(page);
      // Ratios of tokens and of rollouts, advantages, and three gradients; then two curves each.
      assert.equal(drawn.length, 3 + 3 + 6);
      for (const [i, { colours, drawn: pixels, light }] of drawn.entries()) {
        assert.ok(colours > 20 && pixels > 1000, `chart ${i}: ${colours} colours in ${pixels} pixels`);
        assert.equal(light > 0.5, colorScheme === 'light', `chart ${i}: lightness ${light}`);
      }
      const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(background, colorScheme === 'dark' ? 'rgb(20, 24, 28)' : 'rgb(251, 251, 250)');
      assert.deepEqual(noise, []);
    });

  it('draws its charts anew when the scheme changes', async () => {
    const { page: dark } = await reader.open(three, { colorScheme: 'dark' });
    const { page } = await reader.open(three, { colorScheme: 'light' });
    await page.emulateMedia({ colorScheme: 'dark' });
    // The page is told before the next frame.
    await page.evaluate(
      () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
    );
    assert.deepEqual(await canvases(page), await canvases(dark));
  });

  it('fits any width without a scrollbar, its charts too', async () => {
    const { page, noise } = await reader.open(three, { viewport: { width: 1600, height: 900 } });
    for (const width of [1600, 1000, 600, 320]) {
      await page.setViewportSize({ width, height: 900 });
      await page.waitForFunction(() =>
        [...document.querySelectorAll('.plot')].every(
          (plot) => Math.abs(plot.querySelector('canvas')!.clientWidth - plot.clientWidth) < 2,
        ),
      );
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width);
    }
    assert.deepEqual(noise, []);
  });

  it('is light on paper, with charts that fit two to a row', async () => {
    const { page } = await reader.open(three, { colorScheme: 'dark' });
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

  it('has the numbers of every subject, to the last digit', async () => {
    const names = ['ppo', 'gspo', 'sapo'];
    const results = computed(names, example).map(({ result }) => result);
    const { page } = await reader.open(three);
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

  it('counts every token in its histograms', async () => {
    const { charts } = await dataOf((await reader.open(three)).page);
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

  it('says how much of a chart is under the pointer', async () => {
    const { page } = await reader.open(three);
    const readout = page.locator('[data-readout="0"]');
    const idle = await readout.textContent();
    assert.match(idle!, /^Median 1; 98% of tokens from 0\.8\d+ to 1\.2\d*\.$/);
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
      ['ratio', 'positive', 'negative'].map((slot) =>
        page.locator(`[data-readout="6"] [data-slot="${slot}"]`).textContent(),
      ),
    );
    assert.match(ratio!, /^at ratio 0\.50?/);
    // PPO's loss is −r for A = 1, and 1 − clip for A = −1 under its clip range.
    assert.match(positive!, /^−0\.50?/);
    assert.equal(negative, '0.8');
  });

  it('zooms by dragging, and back by a double click', async () => {
    const { page, noise } = await reader.open(three);
    const plot = page.locator('[data-chart="6"] .u-over');
    await plot.scrollIntoViewIfNeeded();
    const box = (await plot.boundingBox())!;
    const ratioAt = async (x: number) => {
      await plot.hover({ position: { x, y: 40 } });
      const text = await page.locator('[data-readout="6"] [data-slot="ratio"]').textContent();
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

  it('shows the rollouts of the largest gradients and the ratios farthest from 1', async () => {
    const [ppo] = computed(['ppo'], example);
    const { page } = await reader.open(await examplePage('ppo'));
    const { cuSeqlens, logprob } = example.batch;
    const oldLogprob = example.batch.oldLogprob as Float32Array;
    const farthest = (value: (t: number) => number) =>
      Array.from({ length: example.rows }, (_, row) => {
        let most = 0;
        for (let t = cuSeqlens[row]!; t < cuSeqlens[row + 1]!; t++) most = Math.max(most, Math.abs(value(t)));
        return { row, most };
      })
        .sort((a, b) => b.most - a.most || a.row - b.row)
        .slice(0, 5)
        .map(({ row }) => `${example.places[row]!.file}, line ${row + 1}`);
    const shown = (section: string) =>
      page.locator(`[aria-labelledby="${section}"] .rollout h4`).allTextContents();
    assert.deepEqual(
      await shown('gradients-0'),
      farthest((t) => ppo!.grad[t]!),
    );
    assert.deepEqual(
      await shown('ratios'),
      farthest((t) => logprob[t]! - oldLogprob[t]!),
    );
  });

  it('shows each character of a response where that is a token, and the whole text', async () => {
    const { page } = await reader.open(await examplePage('ppo'));
    const [head] = await page.locator('.rollout h4').allTextContents();
    const row = Number(/line (\d+)$/.exec(head!)![1]) - 1;
    const strip = page.locator('.rollout').first().locator('.strip');
    assert.equal(await strip.textContent(), example.kept[row]!.response);
    assert.equal(
      await strip.locator('i').count(),
      example.batch.cuSeqlens[row + 1]! - example.batch.cuSeqlens[row]!,
    );
    assert.equal(
      await page.locator('.rollout').first().locator('.prompt').textContent(),
      example.kept[row]!.prompt,
    );
  });

  const colours = {
    part: partOf([
      {
        logprobs: [-1, -2, -3, -4, -5],
        oldLogprobs: [-1, -2.5, -3, -4, -5],
        mask: [1, 1, 1, 0, 1],
        kept: {
          prompt: 'Why?',
          response: 'one two three four',
          tokens: ['one', ' two', ' th', 'ree\n', ' four'],
        },
      },
    ]),
    grad: [-0.5, 1, 0, 7, -1],
    advantages: [2],
  };

  it('colours tokens by gradient, and gives the numbers of the one pointed at or gone to', async () => {
    const { part, grad, advantages } = colours;
    const { page, noise } = await reader.open(madePage(part, grad, advantages));
    const strip = page.locator('.strip').first();
    const tokens = strip.locator('i');
    assert.deepEqual(await tokens.allTextContents(), ['one', ' two', ' th', 'ree↵\n', ' four']);
    assert.deepEqual(await tokens.evaluateAll((all) => all.map((token) => token.className)), [
      'u4',
      'd8 peak',
      'z',
      'm',
      'u8',
    ]);
    const tip = page.locator('#tip');
    assert.equal(await tip.isVisible(), false);
    await tokens.nth(1).hover();
    assert.equal(await tip.textContent(), 'token 2\ngradient 1\nratio 1.65\nadvantage 2');
    assert.ok(await tip.isVisible());
    await page.mouse.move(2, 2);
    assert.equal(await tip.isVisible(), false);

    await strip.focus();
    const gone: (string | null)[] = [];
    for (const key of ['ArrowRight', 'End', 'ArrowLeft', 'Home', 'ArrowLeft']) {
      await page.keyboard.press(key);
      assert.ok(await tip.isVisible());
      gone.push((await tip.textContent())!.split('\n', 2).join(', '));
    }
    assert.deepEqual(gone, [
      'token 1, gradient −0.5',
      'token 5, gradient −1',
      'token 4, masked',
      'token 1, gradient −0.5',
      'token 1, gradient −0.5',
    ]);
    await page.keyboard.press('Escape');
    assert.equal(await tip.isVisible(), false);
    assert.deepEqual(noise, []);
  });

  it('leaves masked tokens out of everything', async () => {
    const { part, grad } = colours;
    const { page } = await reader.open(madePage(part, grad));
    const { charts } = await dataOf(page);
    assert.deepEqual(
      charts.map((chart) => chart.kind === 'histogram' && chart.total),
      [4, 1, 4],
    );
    assert.match((await page.locator('.lead').textContent())!, /4 tokens \(1 more is masked and left out\)/);
    assert.match((await page.locator('dl').first().textContent())!, /largest gradient1 at token 2/);
  });

  it('shows text and cells where it does not know which text is a token’s', async () => {
    const part = partOf([
      {
        logprobs: [-1, -2, -3],
        kept: { prompt: { role: 'user' }, response: 'héllo wörld', tokens: ['too', 'few'] },
      },
      { logprobs: [-1] },
    ]);
    const { page, noise } = await reader.open(madePage(part, [1, -2, 0, 0.5]));
    const first = page.locator('.rollout').first();
    assert.deepEqual(await first.locator('.text').allTextContents(), ['{"role":"user"}', 'héllo wörld']);
    assert.equal(await first.locator('.cells i').count(), 3);
    assert.equal(await first.locator('.cells').textContent(), '');
    assert.equal(await page.locator('.rollout').nth(1).locator('.text').count(), 0);
    assert.match((await page.locator('#distributions').textContent())!, /There are no ratios/);
    assert.deepEqual(noise, []);
  });

  it('is harmless whatever text it is given', async () => {
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
    // Nor would a program run that got in.
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

  it('warns of numbers that are not finite, and shows where they are', async () => {
    const part = partOf([
      { logprobs: [-1, -2], oldLogprobs: [-1, -2.5] },
      { logprobs: [-1, Number.NEGATIVE_INFINITY], oldLogprobs: [-1, -2] },
      { logprobs: [-1], oldLogprobs: [-3] },
    ]);
    const builder = builderOf([madeSubject('made')]);
    builder.add(part, [{ grad: Float32Array.of(1, 2, 3, Number.NaN, 9) }]);
    const { page, noise } = await reader.open(
      builder.finish([
        { loss: Number.NaN, metrics: { broken: Number.POSITIVE_INFINITY }, gradNorm: Number.NaN },
      ]),
    );
    assert.deepEqual(await page.locator('.warning').allTextContents(), [
      'Ratio: 1 token where it is not a finite number.',
      'Ratio of rollouts: 1 rollout where it is not a finite number.',
      'Gradient: 1 token where it is not a finite number.',
    ]);
    assert.deepEqual(await page.locator('#metrics td data').allTextContents(), ['NaN', 'NaN', 'Infinity']);
    const first = page.locator('.rollout').first();
    assert.equal(await first.locator('h4').textContent(), 'made.jsonl, line 2');
    assert.deepEqual(await first.locator('i').evaluateAll((all) => all.map((token) => token.className)), [
      'd3',
      'x peak',
    ]);
    await first.locator('i').nth(1).hover();
    assert.equal(await page.locator('#tip').textContent(), 'token 2\ngradient not finite\nratio not finite');
    assert.deepEqual(noise, []);
  });

  it('is small however long a rollout is, and shows the part that stands out', async () => {
    const length = 200_000;
    const grad = Array.from({ length }, (_, t) => (t === 150_000 ? -5 : 1e-3));
    const tokens = grad.map((_, t) => `t${t} `);
    const part = partOf([
      { logprobs: grad.map(() => -1), kept: { prompt: 'p'.repeat(1e6), response: 'r', tokens } },
    ]);
    const html = madePage(part, grad);
    assert.ok(html.length < 300_000, `${html.length} characters`);
    const { page } = await reader.open(html);
    assert.equal(await page.locator('.strip i').count(), 800);
    assert.equal(await page.locator('.peak').textContent(), 't150000 ');
    await page.locator('.peak').hover();
    assert.match((await page.locator('#tip').textContent())!, /^token 150,001\ngradient −5$/);
    assert.match((await page.locator('.rollout').textContent())!, /149,600 tokens before …/);
    assert.match((await page.locator('.rollout').textContent())!, /… and 49,600 more tokens/);
    assert.match((await page.locator('.rollout').textContent())!, /… and 997,000 more characters/);
  });

  it('opens for no rows, and for rows without tokens', async () => {
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

  it('is what the command line writes', async () => {
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
      // Three distributions, a gradient's, and two curves.
      assert.equal(await page.locator('canvas').count(), 6);
      assert.equal(await page.locator('.rollout').count(), 10);
      assert.deepEqual(noise, []);
    } finally {
      files.remove();
    }
  });

  it('names what can be looked at and gone through, for those who do not see it', async () => {
    const { page } = await reader.open(three);
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
      assert.ok(i === 0 || level <= levels[i - 1]! + 1, `heading ${i} is of level ${level}`);
    });
  });
});

describe('a report', () => {
  it('is the same however its rows are divided', async () => {
    const names = ['ppo', 'gspo'];
    const [whole] = (await exampleParts()) as [RolloutPart];
    const all = computed(names, whole);
    const results = all.map(({ result }) => result);
    const pages: string[] = [];
    for (const parts of [[whole], await exampleParts(700)]) {
      const builder = builderOf(names.map(madeSubject));
      let at = 0;
      for (const part of parts) {
        const { length } = part.batch.logprob;
        builder.add(
          part,
          all.map(({ grad, advantages }) => ({
            grad: grad.slice(at, at + length),
            advantages: advantages.slice(at, at + length),
          })),
        );
        at += length;
      }
      pages.push(builder.finish(results));
    }
    assert.ok(pages[0] === pages[1], 'pages differ');
  });

  it('takes advantages per row as those of its tokens', () => {
    const part = partOf([{ logprobs: [-1, -2] }, { logprobs: [-3] }]);
    const grad = [1, 2, 3];
    assert.equal(madePage(part, grad, [5, -5]), madePage(part, grad, [5, 5, -5]));
  });

  it('keeps the earlier of rows that are alike', () => {
    const rows = Array.from({ length: 20 }, () => ({ logprobs: [-1] }));
    const page = madePage(
      partOf(rows),
      rows.map(() => 1),
    );
    const lines = [...page.matchAll(/made\.jsonl, line (\d+)/g)].map((match) => Number(match[1]));
    assert.deepEqual(lines, [1, 2, 3, 4, 5]);
  });
});
