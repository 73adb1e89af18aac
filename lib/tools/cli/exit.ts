// How a command ends with an exit code of its own.

/** Thrown by a command that has printed its result and ends with exit code 1, because the result is not good. */
export class BadResult extends Error {}
