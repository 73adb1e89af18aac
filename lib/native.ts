// Loads the native module, once.
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type { NativeBinding } from '../binding.js';

const require = createRequire(import.meta.url);

// POLICY_LOSS_NATIVE names another build of the module, such as the one with an emulated GPU that tests use.
function load(): NativeBinding {
  const other = process.env.POLICY_LOSS_NATIVE;
  if (other) return require(other) as NativeBinding;
  const find = require('node-gyp-build') as (directory: string) => NativeBinding;
  return find(fileURLToPath(new URL('..', import.meta.url)));
}

/** The native module. */
export const native: NativeBinding = load();
