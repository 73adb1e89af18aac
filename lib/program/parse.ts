// Reads the text of an expression. Acorn parses the text as JavaScript, and this file accepts the part of JavaScript
// that describes a loss. The text is never executed.
import { type AnyNode, type Expression, type Program, parse } from 'acorn';
import { brief, describeValue, LossError, type LossErrorDetails, unknownName } from '../base/errors.js';
import type { Graph } from './graph.js';
import { type BinaryOp, isBelow, type Node } from './node.js';
import { describeArguments, describeLevel, FUNCTIONS, takesArguments, VALUES } from './symbols.js';

/** The length of the longest text that is read, in characters. */
export const MAX_TEXT_LENGTH = 16_384;
/** The largest number of characters in a text that are operators, commas or parentheses. */
export const MAX_OPERATORS = 2000;
/** How deeply parentheses may be nested in a text. */
export const MAX_NESTING = 200;

const OPERATORS: ReadonlyMap<string, BinaryOp> = new Map([
  ['+', 'add'],
  ['-', 'sub'],
  ['*', 'mul'],
  ['/', 'div'],
  ['**', 'pow'],
  ['<', 'lt'],
  ['<=', 'le'],
  ['>', 'gt'],
  ['>=', 'ge'],
  ['==', 'eq'],
  ['===', 'eq'],
  ['!=', 'ne'],
  ['!==', 'ne'],
  ['&&', 'and'],
  ['||', 'or'],
]);

const NO_VARIABLES = 'An expression has no variables: write each value where it is used';

// What to write instead of words and operators of other languages, and of JavaScript outside of this language.
const WORDS: ReadonlyMap<string, string> = new Map([
  ['and', 'Write a && b'],
  ['or', 'Write a || b'],
  ['not', 'Write !a'],
  ['if', 'Write condition ? a : b'],
  ['else', 'Write condition ? a : b'],
  ['let', NO_VARIABLES],
  ['const', NO_VARIABLES],
  ['return', 'Write the expression alone'],
]);
const BITWISE: ReadonlyMap<string, string> = new Map([
  ['^', 'Write a ** b for a power'],
  ['&', 'Write a && b'],
  ['|', 'Write a || b'],
]);
const SYNONYMS: ReadonlyMap<string, string> = new Map([
  ['ln', 'log'],
  ['clamp', 'clip'],
  ['detach', 'sg'],
  ['stop_gradient', 'sg'],
  ['minimum', 'min'],
  ['maximum', 'max'],
]);

const DECIMAL = /^(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/**
 * Reads a text and adds its expression to a graph.
 * @param at what the text is, for error messages.
 * @param options the named numbers that the text may use.
 * @returns the node of the expression.
 * @throws LossError `ERR_UNKNOWN_NAME` for an unknown name, `ERR_INVALID_OPTION` for any other error. If the error has a
 * place in the text, `position` is the index of its first character.
 */
export function parseExpression(
  at: string,
  text: string,
  graph: Graph,
  options: ReadonlyMap<string, number>,
): Node {
  return new TextReader(at, text, graph, options).read();
}

/** Reads one text. */
class TextReader {
  readonly #at: string;
  readonly #text: string;
  readonly #graph: Graph;
  readonly #options: ReadonlyMap<string, number>;

  constructor(at: string, text: string, graph: Graph, options: ReadonlyMap<string, number>) {
    this.#at = at;
    this.#text = text;
    this.#graph = graph;
    this.#options = options;
  }

  read(): Node {
    this.#checkOptions();
    this.#checkLength();
    this.#checkOperators();
    const [statement, second] = this.#parse().body;
    if (!statement) throw this.#error(0, { expected: 'an expression', received: 'an empty text' });
    if (statement.type !== 'ExpressionStatement') throw this.#unsupported(statement);
    if (second) throw this.#unsupported(second);
    const end = this.#text.slice(statement.expression.end, statement.end).indexOf(';');
    if (end >= 0)
      throw this.#error(statement.expression.end + end, { expected: 'a single expression', received: "';'" });
    return this.#node(statement.expression);
  }

  #checkOptions(): void {
    for (const option of this.#options.keys())
      if (VALUES.has(option) || FUNCTIONS.has(option))
        throw new LossError('ERR_INVALID_OPTION', {
          at: this.#at,
          option,
          expected: 'a name that no column and no function of the language has',
          received: `the name of ${VALUES.has(option) ? 'a column' : 'a function'}`,
        });
  }

  #checkLength(): void {
    if (this.#text.length > MAX_TEXT_LENGTH)
      throw new LossError('ERR_INVALID_OPTION', {
        at: this.#at,
        expected: `a text of at most ${MAX_TEXT_LENGTH} characters`,
        received: String(this.#text.length),
      });
  }

  #parse(): Program {
    try {
      return parse(this.#text, { ecmaVersion: 2022, sourceType: 'module' });
    } catch (error) {
      const { pos } = error as { pos?: number };
      if (!(error instanceof SyntaxError) || pos === undefined) throw error;
      throw this.#error(pos, {
        expected: 'a valid expression',
        received: this.#characterAt(pos),
        hint: this.#hintAt(pos),
      });
    }
  }

  // Acorn and #node() call themselves for each operator and parenthesis, so their number is limited before.
  #checkOperators(): void {
    let [operators, depth] = [0, 0];
    for (let i = 0; i < this.#text.length; i++) {
      const character = this.#text[i]!;
      if ('([{'.includes(character)) depth++;
      else if (')]}'.includes(character)) depth--;
      if ('+-*/!<>=&|?,('.includes(character)) operators++;
      if (depth > MAX_NESTING)
        throw this.#error(i, { expected: `at most ${MAX_NESTING} nested parentheses`, received: 'more' });
      if (operators > MAX_OPERATORS)
        throw this.#error(i, {
          expected: `at most ${MAX_OPERATORS} operators, commas and parentheses`,
          received: 'more',
        });
    }
  }

  // Returns what to write instead of the word at a position, or before it, if people know that word from elsewhere.
  #hintAt(position: number): string | undefined {
    if (this.#text.startsWith('**', position)) return 'Put parentheses around -a or a ** b in -a ** b';
    const before = /([A-Za-z]+)[\s(]*$/.exec(this.#text.slice(Math.max(0, position - 40), position))?.[1];
    const at = /^[A-Za-z]+/.exec(this.#text.slice(position, position + 40))?.[0];
    return [at, before].map((word) => WORDS.get(word ?? '')).find((hint) => hint !== undefined);
  }

  #node(node: Expression): Node {
    const graph = this.#graph;
    switch (node.type) {
      case 'Literal':
        return graph.constant(this.#number(node));
      case 'Identifier':
        return this.#value(node.name, node.start);
      case 'UnaryExpression':
        if (node.operator === '-') return graph.unary('neg', this.#node(node.argument));
        if (node.operator === '!') return graph.unary('not', this.#node(node.argument));
        break;
      case 'BinaryExpression':
      case 'LogicalExpression': {
        const op = OPERATORS.get(node.operator);
        if (op === undefined || node.left.type === 'PrivateIdentifier') break;
        const left = this.#node(node.left);
        return graph.binary(op, left, this.#node(node.right));
      }
      case 'ConditionalExpression': {
        const condition = this.#node(node.test);
        const ifTrue = this.#node(node.consequent);
        return graph.select(condition, ifTrue, this.#node(node.alternate));
      }
      case 'CallExpression':
        if (node.callee.type === 'Identifier' && !node.optional)
          return this.#call(node.callee.name, node.start, node.arguments);
    }
    throw this.#unsupported(node);
  }

  #number(node: Expression & { type: 'Literal' }): number {
    const { value, raw } = node;
    if (typeof value !== 'number' || !DECIMAL.test(raw ?? '')) throw this.#unsupported(node);
    if (!Number.isFinite(value))
      throw this.#error(node.start, { expected: 'a finite number', received: describeValue(raw) });
    return value;
  }

  #value(name: string, position: number): Node {
    const option = this.#options.get(name);
    if (option !== undefined) return this.#graph.constant(option);
    const build = VALUES.get(name);
    if (build) return build(this.#graph);
    const fn = FUNCTIONS.get(name);
    if (fn)
      throw this.#error(position, {
        expected: `${describeArguments(fn)} after the function ${name}`,
        received: 'its name alone',
      });
    throw this.#unknown('name', name, position, [...VALUES.keys(), ...this.#options.keys()]).with({
      hint: `A number of this name belongs in options: { ${brief(name)}: … }`,
    });
  }

  #call(name: string, position: number, args: readonly AnyNode[]): Node {
    const fn = FUNCTIONS.get(name);
    if (!fn) throw this.#unknown('function', name, position, [...FUNCTIONS.keys()]);
    if (!takesArguments(fn, args.length))
      throw this.#error(position, {
        expected: `${describeArguments(fn)} of ${name}`,
        received: String(args.length),
      });
    const nodes = args.map((arg) => this.#node(arg as Expression));
    for (const [i, node] of nodes.entries()) {
      const most = fn.levels?.[i] ?? 'token';
      if (isBelow(most, node.level))
        throw this.#error(args[i]!.start, { at: `${this.#at}: ${name}`, ...describeLevel(node, most) });
    }
    return fn.build(this.#graph, nodes);
  }

  #unknown(what: string, name: string, position: number, known: readonly string[]): LossError {
    const synonym = SYNONYMS.get(name);
    return unknownName('ERR_UNKNOWN_NAME', what, name, known).with({
      at: `${this.#at}: unknown ${what}`,
      position,
      text: this.#text,
      ...(synonym && { suggestion: `Did you mean '${synonym}'?`, expected: undefined }),
    });
  }

  #unsupported(node: AnyNode): LossError {
    const { start, end } = node;
    return this.#error(start, {
      expected: 'numbers, names, operators (+ - * / ** ! < <= > >= == != && || ?:) and calls of functions',
      received: describeValue(this.#text.slice(start, end)),
      ...this.#adviceOn(node),
    });
  }

  // Returns the place of what the language lacks, and what to write instead.
  #adviceOn(node: AnyNode): Pick<LossErrorDetails, 'position' | 'hint'> {
    switch (node.type) {
      case 'BinaryExpression': {
        const hint = BITWISE.get(node.operator);
        return hint ? { position: this.#text.indexOf(node.operator, node.left.end), hint } : {};
      }
      case 'CallExpression':
        return node.callee.type === 'Super' ? {} : this.#adviceOn(node.callee);
      case 'MemberExpression': {
        const name = node.property.type === 'Identifier' ? node.property.name : '';
        const known = FUNCTIONS.has(name) ? name : SYNONYMS.get(name);
        return known === undefined ? {} : { hint: `Write ${known}(…), without an object before it` };
      }
      case 'VariableDeclaration':
      case 'AssignmentExpression':
        return { hint: NO_VARIABLES };
      case 'IfStatement':
        return { hint: WORDS.get('if') };
      default:
        return {};
    }
  }

  #characterAt(position: number): string {
    const code = this.#text.codePointAt(position);
    return code === undefined ? 'the end of the text' : describeValue(String.fromCodePoint(code));
  }

  #error(position: number, details: LossErrorDetails): LossError {
    return new LossError('ERR_INVALID_OPTION', { at: this.#at, position, text: this.#text, ...details });
  }
}
