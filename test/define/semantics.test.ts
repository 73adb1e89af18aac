/**
 * Tests the meaning of the language on single tokens and small batches, with results computed by hand: ties, bounds,
 * conditions, NaN, branches that are not taken, and reductions.
 */
import assert from 'node:assert/strict';
import { type Batch, lossFromExpression } from '../../lib/index.js';
import { syncOf } from '../support/user-loss.js';

/** Returns the value of an expression for a single token, and its derivative with respect to logprob. */
function atToken(text: string, token: Record<string, number>): [value: number, derivative: number] {
  const columns = Object.entries(token).map(([name, value]) => [name, Float32Array.of(value)]);
  const batch: Batch = { shape: [1, 1], ...Object.fromEntries(columns), actionMask: Uint8Array.of(1) };
  const { loss, grad } = syncOf(lossFromExpression(text, { lossAggMode: 'seq-mean-token-sum' }), batch);
  return [loss, grad[0]!];
}

function assertClose(actual: number, expected: number, what: string): void {
  const isClose =
    Object.is(actual, expected) || Math.abs(actual - expected) <= 1e-6 * Math.max(1, Math.abs(expected));
  assert.ok(isClose, `${what} is ${actual}, expected ${expected}`);
}

const TOKEN = { logprob: -1, oldLogprob: -1.5, refLogprob: -0.75, advantages: 2, entropy: 0.5 };
const NAN = { ...TOKEN, advantages: Number.NaN };
const e = Math.exp;
const sigmoid = (x: number) => 1 / (1 + e(-x));

const AT_TOKEN: Record<string, [text: string, value: number, derivative: number][]> = {
  names: [
    ['lp + 10*old + 100*ref', -91, 1],
    ['logprob + 10*old_logprob + 100*ref_logprob', -91, 1],
    ['A + H', 2.5, 0],
    ['advantages - entropy', 1.5, 0],
    ['d', 0.5, 1],
    ['r', e(0.5), e(0.5)],
    ['n', 1, 0],
  ],
  functions: [
    ['exp(2*lp)', e(-2), 2 * e(-2)],
    ['expm1(lp)', e(-1) - 1, e(-1)],
    ['log(-lp)', 0, -1],
    ['log1p(lp/2)', Math.log(0.5), 1],
    ['sqrt(lp + 5)', 2, 0.25],
    ['abs(lp)', 1, -1],
    ['sign(lp)', -1, 0],
    ['tanh(lp)', Math.tanh(-1), 1 - Math.tanh(-1) ** 2],
    ['sigmoid(lp)', sigmoid(-1), sigmoid(-1) * sigmoid(1)],
    ['logsigmoid(lp)', Math.log(sigmoid(-1)), sigmoid(1)],
    ['square(lp)', 1, -2],
    ['pow(2, lp)', 0.5, 0.5 * Math.LN2],
    ['sg(lp)*lp', 1, -1],
  ],
  powers: [
    ['lp**2', 1, -2],
    ['lp**3', -1, 3],
    ['(lp + 1)**0', 1, 0],
    ['(lp + 1)**1', 0, 1],
    ['(lp + 1)**2', 0, 0],
    ['lp**-1', -1, -1],
    ['lp**-2', 1, 2],
    ['(lp + 5)**0.5', 2, 0.25],
    ['(-lp)**1.5', 1, -1.5],
    ['2**-lp', 2, -2 * Math.LN2],
    ['lp*2**3**2', -512, 512],
    ['pow(lp, 1/3)', Number.NaN, Number.NaN],
  ],
  precedence: [
    ['1 - 2 - lp', 0, -1],
    ['8/4/lp', -2, -2],
    ['2 + 3*lp', -1, 3],
    ['-lp*2', 2, -2],
    ['1 + 1 < lp + 4', 1, 0],
    ['1 || 0 && 0', 1, 0],
    ['0 ? 1 : 0 ? 2 : 3', 3, 0],
    ['1 ? 0 ? 1 : 2 : 3', 2, 0],
    ['!lp == 0', 1, 0],
    ['2e-1 + .5 + 1.', 1.7, 0],
  ],
  ties: [
    ['max(2*lp, lp - 1)', -2, 2],
    ['max(lp - 1, 2*lp)', -2, 1],
    ['min(2*lp, lp - 1)', -2, 2],
    ['min(lp - 1, 2*lp)', -2, 1],
    ['min(lp, 2*lp + 1, 3*lp + 2)', -1, 1],
    ['max(3*lp + 2, 2*lp + 1, lp)', -1, 3],
    ['max(3, lp + 4)', 3, 0],
    ['max(lp + 4, 3)', 3, 1],
    ['abs(lp + 1)', 0, 0],
    ['sign(lp + 1)', 0, 0],
  ],
  bounds: [
    ['clip(lp, -1, 0)', -1, 1],
    ['clip(lp, -2, -1)', -1, 1],
    ['clip(lp, -1, -1)', -1, 1],
    ['clip(lp, -2, 0)', -1, 1],
    ['clip(lp, 0, 1)', 0, 0],
    ['clip(lp, -3, -2)', -2, 0],
    ['clip(lp, 1, -2)', -2, 0],
    ['clip(lp, 2*lp + 3, 5)', 1, 2],
    ['clip(lp, -5, 3*lp)', -3, 3],
  ],
  conditions: [
    ['lp ? 1 : 2', 1, 0],
    ['lp + 1 ? 1 : 2', 2, 0],
    ['!lp', 0, 0],
    ['!(lp + 1)', 1, 0],
    ['lp && A', 1, 0],
    ['lp && 0', 0, 0],
    ['0 || A', 1, 0],
    ['(lp < 0) + (A > 0)', 2, 0],
    ['(lp <= -1) + (lp >= -1) + (lp == -1)', 3, 0],
    ['(lp < -1) + (lp > -1) + (lp != -1)', 0, 0],
    ['(A > 0)*lp', -1, 1],
  ],
  'branches that are not taken': [
    ['lp > 0 ? log(lp) : 2*lp', -2, 2],
    ['lp < 0 ? lp : sqrt(lp)', -1, 1],
    ['A < 0 ? lp/0 : lp', -1, 1],
    ['lp == -1 ? lp : sqrt(lp + 1)', -1, 1],
    ['lp + 1 ? 1/(lp + 1) : 5*lp', -5, 5],
    ['row_sum(lp == -1 ? lp : log(lp + 1))', -1, 1],
    ['A > 0 ? lp : exp(1000*A)*lp', -1, 1],
    ['0/0 ? lp : 2*lp', -2, 2],
    ['lp - 1 ? lp : 2*lp', -1, 1],
    ['1 - lp ? lp : 2*lp', -1, 1],
    ['1 - A/2 ? lp : 2*lp', -2, 2],
    ['!(A - 2) ? lp : 2*lp', -1, 1],
    ['!!A*lp', -1, 1],
    ['1 - !A ? lp : 2*lp', -1, 1],
  ],
};

/** Expressions of a token with an advantage of 0, whose ratio overflows. */
const OF_ZERO: [text: string, value: number, derivative: number][] = [
  ['-A*r', 0, 0],
  ['max(-A*r, -A*clip(r, 0.8, 1.2))', 0, 0],
  ['A*exp(row_mean(d))', 0, 0],
  ['A*exp(batch_max(d))', 0, 0],
  ['(A > 0)*(r - 1 - d)', 0, 0],
  ['A*r*exp(-rollout)', 0, 0],
  ['sigmoid(r)', 1, 0],
  ['r', Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY],
  ['A*(lp/0)', Number.NaN, Number.NaN],
];

/** Expressions of a NaN in the column A. */
const OF_NAN: [text: string, value: number][] = [
  ['A > 0', 0],
  ['A <= 0', 0],
  ['A == A', 0],
  ['A != A', 1],
  ['A ? 1 : 2', 2],
  ['!A', 1],
  ['A && 1', 0],
  ['A || 0', 0],
  ['A > 0 ? A : 3', 3],
  ['A*exp(99 - lp)', Number.NaN],
  ...['A', 'A*0', 'A - A', '0/A', 'min(A, 1)', 'min(1, A)', 'max(A, 1)', 'max(1, A)', 'clip(A, 0, 1)'].map(
    (text): [string, number] => [text, Number.NaN],
  ),
  ...['abs(A)', 'sign(A)', 'square(A)', 'sqrt(A)', 'exp(A)', 'log(A)', 'sigmoid(A)', 'tanh(A)', 'sg(A)'].map(
    (text): [string, number] => [text, Number.NaN],
  ),
  ...['row_min(A)', 'row_max(A)', 'row_sum(A)', 'batch_min(A)', 'batch_max(A)', 'batch_mean(A)'].map(
    (text): [string, number] => [text, Number.NaN],
  ),
];

// Three rows, of which the last one has no unmasked token.
const ROWS: Batch = {
  shape: [3, 3],
  logprob: Float32Array.of(-1, -3, 9, 9, -2, 9, 9, 9, 9),
  advantages: Float32Array.of(5, 5, 9, 9, 4, 9, 9, 9, 9),
  actionMask: Uint8Array.of(1, 1, 0, 0, 1, 0, 0, 0, 0),
};

/** Values of the three unmasked tokens, and the derivatives of their sum with respect to their logprob. */
const AT_ROWS: [text: string, values: number[], derivatives: number[]][] = [
  ['n', [2, 2, 1], [0, 0, 0]],
  ['row_sum(lp)', [-4, -4, -2], [2, 2, 1]],
  ['row_mean(lp)', [-2, -2, -2], [1, 1, 1]],
  ['row_min(lp)', [-3, -3, -2], [0, 2, 1]],
  ['row_max(lp)', [-1, -1, -2], [2, 0, 1]],
  ['row_max(max(lp, -1))', [-1, -1, -1], [2, 0, 0]],
  ['row_min(min(lp, -3))', [-3, -3, -3], [0, 0, 0]],
  ['row_sum(3)', [6, 6, 3], [0, 0, 0]],
  ['row_mean(n)', [2, 2, 1], [0, 0, 0]],
  ['row_sum(row_sum(lp))', [-8, -8, -2], [4, 4, 1]],
  ['row_sum(lp*row_sum(lp))', [16, 16, 4], [-16, -16, -4]],
  ['batch_sum(1)', [3, 3, 3], [0, 0, 0]],
  ['batch_sum(n)', [5, 5, 5], [0, 0, 0]],
  ['batch_sum(lp)', [-6, -6, -6], [3, 3, 3]],
  ['batch_mean(lp)', [-2, -2, -2], [1, 1, 1]],
  ['batch_min(lp)', [-3, -3, -3], [0, 3, 0]],
  ['batch_max(lp)', [-1, -1, -1], [3, 0, 0]],
  ['batch_max(max(lp, -2))', [-1, -1, -1], [3, 0, 0]],
  ['batch_min(max(lp, -2))', [-2, -2, -2], [0, 0, 0]],
  ['batch_max(A)', [5, 5, 5], [0, 0, 0]],
  ['batch_mean(row_sum(lp))', [-10 / 3, -10 / 3, -10 / 3], [2, 2, 1]],
  ['batch_sum(row_min(lp))', [-8, -8, -8], [0, 6, 3]],
  ['row_sum(batch_sum(lp))', [-12, -12, -6], [5, 5, 5]],
  ['lp*batch_sum(lp)', [6, 18, 12], [-12, -12, -12]],
  ['lp - batch_mean(lp)', [1, -1, 0], [0, 0, 0]],
  ['lp - sg(batch_mean(lp))', [1, -1, 0], [1, 1, 1]],
  ['batch_sum(lp*sg(row_mean(lp)))', [12, 12, 12], [-6, -6, -6]],
];

describe('the language of losses', () => {
  for (const [what, cases] of Object.entries(AT_TOKEN))
    describe(what, () => {
      for (const [text, value, derivative] of cases)
        it(text, () => {
          const [actual, slope] = atToken(text, TOKEN);
          assertClose(actual, value, 'value');
          assertClose(slope, derivative, 'derivative');
        });
    });

  describe('advantages of 0', () => {
    for (const [text, value, derivative] of OF_ZERO)
      it(text, () => {
        const far = { ...TOKEN, advantages: 0, oldLogprob: -201, rolloutLogprob: -201 };
        assert.deepEqual(
          atToken(text, far).map((x) => x + 0),
          [value, derivative],
        );
      });
  });

  describe('NaN', () => {
    for (const [text, value] of OF_NAN)
      it(text, () => {
        assertClose(atToken(text, NAN)[0], value, 'value');
      });
  });

  describe('reductions', () => {
    for (const [text, values, derivatives] of AT_ROWS)
      it(text, () => {
        const fn = lossFromExpression(text, {
          lossAggMode: 'seq-mean-token-sum',
          metrics: { first: `(${text})*A` },
        });
        const { loss, grad, metrics } = syncOf(fn, ROWS);
        assertClose(
          3 * loss,
          values.reduce((sum, x) => sum + x, 0),
          'sum',
        );
        const [a, b, c] = values as [number, number, number];
        assertClose(3 * metrics.first!, 5 * a + 5 * b + 4 * c, 'sum of products with A');
        [grad[0], grad[1], grad[4]].forEach((g, i) => {
          assertClose(3 * g!, derivatives[i]!, `derivative ${i}`);
        });
      });
  });
});
