// Native functions with several forms. The columns of a batch choose one of them.
import type { NativeBatch, NativeFunction, NativeFunctionSpec } from '../../binding.js';
import { guarded } from '../base/errors.js';
import { native } from '../base/native.js';
import { COLUMNS, type ColumnName, type LossInput, ROW_DATA } from '../batch/columns.js';
import { PER_ROW } from '../batch/convert.js';
import type { Input } from '../device/input.js';
import type { FusedAdvantage } from './computed-advantages.js';

/**
 * The properties of a batch on which the form of a function depends: bit i of a form's number is set if the batch has
 * optional column i, and the next bits are set for columns with one value per row.
 */
export interface FormColumns {
  /** Columns, and numbers of rows, that the batch may lack. */
  readonly optional: readonly LossInput[];
  /** Columns for which it matters whether they have one value per row. */
  readonly perRow: readonly ColumnName[];
}

/** A function with several forms. The columns of a batch choose one of them. */
export interface Forms extends FormColumns {
  /** Returns the specification of a form. It is called once for each form that is needed. */
  spec(form: number): NativeFunctionSpec;
}

/** One form of a function, in native code. */
export class NativeForm {
  readonly fn: NativeFunction;
  readonly names: readonly string[];
  /**
   * Whether each value is a metric of the whole batch. A result lacks such metrics if they are NaN; they have no bit in
   * `present`.
   */
  readonly isOfBatch: readonly boolean[];
  readonly readsWholeBatch: boolean;
  /** Whether the gradients of a token do not depend on the columns of other tokens, apart from the mask. */
  readonly gradientIsPerToken: boolean;
  readonly number: number;
  /**
   * Arrays for the values of calls, which no call is using. Native code moves the memory of a new array out of V8's heap.
   * That can make V8 collect garbage, for milliseconds.
   */
  readonly unused: Float64Array[] = [];

  constructor(spec: NativeFunctionSpec, number: number) {
    const made = guarded(
      () => ({ fn: native.createFunction(spec), ...programFacts(spec) }),
      'ERR_INVALID_OPTION',
    );
    this.fn = made.fn;
    this.readsWholeBatch = made.readsWholeBatch;
    this.gradientIsPerToken = native.gradientIsPerToken(this.fn);
    this.names = native.valueNames(this.fn);
    this.isOfBatch = this.names.map((name) => made.batchMetrics.has(name));
    this.number = number;
  }
}

function programFacts({ policyLoss }: NativeFunctionSpec): {
  readsWholeBatch: boolean;
  batchMetrics: Set<string>;
} {
  if (!policyLoss || !('program' in policyLoss)) return { readsWholeBatch: false, batchMetrics: new Set() };
  const { program, metrics } = policyLoss;
  const ofBatch = metrics.filter(({ per }) => per === 'batch');
  return {
    readsWholeBatch: program.readsWholeBatch,
    batchMetrics: new Set(ofBatch.map(({ name }) => name)),
  };
}

/** All forms of a function. Each is made when it is first needed. */
export class NativeForms {
  /** The first form, which exists from the beginning. */
  readonly first: NativeForm;
  /** The number of bits of the forms' numbers. A function with a single form has number 0. */
  readonly bits: number;
  readonly #forms: Forms | undefined;
  // The forms that were made so far, by number.
  readonly #made: NativeForm[];

  constructor(spec: NativeFunctionSpec | Forms) {
    this.#forms = 'spec' in spec ? spec : undefined;
    this.first = new NativeForm('spec' in spec ? spec.spec(0) : spec, 0);
    this.#made = [this.first];
    this.bits = this.#forms ? this.#forms.optional.length + this.#forms.perRow.length : 0;
  }

  /** Returns the form for a batch. */
  of(input: Input, fused: FusedAdvantage | undefined): NativeForm {
    return this.numbered(this.#forms ? formNumber(this.#forms, input, fused) : 0);
  }

  /** Returns the form with a number. */
  numbered(number: number): NativeForm {
    const made = this.#made[number];
    if (made) return made;
    const form = new NativeForm(this.#forms!.spec(number), number);
    this.#made[number] = form;
    return form;
  }
}

// Returns the number of the form for a batch; see FormColumns.
function formNumber(
  { optional, perRow }: FormColumns,
  input: Input,
  fused: FusedAdvantage | undefined,
): number {
  let number = 0;
  for (let i = 0; i < optional.length; i++) if (hasColumn(input, optional[i]!)) number |= 1 << i;
  for (let i = 0; i < perRow.length; i++)
    if (isPerRow(input, perRow[i]!, fused)) number |= 1 << (optional.length + i);
  return number;
}

function hasColumn({ native, resident }: Input, name: LossInput): boolean {
  if (resident) return resident.columns.has(name);
  const { data, rowData } = native as NativeBatch;
  const column = (COLUMNS as readonly string[]).indexOf(name);
  if (column >= 0) return data[column] !== undefined;
  return rowData?.[(ROW_DATA as readonly string[]).indexOf(name)] !== undefined;
}

function isPerRow({ native, resident }: Input, name: ColumnName, fused: FusedAdvantage | undefined): boolean {
  if (fused && name === 'advantages') return fused.perRow;
  if (resident) return resident.perRow.has(name);
  return ((native as NativeBatch).dtypes[COLUMNS.indexOf(name)]! & PER_ROW) !== 0;
}
