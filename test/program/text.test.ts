/** Tests the parser of losses that are written as text: what it accepts, and where its errors point. */
import assert from 'node:assert/strict';
import { LossError, type LossErrorCode } from '../../lib/index.js';
import { Graph } from '../../lib/program/graph.js';
import { MAX_NESTING, MAX_OPERATORS, MAX_TEXT_LENGTH, parseExpression } from '../../lib/program/parse.js';

const OPTIONS = new Map([
  ['low', 0.2],
  ['high', 0.28],
]);

/** Asserts that two texts give the same node of one graph. */
function same(text: string, other: string): void {
  const graph = new Graph();
  const [a, b] = [text, other].map((source) => parseExpression('text', source, graph, OPTIONS));
  assert.equal(a, b, `${text} and ${other}`);
}

function errorOf(text: string, options = OPTIONS): LossError {
  try {
    parseExpression('here', text, new Graph(), options);
  } catch (error) {
    assert.ok(error instanceof LossError, String(error));
    return error;
  }
  return assert.fail(`accepted ${text}`);
}

describe('the text of a loss', () => {
  const SAME: Record<string, [string, string]> = {
    'multiplication before addition': ['A + d * n', 'A + (d * n)'],
    'subtraction from the left': ['A - d - n', '(A - d) - n'],
    'powers from the right': ['A ** d ** n', 'A ** (d ** n)'],
    'comparison before &&': ['A < d && d <= n', '(A < d) && (d <= n)'],
    '&& before ||': ['A || d && n', 'A || (d && n)'],
    'conditions last, from the right': ['A ? d : n ? lp : old', 'A ? d : (n ? lp : old)'],
    'signs before multiplication': ['-A * d', '(-A) * d'],
    'strict comparisons': ['A === d', 'A == d'],
    'strict inequality': ['A !== d', 'A != d'],
    'other ways to write a number': ['A * 5e-1', 'A * .5'],
    'line ends and spaces': [' A\n\t+ d ', 'A+d'],
    comments: ['A /* the advantage */ + d // the log-ratio', 'A+d'],
    'options as numbers': ['clip(r, 1 - low, 1 + high)', 'clip(r, 0.8, 1.28)'],
    'the log-ratio': ['d', 'lp - old'],
    'the ratio': ['r', 'exp(logprob - old_logprob)'],
    'short names': [
      'lp + old + ref + rollout + prox + teacher + A + H',
      'logprob + old_logprob + ref_logprob + rollout_logprob + prox_logprob + teacher_logprob + advantages + entropy',
    ],
    'several arguments of min': ['min(A, d, n)', 'min(min(A, d), n)'],
    'several arguments of max': ['max(A, d, n)', 'max(max(A, d), n)'],
    'pow and **': ['pow(A, d)', 'A ** d'],
    'a comma after the last argument': ['min(A, d,)', 'min(A, d)'],
  };
  for (const [what, texts] of Object.entries(SAME)) it(`reads ${what}`, () => same(...texts));

  it('reads as much as the limits allow', () => {
    const nested = `${'('.repeat(MAX_NESTING)}A${')'.repeat(MAX_NESTING)}`;
    same(nested, 'A');
    same(`A${'+0'.repeat(MAX_OPERATORS)}`, 'A');
    same('A'.padEnd(MAX_TEXT_LENGTH), 'A');
  });

  type Case = [
    text: string,
    position: number | undefined,
    code: LossErrorCode,
    received: string,
    hint?: RegExp,
  ];
  const ERRORS: Record<string, Case> = {
    'an unknown name': ['A*lpp', 2, 'ERR_UNKNOWN_NAME', "'lpp'", /^Did you mean 'lp'/],
    'an unknown option': ['1 - hihg', 4, 'ERR_UNKNOWN_NAME', "'hihg'", /^Did you mean 'high'/],
    'an unknown function': ['A*row_maen(r)', 2, 'ERR_UNKNOWN_NAME', "'row_maen'", /^Did you mean 'row_mean'/],
    'a column that is called': ['2*lp(1)', 2, 'ERR_UNKNOWN_NAME', "'lp'"],
    'a function without arguments': ['1+exp', 2, 'ERR_INVALID_OPTION', 'its name alone'],
    'too few arguments': ['A+clip(r, 1)', 2, 'ERR_INVALID_OPTION', '2'],
    'too many arguments': ['exp(r, 1)', 0, 'ERR_INVALID_OPTION', '2'],
    'one argument of max': ['max(A)', 0, 'ERR_INVALID_OPTION', '1'],
    'two expressions': ['A d', 2, 'ERR_INVALID_OPTION', "'d'"],
    'two expressions in lines': ['A\nd', 2, 'ERR_INVALID_OPTION', "'d'"],
    'a semicolon': ['A ;', 2, 'ERR_INVALID_OPTION', "';'"],
    nothing: [' ', 0, 'ERR_INVALID_OPTION', 'an empty text'],
    'an end that comes too early': ['A * ', 4, 'ERR_INVALID_OPTION', 'the end of the text'],
    'a parenthesis that is not closed': ['(A', 2, 'ERR_INVALID_OPTION', 'the end of the text'],
    'a power of a negative number': ['-A**2', 2, 'ERR_INVALID_OPTION', "'*'", /parentheses/],
    'a character outside the basic plane': ['A + 😀', 4, 'ERR_INVALID_OPTION', "'😀'"],
    'a hexadecimal number': ['A + 0x10', 4, 'ERR_INVALID_OPTION', "'0x10'"],
    'a number that is too large': ['A*1e999', 2, 'ERR_INVALID_OPTION', "'1e999'"],
    'a text': ['A+"x"', 2, 'ERR_INVALID_OPTION', `'"x"'`],
    'a property': ['1+A.x', 2, 'ERR_INVALID_OPTION', "'A.x'"],
    'an assignment': ['A = 1', 0, 'ERR_INVALID_OPTION', "'A = 1'"],
    'an operator that is not in the language': ['1 + A % 2', 4, 'ERR_INVALID_OPTION', "'A % 2'"],
    'a unary plus': ['2*+A', 2, 'ERR_INVALID_OPTION', "'+A'"],
    'a list of arguments that is spread': ['max(1, ...A)', 7, 'ERR_INVALID_OPTION', "'...A'"],
    'a function': ['x => x', 0, 'ERR_INVALID_OPTION', "'x => x'"],
    'a statement': ['if (A) d', 0, 'ERR_INVALID_OPTION', "'if (A) d'"],
    'the power of other languages': ['A^2', 1, 'ERR_INVALID_OPTION', "'A^2'", /Write a \*\* b/],
    'a power of parentheses': ['(A) ^ 2', 4, 'ERR_INVALID_OPTION', "'(A) ^ 2'", /Write a \*\* b/],
    "a function of JavaScript's Math": [
      '-A*Math.exp(d)',
      3,
      'ERR_INVALID_OPTION',
      "'Math.exp(d)'",
      /Write exp\(…\)/,
    ],
    'a function of torch': [
      'torch.clamp(r, 1, 2)',
      0,
      'ERR_INVALID_OPTION',
      "'torch.clamp(r, 1, 2)'",
      /Write clip\(/,
    ],
    'a function under another name': ['ln(r)', 0, 'ERR_UNKNOWN_NAME', "'ln'", /^Did you mean 'log'\?/],
    'a variable': ['let x = A; x*r', 0, 'ERR_INVALID_OPTION', "'let x = A;'", /no variables/],
    'a condition in words': ['A > 0 and d > 0', 6, 'ERR_INVALID_OPTION', "'a'", /Write a && b/],
    'a condition of Python': [
      'A if A > 0 else d',
      2,
      'ERR_INVALID_OPTION',
      "'i'",
      /Write condition \? a : b/,
    ],
    'a negation in words': ['not A', 4, 'ERR_INVALID_OPTION', "'A'", /Write !a/],
    'a bitwise and': ['(A > 0) & (d > 0)', 8, 'ERR_INVALID_OPTION', "'(A > 0) & (d > 0)'", /Write a && b/],
    'a long text': ['A'.padEnd(MAX_TEXT_LENGTH + 1), undefined, 'ERR_INVALID_OPTION', '16385'],
    'deep parentheses': ['('.repeat(MAX_NESTING + 1), MAX_NESTING, 'ERR_INVALID_OPTION', 'more'],
    'many operators': ['-'.repeat(MAX_OPERATORS + 1), MAX_OPERATORS, 'ERR_INVALID_OPTION', 'more'],
  };
  for (const [what, [text, position, code, received, hint]] of Object.entries(ERRORS))
    it(`points at ${what}`, () => {
      const error = errorOf(text);
      assert.deepEqual(
        [error.code, error.position, error.received],
        [code, position, received],
        error.message,
      );
      assert.match(error.message, /^(Did you mean '\w+'\? )?here: /);
      if (position !== undefined) {
        assert.match(error.message, new RegExp(` at character ${position + 1}(\\.|\n)`));
        const [shown, mark] = error.message.split('\n').slice(-2) as [string, string];
        assert.match(mark, /^ {2,}\^$/);
        assert.equal(
          shown[mark.length - 1] ?? '',
          text[position]?.replace(/[\ud800-\udfff]/, '\ud83d') ?? '',
        );
      }
      if (hint) assert.match(error.message, hint);
    });

  it('names the parameters of a function with the wrong number of arguments', () => {
    assert.match(errorOf('clip(r)').message, /expected 3 arguments \(x, low, high\) of clip, got 1/);
  });

  it('knows no properties of objects as names', () => {
    for (const name of ['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'valueOf'])
      for (const text of [name, `${name}(A)`]) assert.equal(errorOf(text).code, 'ERR_UNKNOWN_NAME', text);
  });

  it('refuses options with the names of columns and functions', () => {
    for (const name of ['lp', 'advantages', 'r', 'n', 'exp', 'row_mean']) {
      const error = errorOf('A', new Map([[name, 1]]));
      assert.deepEqual([error.code, error.option], ['ERR_INVALID_OPTION', name]);
    }
  });

  it('refuses texts that would exhaust the stack', () => {
    for (const piece of ['!', '- ', 'A**', 'A?1:', 'A+', 'A&&', 'exp('])
      assert.equal(errorOf(piece.repeat(16_000 / piece.length)).code, 'ERR_INVALID_OPTION');
  });
});
