/** Helpers that convert, remove and rename the keys of batches. */
import type { Batch } from '../../lib/index.js';

/** Converts snake case to camel case: `group_ids` becomes `groupIds`. */
export const camelCase = (key: string): string =>
  key.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** Returns a copy of a batch without some of its keys. */
export const without = (batch: object, ...keys: string[]): Batch =>
  Object.fromEntries(Object.entries(batch).filter(([key]) => !keys.includes(key)));

/** Returns a copy of a batch with every key renamed. */
export const renamed = (batch: object, rename: (key: string) => string): Batch =>
  Object.fromEntries(Object.entries(batch).map(([key, value]) => [rename(key), value]));
