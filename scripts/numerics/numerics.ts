// Writes docs/numerics.md: of every function the range of inputs that it is made for, what it does with others, and how
// far its float32 is from float64, measured on this machine. The same inputs each time; what comes out differs by a digit
// between instruction sets.
//
//   npm run numerics [-- --tokens 10000]
import { mkdirSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { BOUNDS, type Errors, everyFunction, type Measurable, RANGES } from './measure.js';
import { WORDS } from './ranges.js';

const { values: flags } = parseArgs({ options: { tokens: { type: 'string', default: '10000' } } });
const tokens = Number(flags.tokens);
const measured = [...everyFunction()].map((of) => ({ ...of, ranges: of.measure(tokens) }));

const show = (errors: Errors | undefined) =>
  errors ? `${errors.most.toFixed(2)} (${errors.mean.toFixed(2)})` : '';

function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`;
  return [line(heads), line(heads.map(() => '---')), ...rows.map(line)].join('\n');
}

const nameOf = ({ name, args }: Measurable) => {
  const given = Object.entries(args).map(([key, value]) => `${key}=${value}`);
  return `\`${name}\`${given.length > 0 ? ` ${given.join(', ')}` : ''}`;
};

function errorsOf(family: Measurable['family']): string {
  const rows = measured.filter((of) => of.family === family);
  const columns = family === 'advantage' ? (['value'] as const) : (['value', 'grad', 'sum'] as const);
  const names = { value: family === 'advantage' ? 'advantage' : 'value', grad: 'gradient', sum: 'sum' };
  return table(
    ['function', ...RANGES.flatMap((range) => columns.map((column) => `${range}: ${names[column]}`))],
    rows.map((of) => [
      nameOf(of),
      ...RANGES.flatMap((range) => columns.map((column) => show(of.ranges[range][column]))),
    ]),
  );
}

function rangesOf(family: Measurable['family']): string {
  const names = [...new Set(measured.filter((of) => of.family === family).map(({ name }) => name))];
  return table(
    ['function', 'made for', 'outside'],
    names.map((name) => {
      const { range, outside } = WORDS[`${family} ${name}`]!;
      return [`\`${name}\``, range, outside];
    }),
  );
}

const SECTIONS: [family: Measurable['family'], title: string][] = [
  ['policy', 'Policy losses'],
  ['kl', 'KL estimators'],
  ['entropy', 'Entropy losses'],
  ['advantage', 'Advantage functions'],
];

const text = `# Numbers

Written by \`npm run numerics\`; do not edit. Tokens are computed in float32, whatever type their columns have, and summed in
float64 above the few tokens that a loop takes at once; losses and metrics are float64, gradients float32.

## Everywhere

- Under the mask nothing is read: NaN and Infinity there change nothing, and the gradient is exactly 0.
- Unmasked NaN gives NaN. Unmasked Infinity, and what overflows beyond 3.4·10³⁸, goes on as float32 arithmetic has it, to
  ±Infinity or NaN; it is no error, but for rewards, values and baselines, which must be finite.
- 16-bit columns are widened exactly; Float64Array and numbers are rounded to float32 once, rewards not at all.
- Where an exponential is below the smallest normal float32 (e^−87.3), it is 0.
- Exactly on a threshold (a clip's bound, a ratio's range) a token may come out on either side, as the difference of two
  logprobs is rounded.

## How errors are measured

In units in the last place (ulp) of float32, a relative 6·10⁻⁸ to 1.2·10⁻⁷, against a second implementation in float64
that shares no code with the engine and derives its gradients by automatic differentiation (\`test/reference\`). Both are
given the same numbers, which float32 can hold. The largest of ${tokens} tokens' errors stands first, their mean in brackets;
tokens within rounding of a threshold are left out.

- **value**: the loss of a batch of a single token (of a pair for dpo, of a usual and an expert's token for mix), or the
  advantage of a token. **gradient**: by that token's logprob, or entropy. **sum**: the loss of 8192 tokens.
- A unit is of the result, or where larger terms cancel in it, of the largest of these: a sum's error is in units of the
  sum of its terms' absolute values, that of p(1 − p) in units of p, and a whitened advantage's in units of the batch's
  largest.
- **near**: logprobs from −4 to 0, at most 1 apart; what training has. **wide**: logprobs from −25 to 0, independent of each
  other. There a difference d of two logprobs is itself rounded by up to half a unit in *its* last place, which
  exponentiation turns into up to |d|/2 units of the ratio. That is a property of float32 inputs' difference, and no
  formula on it can take it back.

No error exceeds, on any instruction set: near ${BOUNDS.near.value} ulp of a value and ${BOUNDS.near.grad} of a gradient, wide ${BOUNDS.wide.value} and ${BOUNDS.wide.grad}, and of
a sum ${BOUNDS.near.sum} and ${BOUNDS.wide.sum}. \`test/numerics.test.ts\` holds that.

${SECTIONS.map(
  ([family, title]) => `## ${title}

${rangesOf(family)}

Measured errors in ulp, the largest (the mean):

${errorsOf(family)}
`,
).join('\n')}`;

const folder = new URL('../../docs/', import.meta.url);
mkdirSync(folder, { recursive: true });
writeFileSync(new URL('numerics.md', folder), text);
console.log(`docs/numerics.md: ${measured.length} rows, ${tokens} tokens each`);
