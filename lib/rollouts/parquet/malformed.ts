// The error that the readers of a Parquet file's parts throw. They do not know the file's name.
import { type DetailsAtPlace, describeFailure } from '../source.js';

/** A flaw of the file. readParquet() adds the file's name. */
export class Malformed extends Error {
  readonly details: DetailsAtPlace;

  constructor(details: DetailsAtPlace) {
    super('a malformed Parquet file');
    this.details = details;
  }
}

/** Calls a function of a library that decodes a part of the file. Whatever it throws is a flaw of the file. */
export function decoding<T>(what: string, decode: () => T): T {
  try {
    return decode();
  } catch (error) {
    if (error instanceof Malformed) throw error;
    throw new Malformed({ expected: `${what} of a Parquet file`, received: describeFailure(error) });
  }
}
