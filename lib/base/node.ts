// What the library needs of Node, apart from loading the native module: turns of the event loop, memory that is not
// cleared, and warnings.
import { Buffer, constants } from 'node:buffer';

/** Resolves in a later turn of the event loop, after the I/O of this one. */
export { setImmediate as laterTurn } from 'node:timers/promises';

/**
 * Returns memory with any content, because clearing much memory blocks the event loop for milliseconds. The caller must
 * write all of it before a user can see it.
 */
export function unclearedMemory(bytes: number): ArrayBuffer {
  if (bytes === 0 || bytes > constants.MAX_LENGTH) return new ArrayBuffer(bytes);
  // A Buffer of this kind is not cleared, and has an ArrayBuffer of its own, of exactly its size.
  return Buffer.allocUnsafeSlow(bytes).buffer;
}

/** Emits a warning. A program sees its code or type, and can listen to warnings. */
export function emitWarning(message: string, about: { code: string } | { type: string }): void {
  process.emitWarning(message, about);
}
