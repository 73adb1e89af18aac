/** Shared by the report's tests: rollouts, subjects, pages made of them, and a browser that opens the pages. */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import type { ReportBuilder, ReportResult, ReportSubject } from '../../lib/cli/report/index.js';
import type { PageData } from '../../lib/cli/report/page-data.js';
import { ADVANTAGE_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { type RolloutPart, streamRollouts } from '../../lib/rollouts/index.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

// The compiled module, because the page inlines the compiled program.
const built: typeof import('../../lib/cli/report/index.js') = await import(
  pathToFileURL(join(ROOT, 'dist', 'cli', 'report', 'index.js')).href
);

/** Reads the rollouts of the example in parts. */
export async function exampleParts(maxTokens?: number): Promise<RolloutPart[]> {
  const parts: RolloutPart[] = [];
  const options = { keep: ['prompt', 'response', 'tokens'], ...(maxTokens !== undefined && { maxTokens }) };
  for await (const part of streamRollouts([join(ROOT, 'examples', 'rollouts.jsonl')], options))
    parts.push(part);
  return parts;
}

/** A row for {@link partOf}. */
export interface MadeRow {
  logprobs: number[];
  oldLogprobs?: number[];
  mask?: number[];
  kept?: Record<string, unknown>;
}

/** Makes a part from rows. */
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
  };
}

/** Returns a policy loss as a subject with its curve. */
export function lossSubject(name: string, title = name): ReportSubject {
  const fn = POLICY_LOSS_FN.create(name);
  return {
    name,
    title,
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

/** Returns a subject without a curve, for made-up results. */
export const madeSubject = (title: string): ReportSubject => ({ name: title, title, curve: () => undefined });

/** Computes losses, with GRPO's advantages, on a part that holds all rows. */
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

/** Creates a builder of the compiled module. */
export function builderOf(
  subjects: readonly ReportSubject[],
  files: readonly string[] = ['made.jsonl'],
): ReportBuilder {
  return new built.ReportBuilder({ files, version: '1.2.3', subjects });
}

/** Builds the page of policy losses on the example. */
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

/** Builds the page of one part and one subject with made-up gradients. */
export function madePage(part: RolloutPart, grad: number[], advantages?: number[]): string {
  const builder = builderOf([madeSubject('made')]);
  builder.add(part, [
    { grad: Float32Array.from(grad), ...(advantages && { advantages: Float32Array.from(advantages) }) },
  ]);
  return builder.finish([{ loss: 0, metrics: {}, gradNorm: 0 }]);
}

/** The path of Chromium. */
const CHROMIUM = process.env.PLAYWRIGHT_CHROMIUM ?? '/usr/bin/chromium';

/** An open page and what it reported or requested. */
export interface OpenPage {
  page: Page;
  /** Console messages, errors, dialogs, and requests other than the one for the page. */
  noise: string[];
}

/** Describes a suite that needs a browser. It is skipped without Chromium; PLAYWRIGHT_CHROMIUM names another path. */
export function describeInBrowser(title: string, body: () => void): void {
  (existsSync(CHROMIUM) ? describe : describe.skip)(title, body);
}

/** Returns the data that a page gives to its program. */
export function dataOf(page: Page): Promise<PageData> {
  return page.locator('#data').evaluate((element) => JSON.parse(element.textContent!));
}

/** Opens pages from files in a browser. */
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

  /** Closes all pages except for some. */
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
