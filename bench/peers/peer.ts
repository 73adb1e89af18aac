// What the harness asks of a peer: another implementation that does the same work on the same inputs.
import type { Inputs } from '../lib/batch.js';
import type { Contender } from '../lib/race.js';
import type { Outcome, Work } from '../lib/works.js';

/** Another implementation. */
export interface Peer {
  /** In tables: 'eager PyTorch'. */
  readonly name: string;
  readonly version: string;
  /** Whether it has a version of a work. */
  covers(work: Work): boolean;
  /** Takes the inputs of the works to come, in the form in which it computes on them. */
  load(inputs: Inputs): Promise<void>;
  /** Makes ready to compute a work on them: loss and metrics, and gradients too where they are asked for. */
  prepare(work: Work, gradient: boolean): Promise<Prepared>;
  end(): Promise<void>;
}

/** A work made ready. */
export interface Prepared extends Contender {
  /** What it computes, to be compared. */
  evaluate(): Promise<Outcome>;
  /** Frees what the work needed. */
  release(): Promise<void>;
}

/** What may be absent: a peer, or the reason that it is not there. */
export type Found = Peer | { readonly name: string; readonly absent: string };

/**
 * A package that bench/package.json names and the package itself does not; undefined where it is not installed. The
 * type is the caller's own, as the types are not there either.
 */
export async function importIfThere<T>(specifier: string): Promise<T | undefined> {
  try {
    // Node gives a CommonJS module's exports as default, and tsx those that were compiled from ES modules by name.
    const module = await import(specifier);
    return module.default ?? module;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code?.endsWith('MODULE_NOT_FOUND')) return undefined;
    throw error;
  }
}
