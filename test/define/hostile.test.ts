/**
 * Tests that hostile texts and options get an error that says where it is. The texts are so long that a test would not
 * end if the work grew faster than their length. The words of the messages are tested with the parser.
 */
import assert from 'node:assert/strict';
import { defineLoss, LossError, type LossErrorCode, lossFromExpression } from '../../lib/index.js';
import { isLossError } from '../support/loss-error.js';

function assertShort(error: unknown): LossError {
  assert.ok(error instanceof LossError, String((error as Error).stack));
  assert.ok(error.message.length < 2000, `a message of ${error.message.length} characters`);
  return error;
}

/** Asserts that a text gets an error, and returns it. */
function refused(text: unknown, options: object = {}): LossError {
  try {
    lossFromExpression(text as string, options);
  } catch (error) {
    return assertShort(error);
  }
  return assert.fail(`accepted ${String(text).slice(0, 100)}`);
}

/** Asserts that a text is either accepted or gets an error. */
function survives(text: string): void {
  try {
    lossFromExpression(text);
  } catch (error) {
    assertShort(error);
  }
}

describe('hostile expressions', () => {
  const LARGE: Record<string, string> = {
    '10 MB of names': 'A+'.repeat(5_000_000),
    '10 MB of one name': 'x'.repeat(10_000_000),
    '10 MB of one number': '1'.repeat(10_000_000),
    '10 MB of spaces': ' '.repeat(10_000_000),
    '100,000 parentheses': '('.repeat(100_000),
    '100,000 pairs of parentheses': `${'('.repeat(100_000)}A${')'.repeat(100_000)}`,
    '100,000 calls': `${'exp('.repeat(100_000)}A${')'.repeat(100_000)}`,
    '100,000 brackets': '['.repeat(100_000),
    '100,000 braces': '{'.repeat(100_000),
    '100,000 templates': '`${'.repeat(100_000),
  };
  for (const [what, text] of Object.entries(LARGE)) it(what, () => void refused(text));

  // These texts are short enough to be read, but nested deeply or repetitive.
  const DEEP: Record<string, string> = {
    'many negations': `${'!'.repeat(16_000)}A`,
    'many signs': `${'- '.repeat(8000)}A`,
    'a long sum': `${'A+'.repeat(8000)}A`,
    'a long tower of powers': `${'A**'.repeat(5000)}A`,
    'a long chain of conditions': `${'A ? 1 : '.repeat(2000)}A`,
    'conditions in conditions': `${'A ? '.repeat(2000)}1${' : 2'.repeat(2000)}`,
    'many conjunctions': `${'A&&'.repeat(5000)}A`,
    'one call with many arguments': `min(${'A,'.repeat(8000)}A)`,
    'many different terms': Array.from({ length: 1500 }, (_, i) => `exp(lp*${i})`).join('+'),
    'nested reductions': `${'row_sum(lp*'.repeat(150)}A${')'.repeat(150)}`,
    'nested batch reductions': `${'batch_sum(lp*'.repeat(150)}A${')'.repeat(150)}`,
    'many reductions': Array.from({ length: 500 }, (_, i) => `row_sum(exp(lp*${i}))`).join('*'),
    'nested products': `${'(lp*'.repeat(190)}A${'+lp)'.repeat(190)}`,
    'squares of squares': `${'square('.repeat(190)}lp${')'.repeat(190)}`,
    'towers of powers': `${'(A+'.repeat(190)}lp${')**2'.repeat(190)}`,
    'a power with a huge exponent': 'lp**1000000000',
    'a power with a huge negative exponent': 'lp**-1e300',
    'many arrows': `${'a=>'.repeat(5000)}1`,
    'a long name': 'x'.repeat(16_000),
    'a long function': `${'x'.repeat(16_000)}(A)`,
    'many constructors': `${'new '.repeat(4000)}A`,
    'many properties': `A${'.a'.repeat(8000)}`,
    'many calls of a call': `A${'()'.repeat(8000)}`,
  };
  for (const [what, text] of Object.entries(DEEP)) it(what, () => survives(text));

  it('errors at the ends of lines', () => {
    for (const text of ['\n', '\n\n', '\nA+', 'A\n;', '\n?\n', '\r\n('])
      assert.notEqual(refused(text).position, undefined, JSON.stringify(text));
  });

  it('properties that all objects have', () => {
    for (const name of ['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'valueOf', 'prototype'])
      for (const text of [name, `${name}(1)`, `A.${name}`, `A[${name}]`, `1 + ${name}`]) refused(text);
  });

  it('JavaScript that is not part of the language', () => {
    for (const text of [
      ...['process.exit(1)', 'globalThis', 'this', 'import("fs")', 'import.meta', 'eval("1")', 'new Map()'],
      ...['A = 1', 'A += 1', 'A++', '--A', '() => 1', 'function () {}', 'class {}', 'await 1', 'yield'],
      ...['A; A', 'A, A', '{}', '[]', '[A]', '{A}', '"A"', '`A`', '/A/', 'true', 'null', 'undefined', 'NaN'],
      ...['Infinity', 'A.length', 'A[0]', 'A?.b', 'A ?? 1', 'A % 2', 'A | 1', 'A & 1', 'A ^ 1', 'A << 1'],
      ...['~A', '+A', 'typeof A', 'void A', 'delete A', 'A in A', 'A instanceof A', 'max(...A)', '1n', '1_0'],
      ...[
        '0x1',
        '0b1',
        '01',
        '1e999',
        '(A',
        'A)',
        ')',
        '',
        ' ',
        '\0',
        '\u{1f600}',
        'Α',
        'A;',
        'let A',
        'a: A',
      ],
      ...[
        '-A**2',
        '//',
        '/*',
        '#A',
        '@A',
        'A B',
        '1A',
        '..1',
        '1..',
        'A -',
        '* A',
        'min()',
        'min(A)',
        'exp()',
      ],
      ...['exp(A, A)', 'clip(A)', 'sg', 'exp', 'lp()', 'A(1)', 'exp(A,)(1)', 'super', 'new.target'],
    ])
      refused(text);
  });

  it('values that are not texts', () => {
    for (const text of [undefined, null, 1, Number.NaN, true, {}, [], ['A'], () => 'A', Symbol('A'), 1n])
      refused(text);
    refused({ toString: () => 'A' });
    refused(Object('A'));
  });

  it('options that are not named numbers', () => {
    for (const value of [Number.NaN, Number.POSITIVE_INFINITY, '1', null, true, {}, 1n, Symbol('x')])
      refused('A*x', { options: { x: value } });
    for (const name of ['lp', 'A', 'exp', 'row_sum', 'a b', '1a', '', '__proto__', 'a-b'])
      refused('A', { options: Object.fromEntries([[name, 1]]) });
    for (const options of ['x', [1]]) refused('A', { options });
    refused('A*x', { options: JSON.parse('{"__proto__": {"x": 1}}') });
    refused('A*x', { options: Object.create({ x: 1 }) });
  });

  it('other arguments that are wrong', () => {
    for (const more of [
      { lossAggMode: 'sum' },
      { lossAggMode: 1 },
      { backend: 'none' },
      { metrics: ['A'] },
      { metrics: { first: 1 } },
      { metrics: { first: 'A +' } },
      { metrics: Object.fromEntries(Array.from({ length: 9 }, (_, i) => [`m${i}`, 'A'])) },
      { name: 1 },
      { unknown: 1 },
    ])
      refused('A', more);
    assert.throws(() => lossFromExpression('A', 1 as unknown as object), isLossError('ERR_INVALID_OPTION'));
  });

  it('point at the place of the error', () => {
    const places: [text: string, position: number, code: LossErrorCode][] = [
      ['A + B', 4, 'ERR_UNKNOWN_NAME'],
      ['A*expp(lp)', 2, 'ERR_UNKNOWN_NAME'],
      ['clip(r, 1)', 0, 'ERR_INVALID_OPTION'],
      ['1 + (2 * "x")', 9, 'ERR_INVALID_OPTION'],
      ['A +', 3, 'ERR_INVALID_OPTION'],
      ['A $ 1', 2, 'ERR_INVALID_OPTION'],
      ['A +\n  foo', 6, 'ERR_UNKNOWN_NAME'],
    ];
    for (const [text, position, code] of places) {
      const error = refused(text);
      assert.deepEqual([error.code, error.position], [code, position], `${text}: ${error.message}`);
    }
  });

  it('a column that the batch lacks', () => {
    const batch = { shape: [1, 1] as const, logprob: Float32Array.of(-1), actionMask: Uint8Array.of(1) };
    for (const [text, key] of [
      ['A', /advantages/],
      ['r', /old_?logprob/i],
      ['H', /entropy/],
      ['rollout', /rollout_?logprob/i],
      ['prox', /prox_?logprob/i],
      ['teacher', /teacher_?logprob/i],
      ['ref', /ref_?logprob/i],
    ] as const) {
      const fn = lossFromExpression(text);
      assert.throws(() => fn.computeSync(batch), isLossError('ERR_MISSING_INPUT', key), text);
    }
    assert.ok(Math.abs(lossFromExpression('2').computeSync(batch).loss - 2) < 1e-6);
  });

  it('functions of defineLoss() that return or throw anything', () => {
    const declared = (loss: unknown) => () =>
      new (defineLoss('hostile', { options: {}, loss } as never) as unknown as new () => unknown)();
    for (const loss of [
      undefined,
      1,
      () => undefined,
      () => 'A',
      () => Number.NaN,
      () => ({}),
      () => Promise.resolve(1),
      () => {
        throw new Error('of the caller');
      },
      () => {
        throw undefined;
      },
    ])
      assert.throws(declared(loss), (error: unknown) => error instanceof LossError);
  });
});
