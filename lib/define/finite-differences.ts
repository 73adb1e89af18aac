// Compares a gradient with finite differences of its loss.
import type { Rows } from './check-rows.js';

/** How a gradient compares with finite differences. */
export interface Comparison {
  /** How many tokens were compared. */
  readonly compared: number;
  /** How many tokens were left out because the loss has a kink or a jump there. */
  readonly kinks: number;
  /** The token with the largest difference. `excess` is the difference in units of the largest allowed one. */
  readonly worst: { token: number; expected: number; received: number; excess: number } | undefined;
}

// At most this many tokens are compared, spread over the batch.
const MOST_TOKENS = 32;
// The larger of two distances, in nats. With smaller ones, the rounding of float32 would dominate.
const DISTANCE = 2 ** -5;
// The largest error of a gradient that passes, relative to the gradient.
const TOLERANCE = 2e-3;
// The loss is not smooth if the slopes at the two distances differ by more than this. A third of it is the error of the
// extrapolated slope.
const SMOOTH = 5e-3;

/**
 * Compares the gradient of a loss with central differences.
 * @param base the loss and the gradient at the rows' logprobs.
 * @param lossAt returns the loss at other logprobs.
 */
export function differenceQuotients(
  rows: Rows,
  base: { loss: number; grad: Float32Array },
  lossAt: (logprob: Float32Array) => number,
): Comparison {
  const logprob = rows.floats.get('logprob')!;
  const largest = base.grad.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  const noise = (2 ** -21 * Math.abs(base.loss)) / DISTANCE;
  const at = (token: number, value: number) => lossAt(logprob.with(token, value));
  let compared = 0;
  let kinks = 0;
  let worst: Comparison['worst'];
  for (const token of sampleOf(rows.mask)) {
    const slopes = [DISTANCE, DISTANCE / 2].map((distance) =>
      slopeAt((x) => at(token, x), logprob[token]!, base.loss, distance),
    );
    const [coarse, fine] = slopes as [Slope, Slope];
    const size = Math.max(Math.abs(fine.slope), 0.05 * largest);
    const bound = SMOOTH * size + noise;
    if (
      !(Math.abs(coarse.slope - fine.slope) <= bound && Math.abs(coarse.bend - 2 * fine.bend) <= 2 * bound)
    ) {
      kinks++;
      continue;
    }
    compared++;
    // Cancels the error of second order in the distance.
    const expected = (4 * fine.slope - coarse.slope) / 3;
    const received = base.grad[token]!;
    const excess = Math.abs(received - expected) / (TOLERANCE * size + noise || Number.MIN_VALUE);
    if (!worst || !(excess <= worst.excess)) worst = { token, expected, received, excess };
  }
  return { compared, kinks, worst };
}

// The slope of a function by a central difference, and by how much the slopes on both sides differ.
interface Slope {
  slope: number;
  bend: number;
}

function slopeAt(f: (x: number) => number, x: number, atX: number, distance: number): Slope {
  const [right, left] = [Math.fround(x + distance), Math.fround(x - distance)];
  const [atRight, atLeft] = [f(right), f(left)];
  return {
    slope: (atRight - atLeft) / (right - left),
    bend: (atRight - atX) / (right - x) - (atX - atLeft) / (x - left),
  };
}

// Returns the indices of unmasked tokens, evenly spread.
function sampleOf(mask: Uint8Array): number[] {
  const tokens = [...mask.keys()].filter((i) => mask[i] !== 0);
  const every = Math.max(1, tokens.length / MOST_TOKENS);
  return Array.from(
    { length: Math.min(tokens.length, MOST_TOKENS) },
    (_, i) => tokens[Math.floor(i * every)]!,
  );
}
