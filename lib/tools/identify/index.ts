// Finds the configurations that reproduce the numbers which a trainer logged.
import { LossError } from '../../base/errors.js';
import type { PackedRows } from '../rollouts/index.js';
import { type Candidate, rank } from './rank.js';
import { type IdentifyOptions, search } from './search.js';

export type { LoggedNumbers, Meeting } from './evidence.js';
export type { Candidate } from './rank.js';
export type { IdentifyOptions } from './search.js';
export { TRAINER_NAMES } from './trainers.js';

/** The result of {@link identify}. */
export interface Identification {
  /** The candidates with the best ranks, the best first. */
  readonly candidates: readonly Candidate[];
  /** How many configurations were tried. */
  readonly tried: number;
  /** How many seconds the search took. */
  readonly seconds: number;
  /** Numbers that were not logged and that would tell the candidates of rank 1 apart. */
  readonly wouldTellApart: readonly string[];
}

/**
 * Searches for the loss, the options, the aggregation, the KL term, the entropy coefficient, the micro-batches and the
 * roles of the columns that reproduce logged numbers.
 * @param rows a packed batch. Of logprob, oldLogprob and rolloutLogprob, it needs at least one.
 * @param top how many ranks are returned.
 * @throws LossError `ERR_MISSING_INPUT` if the rows have no log-probabilities, `ERR_INVALID_OPTION` for an invalid
 * option, `ERR_UNKNOWN_NAME` for an unknown loss or trainer.
 */
export async function identify(
  rows: PackedRows,
  { top = 5, ...options }: IdentifyOptions & { top?: number },
): Promise<Identification> {
  if (!Number.isSafeInteger(top) || top < 1)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'top',
      expected: 'a whole number of at least 1',
      received: String(top),
    });
  const began = performance.now();
  const found = await search(rows, options);
  return {
    ...rank(found, top),
    tried: found.tried,
    seconds: (performance.now() - began) / 1000,
  };
}
