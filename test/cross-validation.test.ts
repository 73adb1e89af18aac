/**
 * Compares the library with the float64 reference implementation. Uses random shapes, masks, values and arguments that
 * the golden cases do not cover. The environment variable FC_SEED selects other random cases.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type Batch, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN } from '../lib/index.js';
import { type Args, formulas, type ReferenceBatch, referenceKl, standsOnEdge } from './reference/index.js';
import {
  ARGUMENTS,
  type BatchSpec,
  batchSpec,
  fitting,
  makeBatch,
  makeBatchOffEdges,
  three,
} from './support/draw.js';
import { poison } from './support/poison.js';
import { type Family, packedBatch, paddedBatch, type Subject, subject, unpack } from './support/subject.js';
import { gradMagnitude } from './support/terms.js';
import { assertArray, assertComputed } from './support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const FAMILIES = { policy: POLICY_LOSS_FN, kl: KL_FN, entropy: ENTROPY_LOSS_FN };

/** DRO's penalty cancels its other term where logprob is far from oldLogprob. */
const COEFFICIENTS: Readonly<Record<string, string>> = { 'verl/dro': 'dro_beta' };

function agrees(on: Subject, batch: ReferenceBatch): void {
  const result = on.reference(batch);
  const coefficient = COEFFICIENTS[on.name];
  const expected = coefficient
    ? { ...result, gradMagnitude: gradMagnitude(on.name, coefficient, on.args, batch, result) }
    : result;
  const computed = on.sync(hostile(batch, on.args.enable_sequence_masking === true));
  const grad = batch.rowLengths ? unpack(batch, computed.grad) : computed.grad;
  assertComputed({ ...computed, grad }, expected);
}

// Keeps what hostile() returns, because all functions are tested on the same long batches.
const layouts = new WeakMap<ReferenceBatch, Map<boolean, Batch>>();

/** Returns a batch as the library reads it, with NaN in masked tokens. */
function hostile(batch: ReferenceBatch, keepSigns: boolean): Batch {
  const known = layouts.get(batch) ?? new Map<boolean, Batch>();
  layouts.set(batch, known);
  const poisoned = () => poison(batch, Number.NaN, keepSigns);
  const laid = known.get(keepSigns) ?? (batch.rowLengths ? packedBatch(poisoned()) : paddedBatch(poisoned()));
  known.set(keepSigns, laid);
  return laid;
}

/**
 * Returns the batches to test: the given one, and for KL estimators that read oldLogprob also one without it. Without
 * this column, they compute another formula.
 */
function withoutOld(name: string, batch: ReferenceBatch): ReferenceBatch[] {
  if (name !== 'corrected_k3' && name !== 'bias_corrected_k3') return [batch];
  const { oldLogprob: _, ...rest } = batch;
  return [batch, rest];
}

for (const family of ['policy', 'kl', 'entropy'] as const) {
  describe(`cross-validation: ${family}`, () => {
    it('has a reference for exactly the functions of the registry', () => {
      const names = [...FAMILIES[family].names()].sort();
      assert.deepEqual(names, Object.keys(formulas[family]).sort());
      assert.deepEqual(names, Object.keys(ARGUMENTS[family]).sort());
    });

    for (const [name, args] of Object.entries(ARGUMENTS[family])) {
      it(`${name}: drawn batches`, () => drawn(family, name, args));

      it(`${name}: rows of 3,000 tokens`, () => {
        for (const values of ['moderate', 'wide'] as const)
          large(family, name, args, { columns: 3000, values, rows: 4 });
      });

      it(`${name}: a packed row of 70,000 tokens among short ones`, () => {
        const rowLengths = [17, 70_000, 1, 250];
        large(family, name, args, { packed: true, rowLengths, rows: 4, columns: 70_000 });
      });
    }
  });
}

function drawn(family: Family, name: string, args: fc.Arbitrary<Args>): void {
  let compared = 0;
  fc.assert(
    fc.property(args, three(batchSpec), (drawnArgs, specs) => {
      const on = subject(family, name, drawnArgs);
      for (const spec of specs)
        for (const batch of withoutOld(name, makeBatch(fitting(name, drawnArgs, spec)))) {
          // Skips the batch if a token is so close to a threshold that float32 rounding may move it to the other side.
          if (standsOnEdge(on.formula, on.args, batch)) continue;
          compared++;
          agrees(on, batch);
          if (family === 'kl' && !batch.rowLengths) {
            const values = KL_FN.create(name, {}).calculateKlSync(paddedBatch(batch));
            assertArray(values, referenceKl[name]!.values(batch), 'kl');
          }
        }
    }),
    { numRuns: 40, seed: SEED },
  );
  assert.ok(compared > 100, `compared only ${compared} batches`);
}

/**
 * Arguments for large batches. FIPO's weight is a sum over many tokens, so in a large batch one token's weight is always
 * close to the range to which weights are clipped.
 */
const OF_LARGE: Readonly<Record<string, Args>> = { fipo: { influence_clip_range: null } };

function large(family: Family, name: string, args: fc.Arbitrary<Args>, part: Partial<BatchSpec>): void {
  const spec: BatchSpec = {
    seed: SEED,
    rows: 4,
    columns: 1,
    values: 'moderate',
    mask: 'random',
    packed: false,
    ...part,
  };
  const [sample] = fc.sample(args, { seed: SEED, numRuns: 1 });
  const drawnArgs: Args = { ...sample, ...OF_LARGE[name] };
  const on = subject(family, name, drawnArgs);
  agrees(on, makeBatchOffEdges(fitting(name, drawnArgs, spec), on));
}
