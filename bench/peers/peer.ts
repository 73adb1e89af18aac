// What the benchmarks ask of a peer: another implementation that does the same work on the same inputs.
import type { Inputs } from '../lib/batch.js';
import type { Contender } from '../lib/race.js';
import type { Outcome, Work } from '../lib/works.js';

/** Another implementation. */
export interface Peer {
  /** Its name in tables: 'eager PyTorch'. */
  readonly name: string;
  readonly version: string;
  /** Whether it has its own version of a work. */
  covers(work: Work): boolean;
  /** Takes the inputs that all following works are computed on, and converts them to its own form. */
  load(inputs: Inputs): Promise<void>;
  /** Prepares to compute a work on the loaded inputs: loss and metrics, and the gradients too if asked for. */
  prepare(work: Work, gradient: boolean): Promise<Prepared>;
  end(): Promise<void>;
}

/** A work that is ready to be computed. */
export interface Prepared extends Contender {
  /** Returns the results, to be compared with this package's. */
  evaluate(): Promise<Outcome>;
  /** Frees what the work needed. */
  release(): Promise<void>;
}

/** A peer, or the reason why it is absent. */
export type Found = Peer | { readonly name: string; readonly absent: string };

/**
 * Returns a peer's version, or why it is absent. If it covers more than half of the works, it also names those that it
 * lacks; their tables have no number of this peer.
 */
export function describePeer(peer: Found, works: readonly Work[]): string {
  if ('absent' in peer) return `absent: ${peer.absent}`;
  const lacking = works.filter((work) => work.computes && !peer.covers(work)).map(({ id }) => id);
  if (lacking.length === 0 || lacking.length > works.length / 2) return peer.version;
  return `${peer.version}; it lacks ${lacking.join(', ')}`;
}

/**
 * Imports a package that only bench/package.json lists; undefined if it is not installed. The caller names the type,
 * because the package's types are not installed either.
 */
export async function importIfThere<T>(specifier: string): Promise<T | undefined> {
  try {
    // Node returns the exports of a CommonJS module as default; tsx returns those compiled from ES modules by name.
    const module = await import(specifier);
    return module.default ?? module;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code?.endsWith('MODULE_NOT_FOUND')) return undefined;
    throw error;
  }
}
