// Collects the rows with the most extreme tokens. To save memory, it keeps only what the page shows of a row: the
// tokens around the extreme one, and the beginning of the prompt and the response.
import type { Place, RolloutPart } from '../../rollouts/index.js';

/** The beginning of a long text, or the whole of a short one. */
export interface Excerpt {
  text: string;
  /** The number of UTF-16 code units that are left out at the end. */
  omitted: number;
}

/** A row with an extreme token, that is, a token whose gradient or ln(ratio) has a large absolute value. */
export interface ExtremeRow {
  /** The absolute value of the extreme token's gradient or ln(ratio); Infinity if this value is NaN. */
  score: number;
  /** The index of the row among all rows of all files. */
  index: number;
  place: Place | undefined;
  /** The number of tokens in the row, including masked ones. */
  length: number;
  /** The index of the extreme token within the row. */
  peak: number;
  reward: number | undefined;
  prompt: Excerpt | undefined;
  response: Excerpt | undefined;
  /** The extreme token and the tokens around it. */
  tokens: TokenWindow;
}

/** Some consecutive tokens of a row. */
export interface TokenWindow {
  /** The index, within the row, of the first of these tokens. */
  first: number;
  mask: Uint8Array;
  logRatios: Float32Array | undefined;
  /**
   * The values for each loss or algorithm (subject) whose gradients the page shows for this row, in the order of the
   * subjects.
   */
  gradients: { subject: number; grad: Float32Array; advantages: Float32Array | undefined }[];
  /** The text of each token; undefined if the row does not have a text for every token. */
  texts: readonly string[] | undefined;
  /** The character of the response for each token; undefined if the response does not have one character per token. */
  characters: readonly string[] | undefined;
}

/** A row, the part of the rollouts that contains it, and the values that were computed for this part. */
export interface RowSource {
  part: RolloutPart;
  row: number;
  /** ln(ratio) of each token of the part; undefined if the rollouts have no old log-probabilities. */
  logRatios: Float32Array | undefined;
  /** The results of each loss or algorithm (subject), with one value per token of the part. */
  results: readonly { grad: Float32Array; advantages: Float32Array | undefined }[];
}

/** Collects the rows with the highest scores. If several rows have the same score, the earlier ones are kept. */
export class Extremes {
  readonly rows: ExtremeRow[] = [];
  /** The indices of the losses and algorithms whose gradients are kept with each row. */
  readonly subjects: readonly number[];
  readonly #limit: number;

  /**
   * @param limit the largest number of rows to keep.
   * @param subjects the indices of the losses and algorithms whose gradients are kept with each row.
   */
  constructor(limit: number, subjects: readonly number[]) {
    this.#limit = limit;
    this.subjects = subjects;
  }

  /** Returns whether a row with this score would be kept. */
  accepts(score: number): boolean {
    if (!(score > 0)) return false;
    return this.rows.length < this.#limit || score > this.rows.at(-1)!.score;
  }

  /**
   * Adds a row. If there are then too many rows, drops the row with the lowest score.
   * @param peak the index of the extreme token within the row.
   */
  add(score: number, peak: number, source: RowSource): void {
    this.insert(keep(score, peak, source, this.subjects));
  }

  /** Adds a row that is after those that were added before, if its score is high enough. */
  insert(row: ExtremeRow): void {
    if (!this.accepts(row.score)) return;
    const at = this.rows.findIndex(({ score }) => row.score > score);
    this.rows.splice(at < 0 ? this.rows.length : at, 0, row);
    if (this.rows.length > this.#limit) this.rows.pop();
  }
}

/** Returns the characters of a response if it has exactly one character per token. Otherwise returns undefined. */
export function charactersOf(response: unknown, tokens: number): string[] | undefined {
  // A character consists of one or two UTF-16 code units. So the length alone already excludes most texts.
  if (typeof response !== 'string' || response.length < tokens || response.length > 2 * tokens)
    return undefined;
  const characters = [...response];
  return characters.length === tokens ? characters : undefined;
}

// The most tokens of a row, and the most UTF-16 code units of a text, that are kept. These limits keep the page small.
export const MAX_TOKENS = 800;
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
    reward: (rewards as ArrayLike<number> | undefined)?.[row],
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
  // Avoids cutting a surrogate pair in half.
  if (end < whole.length && /[\ud800-\udbff]/.test(whole[end - 1]!)) end--;
  return { text: whole.slice(0, end), omitted: whole.length - end };
}
