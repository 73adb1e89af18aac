// Shows what it changes that a trainer computes a batch in micro-batches: each trainer weighs them in its own way.
import { LossError } from '../../index.js';
import { type PackedRows, type RolloutPart, rowsFrom } from '../rollouts/index.js';
import { gradientOffsets, type Subject } from './subject.js';

/** A way to add up the losses of micro-batches, and what it gives. */
export interface Weighing {
  /** How much a micro-batch weighs. */
  readonly name: WeighingName;
  /** The trainers that weigh so. */
  readonly trainers: string;
  readonly loss: number;
  /** The 2-norm of the gradient. */
  readonly gradNorm: number;
  /** The 2-norm of the gradient's difference from that of the whole batch, divided by the norm of the latter. */
  readonly gradDifference: number;
  /** The angle between the two gradients, in degrees; NaN if one of them is 0. */
  readonly angle: number;
}

export type WeighingName = 'whole' | 'equal' | 'by rows' | 'by tokens';

/** What a loss or an algorithm gives in micro-batches. */
export interface MicroBatchComparison {
  /** The number of rows of each micro-batch. */
  readonly rows: readonly number[];
  /** The number of unmasked tokens of each micro-batch. */
  readonly tokens: readonly number[];
  /** The whole batch, which some trainers reproduce in micro-batches, and then each way to weigh. */
  readonly weighings: readonly Weighing[];
}

interface Part {
  readonly first: number;
  readonly end: number;
  readonly tokens: number;
}

const WEIGHINGS: Readonly<
  Record<Exclude<WeighingName, 'whole'>, { trainers: string; sizeOf: (part: Part) => number }>
> = {
  equal: { trainers: 'verl and Trinity-RFT with micro-batches of a fixed size', sizeOf: () => 1 },
  'by rows': {
    trainers: 'verl and Trinity-RFT with use_dynamic_bsz',
    sizeOf: ({ first, end }) => end - first,
  },
  'by tokens': {
    trainers: 'Trinity-RFT with fix_actor_microbatch_loss_scale',
    sizeOf: ({ tokens }) => tokens,
  },
};
const TRAINERS_OF_WHOLE = 'slime, prime-rl, NeMo-RL, SkyRL, and TRL with num_items_in_batch';

/**
 * Computes a loss or an algorithm on the whole of some rows, and on consecutive micro-batches of them. Advantages are
 * computed from all rows first, as trainers do.
 * @param count the number of micro-batches. Their rows differ by at most one, or by a pair if the loss compares pairs.
 * @throws LossError `ERR_INVALID_OPTION` if there are fewer rows (or pairs) than micro-batches.
 */
export async function compareMicroBatches(
  subject: Subject,
  { batch, rows }: Pick<RolloutPart, 'batch' | 'rows'>,
  count: number,
  device?: string,
): Promise<MicroBatchComparison> {
  const setRows = subject.pairs ? 2 : 1;
  const sets = Math.floor(rows / setRows);
  if (count > sets)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'microBatches',
      expected: `at most ${sets}, as many as there are ${subject.pairs ? 'pairs of rows' : 'rows'}`,
      received: String(count),
    });
  const computed = subject.advantages?.appliesTo(batch)
    ? (await subject.advantages.compute(batch)).computed
    : undefined;
  const offsets = batch.cuSeqlens;
  const compute = async (first: number, end: number, grad: Float32Array) => {
    const own = computed && {
      column: computed.perRow
        ? computed.column.subarray(first, end)
        : computed.column.subarray(offsets[first], offsets[end]),
      perRow: computed.perRow,
      repeats: computed.repeats?.subarray(first, end),
    };
    const part = rowsFrom(batch as PackedRows, first, end);
    return (await subject.compute(part, own, { grad, ...(device !== undefined && { device }) })).loss;
  };
  const places = gradientOffsets(subject, batch);
  const size = places.at(-1)!;
  const whole = new Float32Array(size);
  const wholeLoss = await compute(0, rows, whole);
  const starts = Array.from({ length: count + 1 }, (_, i) =>
    i === count ? rows : Math.floor((i * sets) / count) * setRows,
  );
  const parts = starts.slice(1).map((end, i): Part => {
    const first = starts[i]!;
    const mask = batch.actionMask.subarray(offsets[first], offsets[end]);
    return { first, end, tokens: mask.reduce((sum, kept) => sum + (kept === 0 ? 0 : 1), 0) };
  });
  const grad = new Float32Array(size);
  const losses: number[] = [];
  for (const { first, end } of parts)
    losses.push(await compute(first, end, grad.subarray(places[first], places[end])));
  const hasTokens = subject.variable !== 'rewards';
  const ways = Object.entries(WEIGHINGS).filter(([name]) => hasTokens || name !== 'by tokens');
  const weighings = ways.map(([name, { trainers, sizeOf }]) => {
    const total = parts.reduce((sum, part) => sum + sizeOf(part), 0);
    const weights = parts.map((part) => (total === 0 ? 0 : sizeOf(part) / total));
    const weightOf = (at: number, i: number) => grad[at]! * weights[i]!;
    return {
      name: name as WeighingName,
      trainers,
      loss: losses.reduce((sum, loss, i) => sum + weights[i]! * loss, 0),
      ...compareGradients(whole, parts, places, weightOf),
    };
  });
  const same = compareGradients(whole, parts, places, (at) => whole[at]!);
  return {
    rows: parts.map(({ first, end }) => end - first),
    tokens: parts.map(({ tokens }) => tokens),
    weighings: [{ name: 'whole', trainers: TRAINERS_OF_WHOLE, loss: wholeLoss, ...same }, ...weighings],
  };
}

// Compares a gradient with that of the whole batch. `gradient` gives one of its values, which is of a micro-batch.
function compareGradients(
  whole: Float32Array,
  parts: readonly Part[],
  offsets: Int32Array,
  gradient: (at: number, part: number) => number,
): Pick<Weighing, 'gradNorm' | 'gradDifference' | 'angle'> {
  let [own, theirs, product, difference] = [0, 0, 0, 0];
  parts.forEach(({ first, end }, i) => {
    for (let at = offsets[first]!; at < offsets[end]!; at++) {
      const [a, b] = [gradient(at, i), whole[at]!];
      own += a * a;
      theirs += b * b;
      product += a * b;
      difference += (a - b) * (a - b);
    }
  });
  const cosine = product / Math.sqrt(own * theirs);
  return {
    gradNorm: Math.sqrt(own),
    gradDifference: theirs === 0 ? Math.sqrt(difference) : Math.sqrt(difference / theirs),
    angle: (Math.acos(Math.min(1, Math.max(-1, cosine))) * 180) / Math.PI,
  };
}
