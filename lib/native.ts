// Loads the native module, once.
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { NativeBinding } from '../binding.js';

const load = createRequire(import.meta.url)('node-gyp-build') as (directory: string) => NativeBinding;

/** The native module. */
export const native: NativeBinding = load(fileURLToPath(new URL('..', import.meta.url)));
