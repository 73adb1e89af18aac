// The rollouts that stand out, with what a page shows of them and no more: a few rows, clipped around their extreme token.
import type { Place, RolloutPart } from '../../rollouts/index.js';

/** A clipped text. */
export interface Excerpt {
  text: string;
  /** How many UTF-16 units were left out at the end. */
  left: number;
}

/** A row that stands out. */
export interface ExtremeRow {
  /** What it was chosen for, of its extreme token. Infinity where that is not finite. */
  score: number;
  /** Its index among all rows. */
  index: number;
  place: Place | undefined;
  /** Of its tokens, masked ones included. */
  length: number;
  /** The index of the extreme token in the row. */
  peak: number;
  reward: number | undefined;
  prompt: Excerpt | undefined;
  response: Excerpt | undefined;
  /** The tokens that are kept of it. */
  tokens: TokenWindow;
}

/** Some of a row's tokens, one after another. */
export interface TokenWindow {
  /** The index of the first in its row. */
  first: number;
  mask: Uint8Array;
  logRatios: Float32Array | undefined;
  /** By the subjects that the row is kept for, in their order. */
  gradients: { subject: number; grad: Float32Array; advantages: Float32Array | undefined }[];
  /** Their texts, where the row has a text for each token. */
  texts: readonly string[] | undefined;
  /** The response's characters, where it has as many as the row has tokens. */
  characters: readonly string[] | undefined;
}

/** Where a row is, with what was computed for it. */
export interface RowSource {
  part: RolloutPart;
  row: number;
  /** Of all the part's tokens. */
  logRatios: Float32Array | undefined;
  /** Of all the part's tokens, by subject. */
  results: readonly { grad: Float32Array; advantages: Float32Array | undefined }[];
}

/** The rows of highest score, at most so many. Of equal rows the earlier ones stay. */
export class Extremes {
  readonly rows: ExtremeRow[] = [];
  readonly #most: number;
  readonly #subjects: readonly number[];

  /** @param subjects whose gradients are kept. */
  constructor(most: number, subjects: readonly number[]) {
    this.#most = most;
    this.#subjects = subjects;
  }

  /** Whether a row of this score would be among them. */
  has(score: number): boolean {
    if (!(score > 0)) return false;
    return this.rows.length < this.#most || score > this.rows.at(-1)!.score;
  }

  /** Keeps a row. @param peak the index of the extreme token in it. */
  add(score: number, peak: number, source: RowSource): void {
    const at = this.rows.findIndex((row) => score > row.score);
    this.rows.splice(at < 0 ? this.rows.length : at, 0, keep(score, peak, source, this.#subjects));
    if (this.rows.length > this.#most) this.rows.pop();
  }
}

/** A response's characters where there is one for each of the row's tokens. */
export function charactersOf(response: unknown, tokens: number): string[] | undefined {
  // A character has one or two units, so that most texts need not be taken apart.
  if (typeof response !== 'string' || response.length < tokens || response.length > 2 * tokens)
    return undefined;
  const characters = [...response];
  return characters.length === tokens ? characters : undefined;
}

// What a page can show of one row.
const MOST_TOKENS = 800;
const MOST_TEXT = 3000;

function keep(score: number, peak: number, source: RowSource, subjects: readonly number[]): ExtremeRow {
  const { part, row, logRatios, results } = source;
  const { cuSeqlens, actionMask, rewards } = part.batch;
  const [start, end] = [cuSeqlens[row]!, cuSeqlens[row + 1]!];
  const length = end - start;
  const first = Math.max(0, Math.min(peak - MOST_TOKENS / 2, length - MOST_TOKENS));
  const last = Math.min(length, first + MOST_TOKENS);
  const [from, to] = [start + first, start + last];
  const { prompt, response, tokens } = part.kept[row] ?? {};
  const texts = isTexts(tokens) && tokens.length === length ? tokens.slice(first, last) : undefined;
  return {
    score,
    index: part.first + row,
    place: part.places[row],
    length,
    peak,
    reward: rewards?.[row],
    prompt: excerpt(prompt),
    response: excerpt(response),
    tokens: {
      first,
      mask: new Uint8Array(actionMask.subarray(from, to)),
      logRatios: logRatios?.slice(from, to),
      gradients: subjects.map((subject) => {
        const { grad, advantages } = results[subject]!;
        return { subject, grad: grad.slice(from, to), advantages: advantages?.slice(from, to) };
      }),
      texts: texts?.map((text) => text.slice(0, MOST_TEXT)),
      characters: charactersOf(response, length)?.slice(first, last),
    },
  };
}

function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'string');
}

function excerpt(value: unknown): Excerpt | undefined {
  if (value === undefined || value === null) return undefined;
  // Conversations and the like are shown as they stand in the file.
  const whole = typeof value === 'string' ? value : JSON.stringify(value);
  let end = Math.min(whole.length, MOST_TEXT);
  // Not in the middle of a character.
  if (end < whole.length && /[\ud800-\udbff]/.test(whole[end - 1]!)) end--;
  return { text: whole.slice(0, end), left: whole.length - end };
}
