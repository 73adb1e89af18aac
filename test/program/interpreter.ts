// Runs encoded programs in float64, and checks every rule of native/program/program.h on the way.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { NativeProgram } from '../../binding.js';
import { compute, isArithmetic } from '../../lib/program/arithmetic.js';
import { drawn } from '../support/drawn.js';

const HEADER = readFileSync(new URL('../../native/program/program.h', import.meta.url), 'utf8');
const OPERATIONS = [...HEADER.matchAll(/X\((\w+), (\d)\)/g)].map(([, name, operands]) => ({
  name: name!,
  operands: Number(operands),
}));

export interface Row {
  /** The columns in native order, one number per token. */
  readonly columns: readonly (readonly number[])[];
  /** The numbers of the row in the order of ROW_COLUMNS. */
  readonly numbers: readonly number[];
  readonly mask: readonly boolean[];
  readonly weight: number;
  readonly repeats: number;
  /** Rows with equal numbers form a group. */
  readonly group: number;
}

/**
 * The outputs of a program for each row, and for each unmasked token of a row. The list of a skipped row is empty.
 */
export interface Outputs {
  readonly loss: number[][];
  readonly grad: number[][];
  readonly gradEntropy: number[][];
  readonly gradLogZ: (number | undefined)[];
  readonly metrics: number[][][];
  readonly rowLoss: (number | undefined)[];
  /** For each metric of tokens or rows, its values for the rows if it is one of rows. */
  readonly rowMetrics: (number | undefined)[][];
  readonly batchMetrics: number[];
}

export interface Instruction {
  readonly op: string;
  readonly out: number;
  readonly operands: readonly { readonly kind: number; readonly index: number }[];
}

export function decode({ code }: NativeProgram): Instruction[] {
  return Array.from({ length: code.length / 6 }, (_, i) => {
    const [op, out, ...operands] = code.subarray(6 * i, 6 * i + 6);
    const { name, operands: count } = OPERATIONS[op!]!;
    for (const unused of operands.slice(count)) assert.equal(unused, 0);
    return {
      op: name,
      out: out!,
      operands: operands.slice(0, count).map((x) => ({ kind: x >> 16, index: x & 0xffff })),
    };
  });
}

/** Returns the kinds of a program's segments, in order. */
export function segmentKinds(program: NativeProgram): string[] {
  return decode(program)
    .map(({ op }) => op)
    .filter((op) => ['tokens', 'row', 'batch'].includes(op));
}

const [REGISTER, COLUMN, CONSTANT, ROW_VALUE, BATCH_VALUE, ROW_INPUT, BATCH_INPUT, ROW_COLUMN, SCANNED] = [
  0, 1, 2, 3, 4, 5, 6, 7, 8,
];
const MAX_SCANNED = 16;

export function interpret(program: NativeProgram, rows: readonly Row[]): Outputs {
  checkLimits(program);
  return new Interpreter(program, rows).run();
}

function checkLimits(program: NativeProgram): void {
  assert.ok(program.code.length / 6 <= 4096 && program.registers <= 32);
  for (const size of [program.constants.length, program.rowValues, program.batchValues])
    assert.ok(size <= 256);
}

class Interpreter {
  readonly #program: NativeProgram;
  readonly #rows: readonly Row[];
  readonly #counted: readonly number[];
  readonly #rowValues: (number | undefined)[][];
  readonly #batchValues: (number | undefined)[] = [];
  /** For each row and each number of scanned values, the values of the row's tokens. */
  readonly #scanned: (number[] | undefined)[][];
  readonly #batchInputs: readonly number[];
  // The values that the tokens of each row keep, by the number of the row value.
  readonly #kept: number[][][];
  readonly #outputs: Outputs;
  #hasOutputs = false;

  constructor(program: NativeProgram, rows: readonly Row[]) {
    this.#program = program;
    this.#rows = rows;
    this.#rowValues = rows.map(() => []);
    this.#scanned = rows.map(() => []);
    this.#counted = rows.flatMap((row, b) =>
      row.repeats > 0 && (program.allRows || row.mask.some(Boolean)) ? [b] : [],
    );
    this.#batchInputs = sizesOf(rows);
    this.#kept = rows.map(() => []);
    const empty = () => rows.map((): number[] => []);
    this.#outputs = {
      loss: empty(),
      grad: empty(),
      gradEntropy: empty(),
      gradLogZ: rows.map(() => undefined),
      metrics: Array.from({ length: program.metrics }, empty),
      rowLoss: rows.map(() => undefined),
      rowMetrics: Array.from({ length: program.metrics }, () => rows.map(() => undefined)),
      batchMetrics: [],
    };
  }

  run(): Outputs {
    const pendingBatch: (() => void)[] = [];
    const segments = inSegments(decode(this.#program));
    for (const [i, [header, ...instructions]] of segments.entries()) {
      const reducing = instructions.filter(({ op }) =>
        [isReduction(op), isScan(op), isOfGroups(op), op === 'row_gather', SELECTIONS.includes(op)].includes(
          true,
        ),
      );
      assert.ok(reducing.length <= 16);
      if (header!.op === 'tokens') this.#runTokens(instructions);
      else if (header!.op === 'row') pendingBatch.push(...this.#runRows(instructions));
      else {
        assert.ok(!this.#hasOutputs || i === segments.length - 1, 'a segment follows the last one');
        for (const write of pendingBatch.splice(0)) write();
        this.#runBatch(instructions);
      }
    }
    assert.ok(this.#hasOutputs);
    assert.equal(
      this.#outputs.batchMetrics.filter((x) => x !== undefined).length,
      this.#program.batchMetrics,
    );
    return this.#outputs;
  }

  #runBatch(instructions: readonly Instruction[]): void {
    for (const { op, out, operands } of instructions) {
      const numbers = operands.map((x) => this.#read(x, undefined, undefined));
      if (op !== 'batch_metric') this.#writeBatch(out, arithmetic(op, numbers));
      else {
        assert.ok(this.#hasOutputs);
        this.#outputs.batchMetrics[out] = numbers[0]!;
      }
    }
  }

  #runTokens(instructions: readonly Instruction[]): void {
    if (instructions.some(({ op }) => op === 'loss')) {
      assert.ok(!this.#hasOutputs, 'two segments have outputs');
      this.#hasOutputs = true;
    } else assert.ok(instructions.every(({ op }) => !(op in OUTPUTS)));
    for (const b of this.#counted) {
      const row = this.#rows[b]!;
      const positions = row.mask.flatMap((isUnmasked, t) => (isUnmasked ? [t] : []));
      const registers: (number[] | undefined)[] = [];
      const written: (() => void)[] = [];
      for (const { op, out, operands } of instructions) {
        const values = operands.map(({ kind, index }) =>
          positions.map((t, i) => {
            if (kind === REGISTER) return defined(registers[index])[i]!;
            return this.#read({ kind, index }, b, t);
          }),
        );
        const x = values[0]!;
        if (op === 'row_gather') {
          assert.ok(out < 4);
          this.#kept[b]![out] = x.map(Math.fround);
          written.push(() => this.#writeRow(b, out, x.length));
        } else if (isReduction(op)) {
          const value = reduced(op.replace(/^row_|_single$/g, ''), x, positions);
          written.push(() => this.#writeRow(b, out, value));
        } else if (isScan(op)) {
          const results = scanned(op, spread(x, positions, row.mask.length), row.mask, values[1]?.[0]);
          written.push(() => this.#writeScanned(b, out, results));
        } else if (op in OUTPUTS) {
          const numbers = x.map((y, i) => y * values[1]![i]!);
          OUTPUTS[op]!(this.#outputs, out)[b]!.push(...numbers);
        } else {
          assert.ok(out < this.#program.registers);
          const isOfToken = operands.some(({ kind }) => [REGISTER, COLUMN, SCANNED].includes(kind));
          const ofPosition = POSITION_OPS[op];
          assert.ok(isOfToken !== (ofPosition !== undefined), `${op} belongs into another segment`);
          registers[out] = positions.map((t, i) => {
            if (ofPosition) return ofPosition(x[i]!, b, t);
            return arithmetic(
              op,
              values.map((value) => value[i]!),
            );
          });
        }
      }
      for (const write of written) write();
    }
  }

  // Returns functions that write the results of the reductions over rows and over groups.
  #runRows(instructions: readonly Instruction[]): (() => void)[] {
    const reductions: (() => void)[] = [];
    for (const { op, out, operands } of instructions) {
      const values = this.#counted.map((b) => operands.map((x) => this.#read(x, b, undefined)));
      if (SELECTIONS.includes(op)) {
        const value = this.#selectOfRows(op, operands[0]!.index, values[0]?.[1] ?? 0);
        reductions.push(() => this.#writeBatch(out, value));
        continue;
      }
      if (isReduction(op)) {
        const numbers = values.map(([x]) => x!);
        reductions.push(() => this.#writeBatch(out, reduced(op.slice(5), numbers, this.#counted)));
        continue;
      }
      if (isOfGroups(op)) {
        const groups = this.#counted.map((b) => (op === 'pair_sum' ? b >> 1 : this.#rows[b]!.group));
        this.#counted.forEach((b, i) => {
          const numbers = values.flatMap(([x], j) => (groups[j] === groups[i] ? [x!] : []));
          const members = this.#counted.filter((_, j) => groups[j] === groups[i]);
          const value = reduced(op.replace(/^(group|pair)_/, ''), numbers, members);
          reductions.push(() => this.#writeRow(b, out, value));
        });
        continue;
      }
      this.#counted.forEach((b, i) => {
        const numbers = values[i]!;
        if (op in ROW_OUTPUTS) this.#outputRow(ROW_OUTPUTS[op]!(this.#outputs, out), b, numbers[0]!);
        else if (op === 'row_rank')
          this.#writeRow(b, out, this.#rankInRow(b, operands[0]!.index, numbers[1]!));
        else this.#writeRow(b, out, op === 'is_row' ? Number(numbers[0] === b) : arithmetic(op, numbers));
      });
    }
    return reductions;
  }

  #rankInRow(b: number, kept: number, rank: number): number {
    const values = defined(this.#kept[b]![kept]).toSorted(inOrder);
    return values[atMost(rank, values.length)] ?? 0;
  }

  #selectOfRows(op: string, kept: number, by: number): number {
    const all = this.#counted.flatMap((b) => {
      const { mask, repeats } = this.#rows[b]!;
      const positions = mask.flatMap((isUnmasked, t) => (isUnmasked ? [t] : []));
      const place = (i: number) => 2 ** 30 * b + positions[i]!;
      return defined(this.#kept[b]![kept]).flatMap((value, i) =>
        Array.from({ length: repeats }, () => ({ value, place: place(i) })),
      );
    });
    all.sort((x, y) => inOrder(x.value, y.value) || x.place - y.place);
    const values = all.map(({ value }) => value);
    if (op === 'rows_under_mean') return countUnderMean(values, by);
    if (op === 'rows_under_fill') return countUnderFill(values, by);
    const found = all[atMost(by, all.length)];
    return op === 'rows_rank' ? (found?.value ?? 0) : (found?.place ?? -1);
  }

  #outputRow(outputs: (number | undefined)[], b: number, value: number): void {
    assert.ok(this.#hasOutputs, 'an output of rows comes too early');
    assert.equal(outputs[b], undefined);
    outputs[b] = value;
  }

  #read({ kind, index }: { kind: number; index: number }, b: number | undefined, t: number | undefined) {
    switch (kind) {
      case COLUMN:
        return columnOf(this.#rows[defined(b)]!, index, t);
      case CONSTANT:
        return defined(this.#program.constants[index]);
      case ROW_VALUE:
        return defined(this.#rowValues[defined(b)]![index]);
      case BATCH_VALUE:
        return defined(this.#batchValues[index]);
      case ROW_INPUT: {
        const { mask, weight, repeats } = this.#rows[defined(b)]!;
        return defined([mask.filter(Boolean).length, weight, repeats, b! % 2][index]);
      }
      case BATCH_INPUT:
        return defined(this.#batchInputs[index]);
      case ROW_COLUMN:
        assert.equal(t, undefined, 'a token segment reads a row column');
        return defined(this.#rows[defined(b)]!.numbers[index]);
      case SCANNED:
        return defined(defined(this.#scanned[defined(b)]![index])[defined(t)]);
      default:
        assert.fail(`operand of kind ${kind}`);
    }
  }

  #writeRow(b: number, out: number, value: number): void {
    assert.ok(out < this.#program.rowValues);
    assert.equal(this.#rowValues[b]![out], undefined, 'a row value is written twice');
    this.#rowValues[b]![out] = value;
  }

  #writeScanned(b: number, out: number, values: number[]): void {
    assert.ok(out < MAX_SCANNED);
    assert.equal(this.#scanned[b]![out], undefined, 'a value is written twice');
    this.#scanned[b]![out] = values;
  }

  #writeBatch(out: number, value: number): void {
    assert.ok(out < this.#program.batchValues);
    assert.equal(this.#batchValues[out], undefined, 'a batch value is written twice');
    this.#batchValues[out] = value;
  }
}

// Where the outputs of tokens and those of rows go, by operation.
const OUTPUTS: Record<string, (outputs: Outputs, out: number) => number[][]> = {
  loss: ({ loss }) => loss,
  grad: ({ grad }) => grad,
  grad_entropy: ({ gradEntropy }) => gradEntropy,
  metric: ({ metrics }, out) => metrics[out]!,
};
const ROW_OUTPUTS: Record<string, (outputs: Outputs, out: number) => (number | undefined)[]> = {
  row_loss: ({ rowLoss }) => rowLoss,
  row_metric: ({ rowMetrics }, out) => rowMetrics[out]!,
  grad_log_z: ({ gradLogZ }) => gradLogZ,
};

// Returns a number of a column. A row segment can only read a column with one value per row: its tokens have the same.
function columnOf({ columns }: Row, index: number, t: number | undefined): number {
  const column = columns[index]!;
  if (t === undefined)
    assert.ok(
      column.every((x) => Object.is(x, column[0])),
      'a row segment reads tokens',
    );
  return defined(column[t ?? 0]);
}

/** Returns a batch's number of unmasked tokens, its number of rows, and the length of its rows. */
export function sizesOf(rows: readonly Row[]): readonly [tokens: number, rows: number, rowLength: number] {
  const total = (of: (row: Row) => number) => rows.reduce((sum, row) => sum + row.repeats * of(row), 0);
  return [
    total(({ mask }) => mask.filter(Boolean).length),
    total(() => 1),
    Math.max(...rows.map(({ mask }) => mask.length)),
  ];
}

const SELECTIONS = ['rows_rank', 'rows_rank_at', 'rows_under_mean', 'rows_under_fill'];

// The operations on an operand, the index of a row and a position.
const POSITION_OPS: Readonly<Record<string, (x: number, b: number, t: number) => number>> = {
  is_at: (x, _, t) => Number(x === t),
  is_up_to: (place, b, t) => Number(2 ** 30 * b + t <= place),
  draw: drawn,
};

// Compares two values in the order of ranks: NaN is the largest number.
function inOrder(x: number, y: number): number {
  return Number.isNaN(x) || Number.isNaN(y) ? Number(Number.isNaN(x)) - Number(Number.isNaN(y)) : x - y || 0;
}

// Returns the rank among n values that is nearest to the given one.
function atMost(rank: number, n: number): number {
  return rank >= 0 ? Math.min(Math.floor(rank), n - 1) : 0;
}

function countUnderMean(ascending: readonly number[], mean: number): number {
  let sum = 0;
  let count = 0;
  while (count < ascending.length && sum + ascending[count]! < mean * (count + 1)) sum += ascending[count++]!;
  return count;
}

function countUnderFill(ascending: readonly number[], most: number): number {
  let sum = 0;
  let count = 0;
  while (count < ascending.length && sum + ascending[count]! * (ascending.length - count) < most)
    sum += ascending[count++]!;
  return count;
}

function isReduction(op: string): boolean {
  return /^(row_sum_single|rows?_(arg_)?(sum|min|max))$/.test(op);
}

function isScan(op: string): boolean {
  return /^((prefix|suffix|turn)_sum|token_rank)$/.test(op);
}

function isOfGroups(op: string): boolean {
  return /^(group|pair)_(sum|max|arg_max)$/.test(op);
}

// Returns one number per position of a row: the given values at their positions, and 0 elsewhere.
function spread(values: readonly number[], positions: readonly number[], length: number): number[] {
  return Array.from({ length }, (_, t) => values[positions.indexOf(t)] ?? 0);
}

/** Computes a scan over all positions of a row. The values of masked tokens are 0, and they have no ranks. */
export function scanned(
  op: string,
  values: readonly number[],
  mask: readonly boolean[],
  decay = 0,
): number[] {
  if (op === 'suffix_sum')
    return scanned('prefix_sum', values.toReversed(), mask.toReversed(), decay).reverse();
  if (op === 'prefix_sum') {
    let sum = 0;
    return values.map((x) => (sum = x + decay * sum));
  }
  if (op === 'token_rank') {
    const order = values.flatMap((_, t) => (mask[t] ? [t] : []));
    order.sort((a, b) => inOrder(Math.fround(values[a]!), Math.fround(values[b]!)) || a - b);
    return values.map((_, t) => order.indexOf(t));
  }
  return values.map((_, t) => {
    const begin = mask.lastIndexOf(false, t) + 1;
    const end = mask.indexOf(false, t);
    return values.slice(begin, end < 0 ? undefined : end).reduce((sum, x) => sum + x, 0);
  });
}

function inSegments(instructions: readonly Instruction[]): Instruction[][] {
  const segments: Instruction[][] = [];
  for (const instruction of instructions)
    if (['tokens', 'row', 'batch'].includes(instruction.op)) segments.push([instruction]);
    else segments.at(-1)!.push(instruction);
  return segments;
}

function arithmetic(op: string, numbers: readonly number[]): number {
  assert.ok(isArithmetic(op), op);
  return compute(op, numbers);
}

// Reduces values. `positions` are the numbers of their tokens or rows.
function reduced(op: string, values: readonly number[], positions: readonly number[]): number {
  if (op === 'sum') return values.reduce((sum, x) => sum + x, 0);
  const best = op.endsWith('min') ? Math.min(...values) : Math.max(...values);
  if (!op.startsWith('arg_')) return values.length > 0 ? best : 0;
  return positions[values.indexOf(best)] ?? -1;
}

function defined<T>(value: T | undefined): T {
  assert.notEqual(value, undefined, 'a value is read before it is written');
  return value!;
}
