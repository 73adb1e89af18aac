// The values and gradients that candidates are made of: those of policy losses, KL terms and entropies, over the
// micro-batches of a split.
import type { LossAggMode } from '../../base/options.js';
import { ENTROPY_LOSS_FN, KL_FN, LossError, POLICY_LOSS_FN } from '../../index.js';
import { type PackedRows, rowsFrom } from '../rollouts/index.js';
import type { LossConfiguration } from './configurations.js';
import { canCompute, countOf, inRoles, type Roles, type Split } from './rows.js';

/** A policy loss on all rows. */
export interface Base {
  readonly configuration: LossConfiguration;
  readonly roles: Roles;
  readonly split: Split;
  /** The loss, pg_loss and the metrics. */
  readonly values: Readonly<Record<string, number>>;
  /** The squared norm of the gradient, and its products with those of the KL terms; NaN if no gradient is wanted. */
  readonly gradSquare: number;
  readonly products: readonly number[];
}

/** A KL term on all rows, without its coefficient. */
export interface KlTerm {
  readonly fn: string;
  readonly lossAggMode: LossAggMode;
  readonly value: number;
  readonly grad: Float32Array | undefined;
  readonly gradSquare: number;
}

/** The micro-batches of a split, with columns in certain roles, and what is computed on them. */
export class MicroBatches {
  readonly #roles: Roles;
  readonly #split: Split;
  readonly #rows: PackedRows;
  readonly #parts: readonly PackedRows[];
  readonly #wantsGrad: boolean;
  readonly #kl = new Map<LossAggMode, readonly KlTerm[]>();
  readonly #entropies = new Map<LossAggMode, number | undefined>();
  readonly #grad: Float32Array;
  #divergence: number | undefined;
  #hasDivergence = false;

  constructor(rows: PackedRows, roles: Roles, split: Split, wantsGrad: boolean) {
    this.#roles = roles;
    this.#split = split;
    this.#rows = inRoles(rows, roles);
    this.#parts = Array.from({ length: countOf(split) }, (_, i) =>
      countOf(split) === 1 ? this.#rows : rowsFrom(this.#rows, split.starts[i]!, split.starts[i + 1]!),
    );
    this.#wantsGrad = wantsGrad;
    this.#grad = new Float32Array(wantsGrad ? rows.actionMask.length : 0);
  }

  /** Computes a policy loss. Returns undefined if the rows lack what it needs. */
  base(configuration: LossConfiguration, kl: readonly KlTerm[]): Base | undefined {
    const { fn } = configuration;
    if (!canCompute(this.#rows, fn)) return undefined;
    const values = this.#average(this.#grad, (part, grad) => {
      const { loss, metrics } = fn.computeSync(part, grad && { grad });
      return { pg_loss: loss, ...(metrics as Record<string, number>), loss };
    });
    if (!values) return undefined;
    return {
      configuration,
      roles: this.#roles,
      split: this.#split,
      values,
      gradSquare: this.#wantsGrad ? product(this.#grad, this.#grad) : Number.NaN,
      products: kl.map(({ grad }) => (grad ? product(this.#grad, grad) : Number.NaN)),
    };
  }

  /** Returns the KL terms with this aggregation. */
  klTerms(lossAggMode: LossAggMode): readonly KlTerm[] {
    const known = this.#kl.get(lossAggMode);
    if (known) return known;
    const terms =
      this.#rows.refLogprob === undefined
        ? []
        : KL_FN.names().flatMap((name) => this.#klTerm(name, lossAggMode));
    this.#kl.set(lossAggMode, terms);
    return terms;
  }

  #klTerm(name: string, lossAggMode: LossAggMode): KlTerm[] {
    const fn = KL_FN.create(name, { kl_coef: 1 });
    if (!fn.term(lossAggMode, true)) return [];
    const grad = this.#wantsGrad ? new Float32Array(this.#rows.actionMask.length) : undefined;
    const values = this.#average(grad, (part, grad) => {
      const { loss } = fn.calculateKlLossSync(part, { lossAggMode, ...(grad && { grad }) });
      return { value: loss };
    });
    if (!values) return [];
    const gradSquare = grad ? product(grad, grad) : Number.NaN;
    return [{ fn: name, lossAggMode, value: values.value!, grad, gradSquare }];
  }

  /** Returns the aggregated entropy; undefined if the rows have none. */
  entropy(lossAggMode: LossAggMode): number | undefined {
    if (this.#rows.entropy === undefined) return undefined;
    if (!this.#entropies.has(lossAggMode)) {
      const fn = ENTROPY_LOSS_FN.create('default', { entropy_coef: 1 });
      const values = this.#average(undefined, (part) => ({
        value: fn.computeSync(part, { lossAggMode }).metrics.entropy_loss!,
      }));
      this.#entropies.set(lossAggMode, values?.value);
    }
    return this.#entropies.get(lossAggMode);
  }

  /** Returns the mean of old_logprob − logprob, which trainers log as ppo_kl for every loss. */
  divergence(): number | undefined {
    if (!this.#hasDivergence) {
      this.#hasDivergence = true;
      const ppo = POLICY_LOSS_FN.create('ppo');
      const values = canCompute(this.#rows, ppo)
        ? this.#average(undefined, (part) => ({
            value: ppo.computeSync(part).metrics.ppo_kl,
          }))
        : undefined;
      this.#divergence = values?.value;
    }
    return this.#divergence;
  }

  // Averages what is computed on each micro-batch. The gradients of all tokens are written to `grad`.
  #average(
    grad: Float32Array | undefined,
    compute: (part: PackedRows, grad: Float32Array | undefined) => Record<string, number>,
  ): Record<string, number> | undefined {
    const { starts, weights } = this.#split;
    const sums: Record<string, number> = {};
    try {
      this.#parts.forEach((part, i) => {
        const weight = weights[i]!;
        const [from, to] = [starts[i]!, starts[i + 1]!].map((row) => this.#rows.cuSeqlens[row]!);
        const own = this.#wantsGrad && grad ? grad.subarray(from, to) : undefined;
        for (const [name, value] of Object.entries(compute(part, own)))
          sums[name] = (sums[name] ?? 0) + weight * value;
        if (own && weight !== 1) for (let t = 0; t < own.length; t++) own[t]! *= weight;
      });
    } catch (error) {
      // The loss needs rows of another kind, such as pairs.
      if (error instanceof LossError) return undefined;
      throw error;
    }
    return sums;
  }
}

function product(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let t = 0; t < a.length; t++) sum += a[t]! * b[t]!;
  return sum;
}
