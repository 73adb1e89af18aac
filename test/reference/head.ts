/** The output head of a model and its gradients, in float64 from their definitions. */

export interface ReferenceHead {
  rows: number;
  vocabulary: number;
  size: number;
  hidden: ArrayLike<number>;
  weight: ArrayLike<number>;
  bias?: ArrayLike<number> | undefined;
  /** −100 ignores the row. */
  targets: readonly number[];
}

/** Computes the logits. Those of ignored rows are 0. */
export function referenceHead({ rows, vocabulary, size, hidden, weight, bias, targets }: ReferenceHead) {
  const logits = new Float64Array(rows * vocabulary);
  for (let row = 0; row < rows; row++) {
    if (targets[row] === -100) continue;
    for (let token = 0; token < vocabulary; token++) {
      let sum = bias?.[token] ?? 0;
      for (let d = 0; d < size; d++) sum += hidden[row * size + d]! * weight[token * size + d]!;
      logits[row * vocabulary + token] = sum;
    }
  }
  return logits;
}

/** The gradients, and for each the largest sum of the absolute values of an element's terms. */
export interface ReferenceHeadGradients {
  gradHidden: Float64Array;
  gradWeight: Float64Array;
  gradBias: Float64Array;
  magnitudes: { gradHidden: number; gradWeight: number; gradBias: number };
}

/** Computes the gradients from that with respect to the logits. */
export function referenceHeadGradients(
  { rows, vocabulary, size, hidden, weight, targets }: ReferenceHead,
  grad: ArrayLike<number>,
): ReferenceHeadGradients {
  const zeros = () => ({
    gradHidden: new Float64Array(rows * size),
    gradWeight: new Float64Array(vocabulary * size),
    gradBias: new Float64Array(vocabulary),
  });
  const sums = zeros();
  const sizes = zeros();
  const add = (key: keyof typeof sums, at: number, term: number) => {
    sums[key][at]! += term;
    sizes[key][at]! += Math.abs(term);
  };
  for (let row = 0; row < rows; row++) {
    if (targets[row] === -100) continue;
    for (let token = 0; token < vocabulary; token++) {
      const g = grad[row * vocabulary + token]!;
      add('gradBias', token, g);
      for (let d = 0; d < size; d++) {
        add('gradHidden', row * size + d, g * weight[token * size + d]!);
        add('gradWeight', token * size + d, g * hidden[row * size + d]!);
      }
    }
  }
  const largest = (of: Float64Array) => of.reduce((a, b) => Math.max(a, b), 0);
  const { gradHidden, gradWeight, gradBias } = sizes;
  const magnitudes = {
    gradHidden: largest(gradHidden),
    gradWeight: largest(gradWeight),
    gradBias: largest(gradBias),
  };
  return { ...sums, magnitudes };
}
