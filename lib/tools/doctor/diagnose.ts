// Diagnoses files, or parts that are already in memory.
import { expandFiles, type RolloutPart, type StreamOptions, streamRollouts } from '../rollouts/index.js';
import { type Diagnosis, Examination } from './examination.js';

/** Options of {@link diagnose}: how to read the files. */
export type DiagnoseOptions = Omit<StreamOptions, 'keep' | 'pairs'>;

/** The capacity of a part in tokens, unless the options set another. It keeps the memory below about 300 MB. */
const MAX_TOKENS = 2 ** 19;

/**
 * Looks for faults in a dump of a training step. Reads the files once, part by part, so the memory does not depend on
 * their size. A check runs if the dump has the columns that it needs; the others are listed with what they lack.
 * @param source the names of files or glob patterns, or parts of rows in order.
 * @throws LossError if the files cannot be read, in the same cases as streamRollouts().
 */
export async function diagnose(
  source: readonly string[] | AsyncIterable<RolloutPart> | Iterable<RolloutPart>,
  options: DiagnoseOptions = {},
): Promise<Diagnosis> {
  const examination = new Examination();
  // Most trainers do not save the current log-probabilities.
  const settings = { maxTokens: MAX_TOKENS, logprobs: 'optional' as const, ...options };
  const parts = isFiles(source) ? streamRollouts(await expandFiles(source), settings) : source;
  for await (const part of parts) examination.add(part);
  return examination.finish();
}

function isFiles(source: unknown): source is readonly string[] {
  return Array.isArray(source) && source.every((item) => typeof item === 'string');
}
