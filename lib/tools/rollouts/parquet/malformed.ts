// The error that the readers of a Parquet file's parts throw. They do not know the file's name.
import { type DetailsAtPlace, describeFailure } from '../source.js';

/** A flaw of the file. The reader of its rows adds the file's name. */
export class Malformed extends Error {
  readonly details: DetailsAtPlace;

  constructor(expected: string, received: string | number, rest: DetailsAtPlace = {}) {
    super('a malformed Parquet file');
    this.details = { expected, received: String(received), ...rest };
  }

  /** Returns the flaw because of which a library could not decode a part of the file. */
  static because(what: string, error: unknown): Malformed {
    return error instanceof Malformed
      ? error
      : new Malformed(`${what} of a Parquet file`, describeFailure(error));
  }
}
