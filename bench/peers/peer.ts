// The interface of peers: other implementations that compute the same results from the same inputs.
import type { Inputs } from '../lib/batch.js';
import type { Contender } from '../lib/race.js';
import type { Outcome, Work } from '../lib/works.js';

/** Another implementation of this package's functions. */
export interface Peer {
  /** Its name in tables: 'eager PyTorch'. */
  readonly name: string;
  readonly version: string;
  /** Returns whether the peer implements a function. */
  covers(work: Work): boolean;
  /** Converts the inputs of all following calls to the peer's own form. */
  load(inputs: Inputs): Promise<void>;
  /** Prepares a function on the loaded inputs: loss and metrics, and with `gradient` also the gradients. */
  prepare(work: Work, gradient: boolean): Promise<Prepared>;
  end(): Promise<void>;
}

/** A function of a peer that is ready to be called. */
export interface Prepared extends Contender {
  /** Computes the results, for a comparison with this package's. */
  evaluate(): Promise<Outcome>;
  /** Frees what prepare() allocated. */
  release(): Promise<void>;
}

/** A peer, or the reason why it is absent. */
export type Found = Peer | { readonly name: string; readonly absent: string };

/**
 * Returns a peer's version, or why it is absent. If the peer covers more than half of the functions, also names those
 * that it lacks, which are timed without it.
 */
export function describePeer(peer: Found, works: readonly Work[]): string {
  if ('absent' in peer) return `absent: ${peer.absent}`;
  const lacking = works.filter((work) => work.computes && !peer.covers(work)).map(({ id }) => id);
  if (lacking.length === 0 || lacking.length > works.length / 2) return peer.version;
  return `${peer.version}; it lacks ${lacking.join(', ')}`;
}

/**
 * Imports a package that only bench/package.json lists. Returns undefined if it is not installed. The caller declares
 * the type, because the package's own types may not be installed.
 */
export async function importIfThere<T>(specifier: string): Promise<T | undefined> {
  try {
    // Node puts a CommonJS module's exports under `default`. tsx exposes them by name if the module was compiled from
    // ES modules.
    const module = await import(specifier);
    return module.default ?? module;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code?.endsWith('MODULE_NOT_FOUND')) return undefined;
    throw error;
  }
}
