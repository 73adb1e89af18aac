/**
 * Tests the rollouts on the report's page: which ones are shown, the colours of their tokens, and the numbers of each
 * token.
 */
import assert from 'node:assert/strict';
import type { RolloutPart } from '../../../lib/tools/rollouts/index.js';
import {
  builderOf,
  computed,
  dataOf,
  describeInBrowser,
  examplePage,
  exampleParts,
  madePage,
  madeSubject,
  type OpenPage,
  partOf,
  Reader,
} from './support.js';

describeInBrowser("a report's rollouts", () => {
  let reader: Reader;
  let example: RolloutPart;
  let ppo: OpenPage;
  before(async () => {
    reader = new Reader();
    [example] = (await exampleParts()) as [RolloutPart];
    ppo = await reader.open(await examplePage('ppo'));
  });
  afterEach(() => reader.closeAllBut(ppo));
  after(() => reader.close());

  it('shows the rollouts with the largest gradients and the ratios farthest from 1', async () => {
    const [expected] = computed(['ppo'], example);
    const { page } = ppo;
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
      farthest((t) => expected!.grad[t]!),
    );
    assert.deepEqual(
      await shown('ratios'),
      farthest((t) => logprob[t]! - oldLogprob[t]!),
    );
  });

  it('shows each character as a token if every response has one character per token', async () => {
    const { page } = ppo;
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

  it('colours tokens by gradient, and shows the numbers of the selected one', async () => {
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
    const visited: (string | null)[] = [];
    for (const key of ['ArrowRight', 'End', 'ArrowLeft', 'Home', 'ArrowLeft']) {
      await page.keyboard.press(key);
      assert.ok(await tip.isVisible());
      visited.push((await tip.textContent())!.split('\n', 2).join(', '));
    }
    assert.deepEqual(visited, [
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

  it('leaves masked tokens out of all statistics', async () => {
    const { part, grad } = colours;
    const { page } = await reader.open(madePage(part, grad));
    const { charts } = await dataOf(page);
    assert.deepEqual(
      charts.map((chart) => chart.kind === 'histogram' && chart.total),
      [4, 1, 4],
    );
    assert.match((await page.locator('.lead').textContent())!, /4 tokens \(1 masked token left out\)/);
    assert.match((await page.locator('dl').first().textContent())!, /largest gradient1 at token 2/);
  });

  it('shows the text and plain cells if the texts of tokens are unknown', async () => {
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
    assert.match((await page.locator('#distributions').textContent())!, /there are no ratios/);
    assert.deepEqual(noise, []);
  });

  it('warns of numbers that are not finite, and marks them', async () => {
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
      'Ratio: not finite for 1 token.',
      'Ratio per rollout: not finite for 1 rollout.',
      'Gradient: not finite for 1 token.',
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

  it('stays small for a long rollout, and shows the part around the extreme token', async () => {
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
    assert.match((await page.locator('.rollout').textContent())!, /149,600 earlier tokens …/);
    assert.match((await page.locator('.rollout').textContent())!, /… and 49,600 more tokens/);
    assert.match((await page.locator('.rollout').textContent())!, /… and 997,000 more characters/);
  });
});
