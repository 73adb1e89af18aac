/**
 * Tests the float64 reference of user-defined losses. The texts that it writes must mean the same to JavaScript, and its
 * gradients must be the slopes of its losses.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { Tape } from '../reference/autograd.js';
import { Tokens } from '../reference/batch.js';
import { COLUMNS, type Expression, expressionFormula, textOf, tokenValues } from '../reference/expression.js';
import { centralDifference, evaluator } from '../reference/index.js';
import { batchSpec, makeBatch } from '../support/draw.js';
import { EXPRESSIONS, judge, OPTIONS } from '../support/expressions.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

/** The functions of expressions that JavaScript lacks. */
const FUNCTIONS = {
  sigmoid: (x: number) => 1 / (1 + Math.exp(-x)),
  logsigmoid: (x: number) => -Math.log1p(Math.exp(-x)),
  square: (x: number) => x * x,
  clip: (x: number, low: number, high: number) => Math.min(Math.max(x, low), high),
  sg: (x: number) => x,
};
const MATH = ['exp', 'expm1', 'log', 'log1p', 'sqrt', 'abs', 'sign', 'tanh', 'pow', 'min', 'max'] as const;

/** Lets JavaScript compute a text for one token. `names` holds the values of the text's names. */
function inJavaScript(text: string, names: Record<string, number>): number {
  const scope = { ...Object.fromEntries(MATH.map((name) => [name, Math[name]])), ...FUNCTIONS, ...names };
  return Number(new Function(...Object.keys(scope), `return ${text}`)(...Object.values(scope)));
}

/** Returns whether an expression has an operator whose result in JavaScript is one of its operands, and not 1 or 0. */
const hasLogic = (expression: Expression): boolean =>
  typeof expression === 'object' &&
  (expression[0] === '&&' || expression[0] === '||' || expression.some(hasLogic));

describe('reference of expressions', () => {
  it('writes texts that mean the same to JavaScript', () => {
    const spec = { seed: 5, rows: 2, columns: 4, values: 'moderate', mask: 'ones', packed: false } as const;
    const batch = makeBatch(spec);
    fc.assert(
      fc.property(
        EXPRESSIONS.token.filter((each) => !hasLogic(each)),
        (expression) => {
          const x = new Tokens(new Tape(), batch);
          const values = tokenValues(expression, x, OPTIONS).value;
          const text = textOf(expression);
          x.index.forEach((at, i) => {
            const columns = Object.entries(COLUMNS).map(([name, column]) => [name, batch[column]![at]!]);
            const token = Object.fromEntries(columns) as { lp: number; old: number };
            const d = token.lp - token.old;
            const expected = inJavaScript(text, { ...token, ...OPTIONS, d, r: Math.exp(d), n: 4, t: i % 4 });
            const bound = 1e-9 * Math.max(1, Math.abs(expected));
            assert.ok(
              Object.is(values[i], expected) || Math.abs(values[i]! - expected) <= bound,
              `${text} is ${values[i]}, in JavaScript ${expected}`,
            );
          });
        },
      ),
      { numRuns: 600, seed: SEED },
    );
  });

  for (const level of ['token', 'row', 'batch', 'pairs'] as const)
    it(`has gradients that are slopes: ${level} expressions`, () => {
      let compared = 0;
      fc.assert(
        fc.property(EXPRESSIONS[level], batchSpec, (expression, spec) => {
          const batch = makeBatch({
            ...spec,
            rows: Math.min(spec.rows, 3),
            columns: Math.min(spec.columns, 5),
          });
          const formula = expressionFormula(expression);
          if (!judge(formula, OPTIONS, batch)) return;
          const { grad, loss } = evaluator(formula, 'logprob')(OPTIONS, batch);
          for (const element of new Set([0, Math.min(1, grad.length - 1), grad.length - 1])) {
            const slope = (h: number) => centralDifference(formula, OPTIONS, batch, 'logprob', element, h);
            const [wide, narrow] = [slope(2e-5), slope(1e-5)];
            if (wide === undefined || narrow === undefined) continue;
            // Richardson's extrapolation removes the error of order h². The rest is the loss's rounding error.
            const expected = narrow + (narrow - wide) / 3;
            const bound = 1e-5 * Math.abs(expected) + Math.abs(narrow - wide) + 1e-9 * (1 + Math.abs(loss));
            assert.ok(
              Math.abs(grad[element]! - expected) <= bound,
              `${textOf(expression)}: ${grad[element]}, slope ${expected}`,
            );
            if (grad[element]) compared++;
          }
        }),
        { numRuns: 1000, seed: SEED },
      );
      assert.ok(compared > 200, `only ${compared} gradients were compared`);
    });
});
