// Runs encoded programs in float64, and checks every rule of native/program/program.h on the way.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { NativeProgram } from '../../binding.js';
import { compute, isArithmetic } from '../../lib/program/arithmetic.js';

const HEADER = readFileSync(new URL('../../native/program/program.h', import.meta.url), 'utf8');
const OPERATIONS = [...HEADER.matchAll(/X\((\w+), (\d)\)/g)].map(([, name, operands]) => ({
  name: name!,
  operands: Number(operands),
}));

export interface Row {
  /** The columns in native order, one number per token. */
  readonly columns: readonly (readonly number[])[];
  readonly mask: readonly boolean[];
  readonly weight: number;
  readonly repeats: number;
}

/** The outputs of a program: a list per row, with one number per unmasked token. The list of a skipped row is empty. */
export interface Outputs {
  readonly loss: number[][];
  readonly grad: number[][];
  readonly metrics: number[][][];
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

const [REGISTER, COLUMN, CONSTANT, ROW_VALUE, BATCH_VALUE, ROW_INPUT] = [0, 1, 2, 3, 4, 5];

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
  readonly #outputs: Outputs;

  constructor(program: NativeProgram, rows: readonly Row[]) {
    this.#program = program;
    this.#rows = rows;
    this.#rowValues = rows.map(() => []);
    this.#counted = rows.flatMap((row, b) => (row.repeats > 0 && row.mask.some(Boolean) ? [b] : []));
    const empty = () => rows.map((): number[] => []);
    this.#outputs = { loss: empty(), grad: empty(), metrics: Array.from({ length: program.metrics }, empty) };
  }

  run(): Outputs {
    const pendingBatch: [number, number][] = [];
    const segments = inSegments(decode(this.#program));
    assert.equal(segments.at(-1)?.[0]?.op, 'tokens');
    for (const [i, [header, ...instructions]] of segments.entries()) {
      const isLast = i === segments.length - 1;
      const reductions = instructions.filter(({ op }) => op.startsWith('row_') || op.startsWith('rows_'));
      assert.ok(reductions.length <= 16);
      if (header!.op === 'tokens') this.#runTokens(instructions, isLast);
      else if (header!.op === 'row') pendingBatch.push(...this.#runRows(instructions));
      else {
        for (const [out, value] of pendingBatch.splice(0)) this.#writeBatch(out, value);
        for (const { op, out, operands } of instructions) {
          const numbers = operands.map((x) => this.#read(x, undefined, undefined));
          this.#writeBatch(out, arithmetic(op, numbers));
        }
      }
    }
    return this.#outputs;
  }

  #runTokens(instructions: readonly Instruction[], isLast: boolean): void {
    for (const b of this.#counted) {
      const row = this.#rows[b]!;
      const positions = row.mask.flatMap((isUnmasked, t) => (isUnmasked ? [t] : []));
      const registers: (number[] | undefined)[] = [];
      const written: [number, number][] = [];
      for (const { op, out, operands } of instructions) {
        const values = operands.map(({ kind, index }) =>
          positions.map((t, i) => {
            if (kind === REGISTER) return defined(registers[index])[i]!;
            return this.#read({ kind, index }, b, t);
          }),
        );
        const x = values[0]!;
        if (op.startsWith('row_')) written.push([out, reduced(op.slice(4), x, positions)]);
        else if (op === 'loss' || op === 'grad' || op === 'metric') {
          assert.ok(isLast);
          const numbers = op === 'grad' ? x.map((y, i) => y * values[1]![i]!) : x;
          (op === 'metric' ? this.#outputs.metrics[out]! : this.#outputs[op])[b]!.push(...numbers);
        } else {
          assert.ok(out < this.#program.registers);
          const isOfToken = operands.some(({ kind }) => kind === REGISTER || kind === COLUMN);
          assert.ok(isOfToken !== (op === 'is_at'), `${op} belongs into another segment`);
          registers[out] = positions.map((t, i) =>
            op === 'is_at'
              ? Number(x[i] === t)
              : arithmetic(
                  op,
                  values.map((value) => value[i]!),
                ),
          );
        }
      }
      for (const [out, value] of written) this.#writeRow(b, out, value);
    }
  }

  // Returns the results of the reductions over rows.
  #runRows(instructions: readonly Instruction[]): [number, number][] {
    const reductions: [number, number][] = [];
    for (const { op, out, operands } of instructions) {
      const values = this.#counted.map((b) => operands.map((x) => this.#read(x, b, undefined)));
      if (op.startsWith('rows_')) {
        const numbers = values.map(([x]) => x!);
        reductions.push([out, reduced(op.slice(5), numbers, this.#counted)]);
        continue;
      }
      this.#counted.forEach((b, i) => {
        const numbers = values[i]!;
        this.#writeRow(b, out, op === 'is_row' ? Number(numbers[0] === b) : arithmetic(op, numbers));
      });
    }
    return reductions;
  }

  #read({ kind, index }: { kind: number; index: number }, b: number | undefined, t: number | undefined) {
    switch (kind) {
      case COLUMN:
        return defined(this.#rows[defined(b)]!.columns[index]![defined(t)]);
      case CONSTANT:
        return defined(this.#program.constants[index]);
      case ROW_VALUE:
        return defined(this.#rowValues[defined(b)]![index]);
      case BATCH_VALUE:
        return defined(this.#batchValues[index]);
      case ROW_INPUT: {
        const { mask, weight, repeats } = this.#rows[defined(b)]!;
        return defined([mask.filter(Boolean).length, weight, repeats][index]);
      }
      default:
        assert.fail(`operand of kind ${kind}`);
    }
  }

  #writeRow(b: number, out: number, value: number): void {
    assert.ok(out < this.#program.rowValues);
    assert.equal(this.#rowValues[b]![out], undefined, 'a row value is written twice');
    this.#rowValues[b]![out] = value;
  }

  #writeBatch(out: number, value: number): void {
    assert.ok(out < this.#program.batchValues);
    assert.equal(this.#batchValues[out], undefined, 'a batch value is written twice');
    this.#batchValues[out] = value;
  }
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
