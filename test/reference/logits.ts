/** The log-softmax of rows of logits, its entropy and their gradients, in float64 from their definitions. */

export interface ReferenceLogits {
  rows: number;
  vocabulary: number;
  /** The distance between the first logits of two rows; `vocabulary` by default. */
  rowStride?: number;
  logits: ArrayLike<number>;
  /** −100 ignores the row. */
  targets: readonly number[];
  /** One for all rows, or one per row. */
  temperature?: number | readonly number[] | undefined;
  softcap?: number | undefined;
  support?: { tokenIds: readonly number[]; offsets: readonly number[] } | undefined;
}

export interface ReferenceResults {
  logprob: number[];
  logsumexp: number[];
  entropy: number[];
}

interface Row {
  tokens: readonly number[];
  y: number[];
  /** The derivatives of y with respect to the logits. */
  slopes: number[];
  p: number[];
  logsumexp: number;
  entropy: number;
}

function rowOf(x: ReferenceLogits, row: number): Row {
  const { vocabulary, rowStride = vocabulary, logits, temperature = 1, softcap, support } = x;
  const t = typeof temperature === 'number' ? temperature : temperature[row]!;
  const tokens = support
    ? support.tokenIds.slice(support.offsets[row], support.offsets[row + 1])
    : Array.from({ length: vocabulary }, (_, token) => token);
  const own = tokens.map((token) => logits[row * rowStride + token]!);
  const y = own.map((logit) => (softcap ? softcap * Math.tanh(logit / softcap) : logit) / t);
  const slopes = own.map((logit) => (softcap ? 1 / Math.cosh(logit / softcap) ** 2 : 1) / t);
  const most = y.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  // Summing the smallest terms first loses no digits next to the largest term, which is 1.
  const terms = y.map((each) => Math.exp(each - most)).sort((a, b) => a - b);
  terms.pop();
  const logTotal = Math.log1p(terms.reduce((sum, each) => sum + each, 0));
  const p = y.map((each) => Math.exp(each - most - logTotal));
  // −Infinity adds nothing: 0·∞ counts as 0.
  const entropy = y.reduce((sum, each, i) => sum - (p[i]! > 0 ? p[i]! * (each - most - logTotal) : 0), 0);
  return { tokens, y, slopes, p, logsumexp: most + logTotal, entropy };
}

/** Computes the log-probabilities, the logarithms of the sums and the entropies. */
export function referenceLogprobs(x: ReferenceLogits): ReferenceResults {
  const results: ReferenceResults = { logprob: [], logsumexp: [], entropy: [] };
  x.targets.forEach((target, row) => {
    const { tokens, y, logsumexp, entropy } =
      target === -100 ? { tokens: [-100], y: [0], logsumexp: 0, entropy: 0 } : rowOf(x, row);
    const at = tokens.indexOf(target);
    // The other terms tell a log-probability near 0 more precisely than y − logsumexp does.
    const others = y.reduce((sum, each, i) => sum + (i === at ? 0 : Math.exp(each - y[at]!)), 0);
    results.logprob.push(others < 1 ? -Math.log1p(others) : y[at]! - logsumexp);
    results.logsumexp.push(logsumexp);
    results.entropy.push(entropy);
  });
  return results;
}

/** Computes the gradient with respect to the logits, row after row without gaps. */
export function referenceGradient(
  x: ReferenceLogits,
  gradLogprob: ArrayLike<number>,
  gradEntropy?: ArrayLike<number>,
): { grad: Float64Array; magnitude: number } {
  const grad = new Float64Array(x.rows * x.vocabulary);
  let magnitude = 0;
  x.targets.forEach((target, row) => {
    if (target === -100) return;
    const { tokens, y, slopes, p, logsumexp, entropy } = rowOf(x, row);
    const g = gradLogprob[row]!;
    const gEntropy = gradEntropy?.[row] ?? 0;
    // 1 − p of the target, as a sum, which does not cancel.
    const rest = p.reduce((sum, each, i) => sum + (tokens[i] === target ? 0 : each), 0);
    tokens.forEach((token, i) => {
      const ofLogprob = token === target ? rest : -p[i]!;
      const log = p[i]! > 0 ? y[i]! - logsumexp : 0;
      const ofEntropy = -p[i]! * (log + entropy);
      grad[row * x.vocabulary + token] = (g * ofLogprob + gEntropy * ofEntropy) * slopes[i]!;
      const size = Math.abs(g * ofLogprob) + Math.abs(gEntropy) * p[i]! * (Math.abs(log) + entropy);
      magnitude = Math.max(magnitude, size * slopes[i]!);
    });
  });
  return { grad, magnitude };
}
