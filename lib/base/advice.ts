// Warnings about unusual options. They are advice to whoever chose the options.
import { emitWarning } from './node.js';

const given = new Set<string>();
let isSilent = false;

/**
 * Emits a warning. It does so only once per process, because a program that chooses an unusual option on purpose may
 * create many objects.
 * @param code identifies the warning.
 */
export function advise(code: string, message: string): void {
  if (isSilent || given.has(code)) return;
  given.add(code);
  emitWarning(message, { code });
}

/** Calls a function without advice. A search tries options that nobody has chosen. */
export function withoutAdvice<T>(act: () => T): T {
  const before = isSilent;
  isSilent = true;
  try {
    return act();
  } finally {
    isSilent = before;
  }
}
