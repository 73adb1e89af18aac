// Writes the text of docs/numerics.md: the range of inputs for which each function is made, its behaviour outside that
// range, and its measured rounding errors.

import { inputRow } from '../../lib/batch/columns.js';
import {
  ADVANTAGE_FN,
  ENTROPY_LOSS_FN,
  type FunctionDeclaration,
  KL_FN,
  LOGITS_LOSS_FN,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  VALUE_LOSS_FN,
} from '../../lib/index.js';
import { DIVISORS } from '../../lib/losses/divisors.js';
import {
  BOUNDS,
  type Errors,
  everyFunction,
  type Measurable,
  type Measured,
  RANGES,
  SIZES,
} from './measure.js';
import { table } from './table.js';

/** The measured errors of each function. of() returns undefined for a function that has not been measured. */
export interface Measurements {
  /** The number of tokens that are measured for each range. */
  tokens: number;
  of(measurable: Measurable): Measured | undefined;
}

/** Returns measurements that measure a function when of() asks for it, on this many tokens of each range. */
export function measureAll(tokens: number): Measurements {
  return { tokens, of: (measurable) => measurable.measure(tokens) };
}

const SECTIONS = [
  ['policy', 'Policy losses', POLICY_LOSS_FN],
  ['kl', 'KL estimators', KL_FN],
  ['entropy', 'Entropy losses', ENTROPY_LOSS_FN],
  ['value', 'Value losses', VALUE_LOSS_FN],
  ['reward', 'Losses of reward models', REWARD_LOSS_FN],
  ['advantage', 'Advantage functions', ADVANTAGE_FN],
] as const;

/** The text of a table cell for an error that has not been measured. */
export const UNMEASURED = '?';

const show = (errors: Errors | undefined) =>
  errors ? `${errors.most.toFixed(2)} (${errors.mean.toFixed(2)})` : '';

function nameOf({ name, args }: Measurable): string {
  const given = Object.entries(args).map(([key, value]) => `${key}=${value}`);
  return `\`${name}\`${given.length > 0 ? ` ${given.join(', ')}` : ''}`;
}

function errorTable(family: Measurable['family'], measurements: Measurements): string {
  const columns = family === 'advantage' ? (['value'] as const) : (['value', 'grad', 'sum'] as const);
  const names = { value: family === 'advantage' ? 'advantage' : 'value', grad: 'gradient', sum: 'sum' };
  const rows = [...everyFunction()]
    .filter((measurable) => measurable.family === family)
    .map((measurable) => {
      const errors = measurements.of(measurable);
      return [
        nameOf(measurable),
        ...RANGES.flatMap((range) =>
          columns.map((column) => (errors ? show(errors[range][column]) : UNMEASURED)),
        ),
      ];
    });
  return table(
    ['function', ...RANGES.flatMap((range) => columns.map((column) => `${range}: ${names[column]}`))],
    rows,
  );
}

function rangeTable(registry: {
  names(): string[];
  get(name: string): { readonly declaration?: FunctionDeclaration };
}): string {
  const rows = registry.names().flatMap((name) => {
    const numerics = registry.get(name).declaration?.numerics;
    return numerics ? [[`\`${name}\``, numerics.range, numerics.outside]] : [];
  });
  return table(['function', 'made for', 'outside'], rows);
}

function divisorTable(): string {
  const rows = Object.entries(DIVISORS).flatMap(([framework, modes]) =>
    Object.entries(modes).map(([mode, { words }]) => [framework, `\`${mode}\``, words]),
  );
  return table(['framework', 'mode', 'divisor'], rows);
}

/** Returns the page. */
export function numericsPage(measurements: Measurements): string {
  const { near, wide } = BOUNDS;
  return `# Numbers

Written by \`npm run generate\`; do not edit. Tokens are computed in float32, whatever the dtype of their columns. Sums
run in float32 within a tile of at most 1024 tokens and in float64 beyond it. Losses and metrics are float64, gradients are float32.

## Everywhere

- Masked values do not affect a loss or its gradient, even if they are NaN or Infinity. The gradient of a masked token is
  exactly 0.
- Unmasked NaN gives NaN. Unmasked Infinity and results beyond 3.4·10³⁸ continue as in float32 arithmetic, to ±Infinity or
  NaN. They are not errors, except in rewards, values and baselines, which must be finite.
- Advantage functions refuse NaN as a reward. ${inputRow('rewards').hint}.
- 16-bit columns are widened exactly. Float64Array and numbers are rounded to float32 once; rewards are not rounded.
- 16-bit gradients are the float32 gradients, rounded to the nearest number, with ties to even.
- An exponential below the smallest normal float32 (e^−87.3) is 0.
- A factor of 0 (an advantage, a weight, a coefficient) times an exponential that overflowed is 0, in the loss and in the
  gradient. In float32 arithmetic, and so in the frameworks, this product is NaN. An exponential that is too small, and
  therefore 0, is such a factor too.
- Exponentials are float32, even those of a row, such as the exponential of a sum of log-ratios. So a metric that is a mean
  of ratios is Infinity if one of them exceeds 3.4·10³⁸.
- A token exactly on a threshold (a clip's bound, a ratio's range) may fall on either side, because the difference of two
  logprobs is rounded.

## What a loss is divided by

The loss of a batch is the sum of its tokens' losses, each divided by a number that depends on the framework whose function
it is and on the aggregation mode; in TRL, each loss has its own. The batch has B rows of at most T tokens and N unmasked
tokens, of which n are in the token's row. Rows without unmasked tokens count in B, but not in verl's numbers of rows. A
number that an option gives replaces the count. A batch without unmasked tokens has the loss 0, where verl has NaN.

${divisorTable()}

A function that has neither option nor row here says in its summary what it is divided by.

## How errors are measured

Errors are in units in the last place (ulp) of float32, a relative 6·10⁻⁸ to 1.2·10⁻⁷. The reference is a second
implementation in float64 that shares no code with the engine and derives gradients by automatic differentiation
(\`test/reference\`). Both get the same inputs, which float32 represents exactly. Each cell has the largest error of ${measurements.tokens} tokens
and the mean in brackets; tokens within rounding of a threshold are left out.

- **value**: the loss of a batch of one token (one pair for preference losses and losses of reward models, one own and one
  expert's token for mixed losses), or the advantage of a token. **gradient**: with respect to that token's logprob, entropy
  or value, or to the rewards of the pair. **sum**: the loss of 8192 tokens, in 32 rows.
- The unit is the result's last place or, if larger terms cancel in the result, the last place of the largest term. For a
  sum it is taken at the sum of absolute values, for p(1 − p) at p, for a clipped value at the bound of the clip times the
  error, and for a whitened advantage at the batch's largest.
- **near**: logprobs from −4 to 0, at most 1 apart, as in training. **wide**: logprobs from −25 to 0, independent of each
  other. There the difference d of two logprobs is itself rounded by up to half a unit in *its* last place, and
  exponentiation turns this into up to |d|/2 units of the ratio. No formula on the rounded difference can undo it.
- Values, and their differences from returns, have the standard deviation ${SIZES.near.values} (near) or ${SIZES.wide.values} (wide), and rewards ${SIZES.near.rewards} or ${SIZES.wide.rewards}.

No error exceeds, on any instruction set: near ${near.value} ulp of a value and ${near.grad} of a gradient, wide ${wide.value} and ${wide.grad}, and of
a sum ${near.sum} and ${wide.sum}. \`test/losses/numerics.test.ts\` checks this.

${SECTIONS.map(
  ([family, title, registry]) => `## ${title}

${rangeTable(registry)}

Measured errors in ulp, the largest (the mean):

${errorTable(family, measurements)}
`,
).join('\n')}
## Losses of logits

${rangeTable(LOGITS_LOSS_FN)}
`;
}
