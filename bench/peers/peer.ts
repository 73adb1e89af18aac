// The interface of peers: other implementations of this package's functions, which compute the same results from the
// same inputs.
import type { Inputs } from '../lib/batch.js';
import type { Contender } from '../lib/race.js';
import type { Outcome, Work } from '../lib/works.js';

/** Another implementation of this package's functions, whose speed is compared with the package's. */
export interface Peer {
  /** The peer's name in tables, such as 'eager PyTorch'. */
  readonly name: string;
  readonly version: string;
  /** Returns whether the peer implements a function. */
  covers(work: Work): boolean;
  /** Converts inputs to the peer's own form. All following calls use these inputs. */
  load(inputs: Inputs): Promise<void>;
  /**
   * Prepares a function on the loaded inputs. It computes loss and metrics and, if `gradient` is true, the gradients.
   */
  prepare(work: Work, gradient: boolean): Promise<Prepared>;
  end(): Promise<void>;
}

/** A function of a peer that is ready to be called and timed. */
export interface Prepared extends Contender {
  /** Computes the results, so that they can be compared with this package's. */
  evaluate(): Promise<Outcome>;
  /** Frees what prepare() has allocated. */
  release(): Promise<void>;
}

/** A peer, or the reason why it is absent. */
export type Found = Peer | { readonly name: string; readonly absent: string };

/**
 * Describes a peer for the output of a run: its version, or why it is absent. If the peer covers at least half of the
 * functions but not all, the text also names the ones that it lacks. These are timed without the peer.
 */
export function describePeer(peer: Found, works: readonly Work[]): string {
  if ('absent' in peer) return `absent: ${peer.absent}`;
  const lacking = works.filter((work) => work.computes && !peer.covers(work)).map(({ id }) => id);
  if (lacking.length === 0 || lacking.length > works.length / 2) return peer.version;
  return `${peer.version}; it lacks ${lacking.join(', ')}`;
}

/**
 * Imports a package that only bench/package.json lists. Returns undefined if it is not installed. The caller declares
 * the module's type, because the package's own types may not be installed.
 */
export async function importIfThere<T>(specifier: string): Promise<T | undefined> {
  try {
    // Node puts the exports of a CommonJS module under `default`. tsx instead puts them on the module itself if the
    // module was compiled from ES modules.
    const module = await import(specifier);
    return module.default ?? module;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code?.endsWith('MODULE_NOT_FOUND')) return undefined;
    throw error;
  }
}
