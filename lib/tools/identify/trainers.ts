// What trainers do to the numbers before they log them.
import { unknownName } from '../../base/errors.js';
import type { LossAggMode } from '../../base/options.js';

/** How a trainer logs a loss that is computed in micro-batches. */
export interface Trainer {
  /** What the trainer does, for messages. */
  readonly about: string;
  /** Whether the numbers depend on how the rows are cut into micro-batches. */
  readonly splits: boolean;
  /** Returns the factors that the logged losses can have, given the number of micro-batches. */
  factors(microBatches: number): readonly number[];
  /** The aggregation of the KL term, if it is not that of the loss. */
  readonly klAggMode?: LossAggMode;
}

/** The logged numbers that have a trainer's factor. */
export const FACTORED: readonly string[] = ['loss', 'pg_loss', 'kl_loss', 'entropy_loss'];

const WHOLE = { splits: false, factors: () => [1] } as const;
const STEPS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64];

const TRAINERS: Readonly<Record<string, Trainer>> = {
  verl: {
    about: 'sums the means of its mini-batches, over all epochs',
    splits: true,
    factors: () => STEPS,
  },
  trinity: {
    about: 'divides the mean over micro-batches by how many a mini-batch has',
    splits: true,
    factors: (microBatches) =>
      Array.from({ length: microBatches }, (_, i) => i + 1)
        .filter((n) => microBatches % n === 0)
        .map((n) => 1 / n),
  },
  slime: { ...WHOLE, about: 'divides by counts of the whole batch' },
  'prime-rl': { ...WHOLE, about: 'divides by the tokens of the whole batch' },
  'nemo-rl': { ...WHOLE, about: 'divides by counts of the whole batch' },
  skyrl: {
    ...WHOLE,
    about: 'sums the parts of one loss, and averages the KL term over rows',
    klAggMode: 'seq-mean-token-mean',
  },
};

/** Without a named trainer, the logged losses are means over the micro-batches. */
const ANY: Trainer = { about: 'averages over micro-batches', splits: true, factors: () => [1] };

/** The names of the trainers, in the order of the help. */
export const TRAINER_NAMES: readonly string[] = Object.keys(TRAINERS);

/** @throws LossError `ERR_UNKNOWN_NAME` */
export function trainerOf(name: string | undefined): Trainer {
  if (name === undefined) return ANY;
  const trainer = Object.hasOwn(TRAINERS, name) ? TRAINERS[name] : undefined;
  if (!trainer) throw unknownName('ERR_UNKNOWN_NAME', 'trainer', name, TRAINER_NAMES);
  return trainer;
}
