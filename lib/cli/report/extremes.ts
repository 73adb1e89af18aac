// Collects the rows with the most extreme tokens. To save memory, it keeps only the parts of a row that the page shows:
// a window around the extreme token, and the beginning of the texts.
import type { Place, RolloutPart } from '../../rollouts/index.js';

/** The beginning of a text. */
export interface Excerpt {
  text: string;
  /** Number of UTF-16 units left out at the end. */
  omitted: number;
}

/** A row with an extreme token. */
export interface ExtremeRow {
  /** The extreme token's absolute value; Infinity if the value is NaN. */
  score: number;
  /** Index among all rows. */
  index: number;
  place: Place | undefined;
  /** Number of tokens, including masked ones. */
  length: number;
  /** Index of the extreme token in the row. */
  peak: number;
  reward: number | undefined;
  prompt: Excerpt | undefined;
  response: Excerpt | undefined;
  /** The tokens around the extreme one. */
  tokens: TokenWindow;
}

/** Consecutive tokens of a row. */
export interface TokenWindow {
  /** Index of the first one in its row. */
  first: number;
  mask: Uint8Array;
  logRatios: Float32Array | undefined;
  /** One entry for each subject that the row is kept for, in the order of the subjects. */
  gradients: { subject: number; grad: Float32Array; advantages: Float32Array | undefined }[];
  /** The tokens' texts, if the row has one for each token. */
  texts: readonly string[] | undefined;
  /** The response's characters, if there is one for each token. */
  characters: readonly string[] | undefined;
}

/** A row of a part, with the values computed for the part. */
export interface RowSource {
  part: RolloutPart;
  row: number;
  /** One value per token of the part. */
  logRatios: Float32Array | undefined;
  /** One entry per subject, with one value per token of the part. */
  results: readonly { grad: Float32Array; advantages: Float32Array | undefined }[];
}

/** The rows with the highest scores. Among equal scores, earlier rows stay. */
export class Extremes {
  readonly rows: ExtremeRow[] = [];
  readonly #limit: number;
  readonly #subjects: readonly number[];

  /**
   * @param limit the number of rows to keep.
   * @param subjects indices of the subjects whose gradients are kept.
   */
  constructor(limit: number, subjects: readonly number[]) {
    this.#limit = limit;
    this.#subjects = subjects;
  }

  /** Returns whether a row with this score would be kept. */
  accepts(score: number): boolean {
    if (!(score > 0)) return false;
    return this.rows.length < this.#limit || score > this.rows.at(-1)!.score;
  }

  /**
   * Keeps a row, and drops the lowest one if there are too many.
   * @param peak index of the extreme token in the row.
   */
  add(score: number, peak: number, source: RowSource): void {
    const at = this.rows.findIndex((row) => score > row.score);
    this.rows.splice(at < 0 ? this.rows.length : at, 0, keep(score, peak, source, this.#subjects));
    if (this.rows.length > this.#limit) this.rows.pop();
  }
}

/** Returns a response's characters if there is exactly one for each token. */
export function charactersOf(response: unknown, tokens: number): string[] | undefined {
  // A character has one or two UTF-16 units, so the length alone rules out most texts.
  if (typeof response !== 'string' || response.length < tokens || response.length > 2 * tokens)
    return undefined;
  const characters = [...response];
  return characters.length === tokens ? characters : undefined;
}

// Limits per row that keep the page small.
const MAX_TOKENS = 800;
const MAX_TEXT = 3000;

function keep(score: number, peak: number, source: RowSource, subjects: readonly number[]): ExtremeRow {
  const { part, row, logRatios, results } = source;
  const { cuSeqlens, actionMask, rewards } = part.batch;
  const [start, end] = [cuSeqlens[row]!, cuSeqlens[row + 1]!];
  const length = end - start;
  const first = Math.max(0, Math.min(peak - MAX_TOKENS / 2, length - MAX_TOKENS));
  const last = Math.min(length, first + MAX_TOKENS);
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
      texts: texts?.map((text) => text.slice(0, MAX_TEXT)),
      characters: charactersOf(response, length)?.slice(first, last),
    },
  };
}

function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'string');
}

function excerpt(value: unknown): Excerpt | undefined {
  if (value === undefined || value === null) return undefined;
  // Structured values, such as conversations, are shown as JSON.
  const whole = typeof value === 'string' ? value : JSON.stringify(value);
  let end = Math.min(whole.length, MAX_TEXT);
  // Do not cut a surrogate pair in half.
  if (end < whole.length && /[\ud800-\udbff]/.test(whole[end - 1]!)) end--;
  return { text: whole.slice(0, end), omitted: whole.length - end };
}
