/**
 * Helpers for the report's tests: rollouts, subjects (what a report compares, such as losses), pages, and a browser
 * that opens the pages.
 */
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { ADVANTAGE_FN, POLICY_LOSS_FN } from '../../../lib/index.js';
import type { ReportBuilder, ReportResult, ReportSubject } from '../../../lib/tools/cli/report/index.js';
import type { PageData } from '../../../lib/tools/cli/report/page-data.js';
import { type RolloutPart, streamRollouts } from '../../../lib/tools/rollouts/index.js';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));

// Imports the compiled module. It inserts the program of the page into each page, and that program must be compiled.
const built: typeof import('../../../lib/tools/cli/report/index.js') = await import(
  pathToFileURL(join(ROOT, 'dist', 'tools', 'cli', 'report', 'index.js')).href
);

/** Reads the example rollouts, split into parts. */
export async function exampleParts(maxTokens?: number): Promise<RolloutPart[]> {
  const parts: RolloutPart[] = [];
  const options = { keep: ['prompt', 'response', 'tokens'], ...(maxTokens !== undefined && { maxTokens }) };
  for await (const part of streamRollouts([join(ROOT, 'examples', 'rollouts.jsonl')], options))
    parts.push(part);
  return parts;
}

/** The values of one row for {@link partOf}. By default, no token is masked. */
export interface MadeRow {
  logprobs: number[];
  oldLogprobs?: number[];
  mask?: number[];
  kept?: Record<string, unknown>;
}

/** Makes a part of rollouts from rows. `first` is the number of rows in the parts before it. */
export function partOf(rows: readonly MadeRow[], file = 'made.jsonl', first = 0): RolloutPart {
  const offsets = [0];
  for (const { logprobs } of rows) offsets.push(offsets.at(-1)! + logprobs.length);
  const actionMask = Uint8Array.from(rows.flatMap(({ logprobs, mask }) => mask ?? logprobs.map(() => 1)));
  const old = rows.flatMap(({ oldLogprobs }) => oldLogprobs ?? []);
  return {
    batch: {
      cuSeqlens: Int32Array.from(offsets),
      logprob: Float32Array.from(rows.flatMap(({ logprobs }) => logprobs)),
      actionMask,
      ...(old.length > 0 && { oldLogprob: Float32Array.from(old) }),
    },
    rows: rows.length,
    tokens: actionMask.reduce((sum, m) => sum + m, 0),
    first,
    kept: rows.map(({ kept }) => kept ?? {}),
    places: rows.map((_, i) => ({ file, line: first + i + 1 })),
    idsOf: () => [],
  };
}

/**
 * Wraps a policy loss as a report subject. The subject's curve gives the loss and gradient of a single token at each
 * requested ratio.
 */
export function lossSubject(name: string, title = name): ReportSubject {
  const fn = POLICY_LOSS_FN.create(name);
  return {
    name,
    title,
    variable: 'logprob',
    curve(advantage, ratios) {
      const { length } = ratios;
      const loss = new Float64Array(length);
      const grad = new Float64Array(length);
      ratios.forEach((ratio, i) => {
        const result = fn.computeSync(
          {
            shape: [1, 1],
            logprob: [Math.log(ratio)],
            oldLogprob: [0],
            advantages: [advantage],
            actionMask: [1],
          },
          { grad: true },
        );
        loss[i] = result.loss;
        grad[i] = result.grad![0]!;
      });
      return { loss, grad };
    },
  };
}

/** Returns a subject without a curve, for tests that make up its results. */
export const madeSubject = (title: string): ReportSubject => ({
  name: title,
  title,
  variable: 'logprob',
  curve: () => undefined,
});

/** Computes policy losses on a part that holds all rows, with the advantages of GRPO. */
export function computed(names: readonly string[], part: RolloutPart) {
  const { advantages } = ADVANTAGE_FN.create('grpo').computeSync(part.batch);
  return names.map((name) => {
    const { loss, metrics, grad } = POLICY_LOSS_FN.create(name).computeSync(
      { ...part.batch, advantages },
      { grad: true },
    );
    const gradNorm = Math.sqrt(grad!.reduce((sum, x) => sum + x * x, 0));
    const result: ReportResult = { loss, metrics: metrics as Record<string, number>, gradNorm };
    return { result, grad: grad!, advantages };
  });
}

/** Creates a report builder from the compiled module. */
export function builderOf(
  subjects: readonly ReportSubject[],
  files: readonly string[] = ['made.jsonl'],
): ReportBuilder {
  return new built.ReportBuilder({ files, version: '1.2.3', subjects });
}

/** Builds the report page of these policy losses on the example rollouts. */
export async function examplePage(...names: string[]): Promise<string> {
  const [part] = (await exampleParts()) as [RolloutPart];
  const all = computed(names, part);
  const builder = builderOf(
    names.map((name) => lossSubject(name)),
    ['examples/rollouts.jsonl'],
  );
  builder.add(part, all);
  return builder.finish(all.map(({ result }) => result));
}

/** Builds the report page of one part and one subject, with these gradients instead of computed ones. */
export function madePage(part: RolloutPart, grad: number[], advantages?: number[]): string {
  const builder = builderOf([madeSubject('made')]);
  builder.add(part, [
    { grad: Float32Array.from(grad), ...(advantages && { advantages: Float32Array.from(advantages) }) },
  ]);
  return builder.finish([{ loss: 0, metrics: {}, gradNorm: 0 }]);
}

const CHROMIUM = process.env.PLAYWRIGHT_CHROMIUM ?? '/usr/bin/chromium';

/** A page that is open in the browser. */
export interface OpenPage {
  page: Page;
  /** Console messages, errors, dialogs, and requests other than the request for the page itself. */
  noise: string[];
}

/**
 * Describes a suite of tests that need a browser, and skips it if there is no Chromium at /usr/bin/chromium. The
 * environment variable PLAYWRIGHT_CHROMIUM names another path.
 */
export function describeInBrowser(title: string, body: () => void): void {
  (existsSync(CHROMIUM) ? describe : describe.skip)(title, body);
}

/** Returns the data that a page contains for its own program. */
export function dataOf(page: Page): Promise<PageData> {
  return page.locator('#data').evaluate((element) => JSON.parse(element.textContent!));
}

/** Writes pages to files and opens them in a browser. */
export class Reader {
  readonly #directory = mkdtempSync(join(tmpdir(), 'policy-loss-report-'));
  readonly #browser: Promise<Browser> = chromium.launch({ executablePath: CHROMIUM });
  readonly #pages = new Set<Page>();
  #count = 0;

  async open(html: string, options: BrowserContextOptions = {}): Promise<OpenPage> {
    const file = join(this.#directory, `${this.#count++}.html`);
    writeFileSync(file, html);
    const context = await (await this.#browser).newContext({
      viewport: { width: 1200, height: 900 },
      ...options,
    });
    const page = await context.newPage();
    this.#pages.add(page);
    const noise: string[] = [];
    const { href } = pathToFileURL(file);
    page.on('console', (message) => noise.push(`console: ${message.text()}`));
    page.on('pageerror', (error) => noise.push(`error: ${error.message}`));
    page.on('dialog', async (dialog) => {
      noise.push(`dialog: ${dialog.message()}`);
      await dialog.dismiss();
    });
    page.on('request', (request) => {
      if (request.url() !== href) noise.push(`request: ${request.url()}`);
    });
    await page.goto(href);
    return { page, noise };
  }

  /** Closes all open pages except these. */
  async closeAllBut(...kept: OpenPage[]): Promise<void> {
    for (const page of this.#pages)
      if (!kept.some((other) => other.page === page)) {
        this.#pages.delete(page);
        await page.context().close();
      }
  }

  async close(): Promise<void> {
    await (await this.#browser).close();
    rmSync(this.#directory, { recursive: true });
  }
}

/** Asserts that a page and its plots fit windows of these widths, without a scrollbar. */
export async function assertFits(page: Page, widths: readonly number[]): Promise<void> {
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    await page.waitForFunction(() =>
      [...document.querySelectorAll('.plot')].every(
        (plot) => Math.abs(plot.querySelector('canvas')!.clientWidth - plot.clientWidth) < 2,
      ),
    );
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width);
  }
}
