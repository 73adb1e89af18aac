// A character-level language model for the example onnx.ts: its weights, and its logits in float64.
//
// The model sees the last four characters. Each of them adds one row of a table to the logits of the next character, so
// that the logits are those of a naive Bayes classifier. The weights are logarithms of counted pairs of characters.
// There is nothing to train, and every run gives the same weights.

/** How much each character counts that the model sees, from the last one backwards. */
const SHARES = [1, 0.6, 0.4, 0.2];

/** A character-level language model. */
export interface CharacterModel {
  /** The characters of the vocabulary. The index of a character is its token id. Token 0 stands before every text. */
  vocabulary: string[];
  /**
   * Table k, of shape [V, V], holds what the character k + 1 positions before the next one adds to its logits: row
   * `id` if that character is `id`.
   */
  tables: Float32Array[];
}

/** Counts the weights of a model in texts. */
export function countModel(texts: readonly string[]): CharacterModel {
  const vocabulary = ['\0', ...new Set(texts.join(''))].sort();
  const size = vocabulary.length;
  const model: CharacterModel = { vocabulary, tables: [] };
  const ids = texts.map((text) => idsOf(model, text));
  for (const [k, share] of SHARES.entries()) {
    const counts = new Float64Array(size * size).fill(0.1);
    for (const text of ids)
      text.forEach((id, t) => {
        counts[(text[t - k - 1] ?? 0) * size + id]! += 1;
      });
    model.tables.push(logarithms(counts, size, k === 0 ? 'rows' : 'columns', share));
  }
  return model;
}

/**
 * Returns logarithms of counts that are divided by the sum of their row or column. For the last character, these are
 * probabilities of the next one. For earlier characters, they are probabilities of that character given the next one.
 */
function logarithms(counts: Float64Array, size: number, by: 'rows' | 'columns', share: number): Float32Array {
  const sums = new Float64Array(size);
  const lineOf = (i: number) => (by === 'rows' ? Math.floor(i / size) : i % size);
  counts.forEach((count, i) => {
    sums[lineOf(i)]! += count;
  });
  return Float32Array.from(counts, (count, i) => share * Math.log(count / sums[lineOf(i)]!));
}

/** Returns the token ids of a text. */
export function idsOf({ vocabulary }: CharacterModel, text: string): number[] {
  return Array.from(text, (character) => vocabulary.indexOf(character));
}

/**
 * Computes in float64 the log-probability of a token after others.
 * @param before the ids of the tokens before it.
 */
export function logprobOf(
  { vocabulary, tables }: CharacterModel,
  before: readonly number[],
  id: number,
): number {
  const size = vocabulary.length;
  const logits = vocabulary.map((_, next) =>
    tables.reduce((sum, table, k) => sum + table[(before.at(-k - 1) ?? 0) * size + next]!, 0),
  );
  const most = Math.max(...logits);
  return logits[id]! - most - Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
}
