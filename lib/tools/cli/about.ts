// The package's metadata, from package.json.
import { createRequire } from 'node:module';

/** The package's version and its description. */
export const { version, description } = createRequire(import.meta.url)('../../../package.json') as {
  version: string;
  description: string;
};
