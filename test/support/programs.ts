/** Draws random programs: user-defined losses in the form that the native module runs (native/program/program.h). */
import type { NativeProgram, NativeProgramMetric } from '../../binding.js';
import { generator } from './random.js';

/** A program with a gradient, and the same program without it. */
export interface DrawnPrograms {
  withGrad: NativeProgram;
  withoutGrad: NativeProgram;
  readsWholeBatch: boolean;
}

/** The programs of a loss, and the metrics that they output. */
export interface DrawnLoss {
  program: DrawnPrograms;
  metrics: NativeProgramMetric[];
}

/** No loss of a token or row, and no metric of one, is larger than this, unless it is NaN. */
export const LARGEST_OUTPUT = 4;

const KINDS = [
  'register',
  'column',
  'constant',
  'rowValue',
  'batchValue',
  'rowInput',
  'batchInput',
  'rowColumn',
  'scanned',
] as const;
const ROW_INPUTS = 4;
const BATCH_INPUTS = 3;
const ROW_COLUMNS = 4;
const ROW_WEIGHT = 1;
const CONSTANTS = [-LARGEST_OUTPUT, LARGEST_OUTPUT, 0, 1, -1, 0.5, 2, 1e-3];
const BINARY = ['add', 'sub', 'mul', 'mul_no_nan', 'min', 'max', 'lt', 'le', 'eq', 'div', 'pow'];
const TERNARY = ['select', 'clip'];
const QUATERNARY = ['select_lt', 'select_le', 'select_eq'];
const MAX_OPERANDS = 4;
const UNARY = [
  'neg',
  'abs',
  'sign',
  'floor',
  'exp',
  'expm1',
  'exp_residual',
  'exp_with_residual',
  'tanh',
  'sigmoid',
  'logsigmoid',
];
// The results of these are often NaN, and NaN would soon be everywhere. So they are drawn less often.
const PARTIAL = ['sqrt', 'log', 'log1p', 'div', 'pow'];
const SELECTIONS = ['rows_rank', 'rows_rank_at', 'rows_under_mean', 'rows_under_fill'];
// The first row values are those of row_gather.
const MAX_GATHERED = 4;
const REDUCTIONS = ['sum', 'sum', 'min', 'max', 'arg_min', 'arg_max'];
const SCANS = ['prefix_sum', 'suffix_sum', 'turn_sum', 'token_rank'];
const GROUP_REDUCTIONS = ['group_sum', 'group_max', 'group_arg_max', 'pair_sum'];
/** The indices of 0, 1 and 0.5 in CONSTANTS. */
const DECAYS = [2, 3, 5];

/**
 * Draws a program that reads the first `columns` columns. In row segments, a column without a value per row is 0. It has up to three rounds of reductions over rows and over the
 * batch before it outputs the losses of the tokens, and up to two rounds over rows after that. Each operation and kind of
 * operand occurs in some programs.
 * @param ops NativeEngine.programOps
 */
export function drawPrograms(ops: readonly string[], columns: number, seed: number): DrawnLoss {
  return new Draw(ops, columns, seed).loss();
}

class Draw {
  readonly #ops: readonly string[];
  readonly #columns: number;
  readonly #random: ReturnType<typeof generator>;
  readonly #registers: number;
  readonly #metrics: readonly NativeProgramMetric[];
  readonly #allRows: boolean;
  readonly #readsNumbers: boolean;
  readonly #reducesGroups: boolean;
  readonly #code: number[][] = [];
  #written: number[] = [];
  // The operands that each kind of segment may read. A reduction's result is pending until its segment ends.
  readonly #row: number[] = [];
  readonly #batch: number[] = [];
  readonly #scanned: number[] = [];
  #pendingRow: number[] = [];
  #pendingBatch: number[] = [];
  #pendingScanned: number[] = [];
  // The results of reductions over groups are pending until a batch segment.
  #pendingGroups: number[] = [];
  #hasGroups = false;
  #rowValues = MAX_GATHERED;
  #batchValues = 0;
  // Row values that are positions in the row, and batch values that are row indices.
  readonly #positions: number[] = [];
  readonly #rowIndices: number[] = [];
  // Batch values that are places of tokens, and the number of row values that stand for kept values.
  readonly #places: number[] = [];
  #kept = 0;
  #readableKept = 0;

  constructor(ops: readonly string[], columns: number, seed: number) {
    this.#ops = ops;
    this.#columns = columns;
    this.#random = generator(seed);
    this.#registers = this.#integer(0, 3) === 0 ? 32 : this.#integer(1, 6);
    const metrics = this.#integer(0, 4) === 0 ? 16 : this.#integer(0, 6);
    const ofBatch = this.#integer(0, 1) * this.#integer(1, 4);
    this.#metrics = Array.from({ length: metrics + ofBatch }, (_, i) => ({
      name: `metric ${i}`,
      per: i >= metrics ? 'batch' : this.#pick(['token', 'token', 'row']),
    }));
    this.#allRows = this.#integer(0, 1) === 0;
    this.#readsNumbers = this.#integer(0, 3) > 0;
    this.#reducesGroups = this.#integer(0, 2) === 0;
  }

  loss(): DrawnLoss {
    const rounds = this.#integer(0, 3);
    for (let round = 0; round < rounds; round++) {
      this.#tokens();
      this.#reduceRows(this.#integer(1, 4));
      this.#rows();
      const isReduced = this.#batchValues > 0 || this.#pendingGroups.length > 0;
      if (isReduced && this.#integer(0, 3) > 0) this.#wholeBatch();
    }
    this.#tokens();
    for (const i of this.#indicesOf('token')) this.#output('metric', i);
    this.#output('loss');
    const grad = this.#code.length;
    this.#output('grad');
    if (this.#integer(0, 1) === 0) this.#output('grad_entropy');
    const afterGrad = this.#code.length;
    for (let round = this.#integer(0, 2); round > 0; round--) this.#rowsAfterOutputs();
    if (this.#indicesOf('row').length > 0) this.#outputRows();
    const ofLogZ = this.#code.length;
    if (this.#integer(0, 1) === 0) this.#outputGradLogZ();
    const afterLogZ = this.#code.length;
    if (this.#count('batch') > 0) this.#outputBatch();
    const withoutGrad = this.#code.toSpliced(ofLogZ, afterLogZ - ofLogZ).toSpliced(grad, afterGrad - grad);
    const program = {
      withGrad: this.#encode(this.#code),
      withoutGrad: this.#encode(withoutGrad),
      readsWholeBatch: this.#batchValues > 0 || this.#hasGroups,
    };
    return { program, metrics: [...this.#metrics] };
  }

  #count(per: NativeProgramMetric['per']): number {
    return this.#metrics.filter((metric) => metric.per === per).length;
  }

  // Returns the numbers of the metrics of tokens or of those of rows, which are numbered together.
  #indicesOf(per: 'token' | 'row'): number[] {
    return this.#metrics.flatMap((metric, i) => (metric.per === per ? [i] : []));
  }

  #integer(low: number, high: number): number {
    return this.#random.integer(low, high);
  }
  #pick<T>(list: readonly T[]): T {
    return list[this.#integer(0, list.length - 1)]!;
  }

  // Picks one of the last elements more often, so that most of the computed values reach an output.
  #pickRecent<T>(list: readonly T[]): T {
    return this.#pick(this.#integer(0, 1) === 0 ? list.slice(-3) : list);
  }

  #begin(kind: 'tokens' | 'row' | 'batch'): void {
    this.#emit(kind, 0);
    this.#written = [];
    this.#row.push(...this.#pendingRow.splice(0));
    this.#readableKept = this.#kept;
    this.#scanned.push(...this.#pendingScanned.splice(0));
    if (kind !== 'batch') return;
    this.#batch.push(...this.#pendingBatch.splice(0));
    this.#row.push(...this.#pendingGroups.splice(0));
  }

  #emit(op: string, out: number, operands: readonly number[] = []): void {
    const all = Array.from({ length: MAX_OPERANDS }, (_, i) => operands[i] ?? 0);
    this.#code.push([this.#ops.indexOf(op), out, ...all]);
  }

  #encode(code: readonly number[][]): NativeProgram {
    return {
      code: Int32Array.from(code.flat()),
      constants: Float64Array.from(CONSTANTS),
      registers: this.#registers,
      rowValues: this.#rowValues,
      batchValues: this.#batchValues,
      metrics: this.#count('token') + this.#count('row'),
      batchMetrics: this.#count('batch'),
      allRows: this.#allRows,
    };
  }

  #tokens(): void {
    this.#begin('tokens');
    const count = this.#integer(1, 12);
    for (let i = 0; i < count; i++) {
      const out = this.#integer(0, this.#registers - 1);
      if (this.#positions.length > 0 && this.#integer(0, 5) === 0) {
        this.#emit('is_at', out, [operand('rowValue', this.#pick(this.#positions))]);
      } else if (this.#places.length > 0 && this.#integer(0, 3) === 0) {
        this.#emit('is_up_to', out, [operand('batchValue', this.#pick(this.#places))]);
      } else if (this.#integer(0, 15) === 0) {
        this.#emit('draw', out, [operand('constant', this.#integer(0, CONSTANTS.length - 1))]);
      } else {
        const { op, count: operands } = this.#arithmetic();
        const from = Array.from({ length: operands }, () => this.#shared() ?? this.#token());
        from[this.#integer(0, operands - 1)] = this.#token();
        this.#emit(op, out, from);
        if (this.#integer(0, 3) > 0) this.#bound(operand('register', out), out);
      }
      this.#written.push(out);
    }
  }

  #arithmetic(): { op: string; count: number } {
    const drawn = this.#integer(0, 9);
    const op = this.#pick(
      drawn === 0
        ? PARTIAL
        : drawn < 6
          ? BINARY.slice(0, -2)
          : drawn < 8
            ? UNARY
            : [...TERNARY, ...QUATERNARY],
    );
    const lists = [UNARY, BINARY, TERNARY, QUATERNARY];
    return { op, count: Math.max(1, lists.findIndex((list) => list.includes(op)) + 1) };
  }

  // Keeps numbers small, so that not every program ends with infinite numbers.
  #bound(from: number, out: number): void {
    this.#emit('clip', out, [from, operand('constant', 0), operand('constant', 1)]);
  }

  #token(): number {
    if (this.#written.length > 0 && this.#integer(0, 2) > 0)
      return operand('register', this.#pick(this.#written));
    if (this.#scanned.length > 0 && this.#integer(0, 1) > 0)
      return operand('scanned', this.#pick(this.#scanned));
    return operand('column', this.#integer(0, this.#columns - 1));
  }

  // Returns an operand that is the same for all tokens of a row or, now and then, undefined.
  #shared(): number | undefined {
    switch (this.#integer(0, 7)) {
      case 0:
        return operand('constant', this.#integer(0, CONSTANTS.length - 1));
      case 1:
        return operand('rowInput', this.#integer(0, ROW_INPUTS - 1));
      case 2:
      case 3:
        return this.#row.length > 0 ? operand('rowValue', this.#pickRecent(this.#row)) : undefined;
      case 4:
        return this.#batch.length > 0 ? operand('batchValue', this.#pickRecent(this.#batch)) : undefined;
      case 5:
        return operand('batchInput', this.#integer(0, BATCH_INPUTS - 1));
      default:
        return undefined;
    }
  }

  #reduceRows(count: number): void {
    if (this.#kept < MAX_GATHERED && this.#integer(0, 1) === 0) {
      const out = this.#kept++;
      this.#emit('row_gather', out, [this.#token()]);
      this.#pendingRow.push(out);
    }
    for (let i = 0; i < count; i++) {
      const name = this.#pick(REDUCTIONS);
      const out = this.#rowValues++;
      this.#emit(`row_${name}`, out, [this.#token()]);
      this.#pendingRow.push(out);
      if (name.startsWith('arg')) this.#positions.push(out);
    }
    for (let i = this.#integer(0, 2); i > 0; i--) this.#scan();
  }

  #scan(): void {
    const op = this.#pick(SCANS);
    const out = this.#scanned.length + this.#pendingScanned.length;
    const decay = operand('constant', this.#pick(DECAYS));
    const hasDecay = op === 'prefix_sum' || op === 'suffix_sum';
    this.#emit(op, out, [this.#token(), ...(hasDecay ? [decay] : [])]);
    this.#pendingScanned.push(out);
  }

  #rows(): void {
    this.#begin('row');
    for (let i = this.#integer(0, 4); i > 0; i--) {
      const out = this.#rowValues++;
      if (this.#rowIndices.length > 0 && this.#integer(0, 1) === 0) {
        this.#emit('is_row', out, [operand('batchValue', this.#pick(this.#rowIndices))]);
      } else if (this.#readableKept > 0 && this.#integer(0, 2) === 0) {
        this.#emit('row_rank', out, this.#selection());
      } else {
        const { op, count } = this.#arithmetic();
        this.#emit(
          op,
          out,
          Array.from({ length: count }, () => this.#ofRow()),
        );
      }
      this.#row.push(out);
    }
    for (let i = this.#integer(0, 3); i > 0; i--) {
      const name = this.#pick(REDUCTIONS);
      const out = this.#batchValues++;
      this.#emit(`rows_${name}`, out, [this.#ofRow()]);
      this.#pendingBatch.push(out);
    }
    for (let i = this.#integer(0, 2); i > 0 && this.#readableKept > 0; i--) {
      const out = this.#batchValues++;
      this.#emit(this.#pick(SELECTIONS), out, this.#selection());
      this.#pendingBatch.push(out);
    }
    for (let i = this.#reducesGroups ? this.#integer(0, 2) : 0; i > 0; i--) {
      const out = this.#rowValues++;
      this.#emit(this.#pick(GROUP_REDUCTIONS), out, [this.#ofRow()]);
      this.#pendingGroups.push(out);
      this.#hasGroups = true;
    }
  }

  // Returns the operands of a selection: kept values, and a rank or a bound.
  #selection(): number[] {
    return [operand('rowValue', this.#integer(0, this.#readableKept - 1)), this.#ofRow()];
  }

  #ofRow(): number {
    if (this.#readsNumbers && (this.#row.length === 0 || this.#integer(0, 4) === 0))
      return this.#integer(0, 2) === 0
        ? operand('column', this.#integer(0, this.#columns - 1))
        : operand('rowColumn', this.#integer(0, ROW_COLUMNS - 1));
    const shared = this.#shared();
    if (shared !== undefined) return shared;
    if (this.#row.length === 0) return operand('rowInput', this.#integer(0, ROW_INPUTS - 1));
    return operand('rowValue', this.#pick(this.#row));
  }

  // Adds segments after the one with the outputs. Some of them reduce tokens, and some output losses of rows.
  #rowsAfterOutputs(): void {
    if (this.#integer(0, 2) > 0) {
      this.#tokens();
      this.#reduceRows(this.#integer(1, 4));
    }
    this.#rows();
    if (this.#integer(0, 2) > 0) this.#outputRow('row_loss');
  }

  #outputRows(): void {
    this.#rows();
    for (const i of this.#indicesOf('row')) this.#outputRow('row_metric', i);
  }

  #outputRow(op: string, out = 0): void {
    const bounded = this.#rowValues++;
    this.#bound(this.#ofRow(), bounded);
    this.#row.push(bounded);
    this.#emit(op, out, [operand('rowValue', bounded)]);
  }

  // A segment of its own, which the program without gradients lacks.
  #outputGradLogZ(): void {
    this.#begin('row');
    this.#emit('grad_log_z', 0, [this.#ofRow()]);
  }

  #outputBatch(): void {
    this.#wholeBatch();
    for (let i = 0; i < this.#count('batch'); i++) this.#emit('batch_metric', i, [this.#ofBatch()]);
  }

  #wholeBatch(): void {
    const indices = this.#writtenBy(this.#pendingBatch, ['rows_arg_min', 'rows_arg_max']);
    const places = this.#writtenBy(this.#pendingBatch, ['rows_rank_at']);
    this.#begin('batch');
    this.#rowIndices.push(...indices);
    this.#places.push(...places);
    for (let i = this.#integer(0, 3); i > 0 && this.#batch.length > 0; i--) {
      const { op, count } = this.#arithmetic();
      const out = this.#batchValues++;
      this.#emit(
        op,
        out,
        Array.from({ length: count }, () => this.#ofBatch()),
      );
      this.#batch.push(out);
    }
  }

  #ofBatch(): number {
    if (this.#batch.length > 0 && this.#integer(0, 3) > 0)
      return operand('batchValue', this.#pickRecent(this.#batch));
    return this.#integer(0, 1) === 0
      ? operand('constant', this.#integer(0, CONSTANTS.length - 1))
      : operand('batchInput', this.#integer(0, BATCH_INPUTS - 1));
  }

  // Returns those of the batch values that the given operations write.
  #writtenBy(values: readonly number[], names: readonly string[]): number[] {
    const ops = names.map((name) => this.#ops.indexOf(name));
    return values.filter((value) => this.#code.some(([op, out]) => ops.includes(op!) && out === value));
  }

  #output(op: string, out = 0): void {
    const register = this.#integer(0, this.#registers - 1);
    const shared = this.#shared();
    if (shared === undefined) {
      this.#bound(this.#token(), register);
    } else {
      this.#emit(this.#pick(['add', 'mul']), register, [this.#token(), shared]);
      this.#bound(operand('register', register), register);
    }
    if (!this.#written.includes(register)) this.#written.push(register);
    // The output is the product of two operands.
    const factor = this.#shared() ?? operand('rowInput', ROW_WEIGHT);
    this.#emit(op, out, [operand('register', register), factor]);
  }
}

function operand(kind: (typeof KINDS)[number], index: number): number {
  return 65536 * KINDS.indexOf(kind) + index;
}
