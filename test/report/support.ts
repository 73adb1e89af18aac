/** What tests of the report share: rollouts, subjects, pages of them, and a browser to look at the pages with. */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import type { ReportBuilder, ReportResult, ReportSubject } from '../../lib/cli/report/index.js';
import { ADVANTAGE_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { type RolloutPart, streamRollouts } from '../../lib/rollouts/index.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

// As it is installed: the page's program is inlined as it was compiled.
const built: typeof import('../../lib/cli/report/index.js') = await import(
  pathToFileURL(join(ROOT, 'dist', 'cli', 'report', 'index.js')).href
);

/** The real rollouts of the example, in parts. */
export async function exampleParts(maxTokens?: number): Promise<RolloutPart[]> {
  const parts: RolloutPart[] = [];
  const options = { keep: ['prompt', 'response', 'tokens'], ...(maxTokens !== undefined && { maxTokens }) };
  for await (const part of streamRollouts([join(ROOT, 'examples', 'rollouts.jsonl')], options))
    parts.push(part);
  return parts;
}

/** A row of a part that a test makes. */
export interface MadeRow {
  logprobs: number[];
  oldLogprobs?: number[];
  mask?: number[];
  kept?: Record<string, unknown>;
}

/** A part of rows that are made here. */
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

/** A loss by its name, with its curve. */
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

/** A subject of no curve, for results that a test makes up. */
export const madeSubject = (title: string): ReportSubject => ({ name: title, title, curve: () => undefined });

/** What losses make of one part that is all there is. */
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

/** A builder as it is installed. */
export function builderOf(
  subjects: readonly ReportSubject[],
  files: readonly string[] = ['made.jsonl'],
): ReportBuilder {
  return new built.ReportBuilder({ files, version: '1.2.3', subjects });
}

/** The page of subjects on the example. */
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

/** The page of one made part and one subject of made gradients. */
export function madePage(part: RolloutPart, grad: number[], advantages?: number[]): string {
  const builder = builderOf([madeSubject('made')]);
  builder.add(part, [
    { grad: Float32Array.from(grad), ...(advantages && { advantages: Float32Array.from(advantages) }) },
  ]);
  return builder.finish([{ loss: 0, metrics: {}, gradNorm: 0 }]);
}

/** Where Chromium is. */
export const CHROMIUM = process.env.PLAYWRIGHT_CHROMIUM ?? '/usr/bin/chromium';

/** A page that is open in a browser, and what it complained of or asked for. */
export interface OpenPage {
  page: Page;
  /** Console messages, errors, and requests but the one for the page. */
  noise: string[];
}

/** Opens pages from files, as a reader does. */
export class Reader {
  readonly #directory = mkdtempSync(join(tmpdir(), 'policy-loss-report-'));
  readonly #browser: Promise<Browser> = chromium.launch({ executablePath: CHROMIUM });
  #count = 0;

  static get available(): boolean {
    return existsSync(CHROMIUM);
  }

  async open(html: string, options: BrowserContextOptions = {}): Promise<OpenPage> {
    const file = join(this.#directory, `${this.#count++}.html`);
    writeFileSync(file, html);
    const context = await (await this.#browser).newContext({
      viewport: { width: 1200, height: 900 },
      ...options,
    });
    const page = await context.newPage();
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

  async close(): Promise<void> {
    await (await this.#browser).close();
    rmSync(this.#directory, { recursive: true });
  }
}
