// Decides which asynchronous calls the JavaScript thread computes at once. Waking another thread and being woken by it
// takes longer than computing a small batch. But awaiting a call that was computed at once does not let timers and I/O
// run, so the time of such calls is limited between two turns of the event loop.
import { setImmediate } from 'node:timers';
import { native } from './native.js';

/** The time in milliseconds that calls computed at once may take in one turn of the event loop, all together. */
const TURN = 0.05;
/** The largest expected time of one such call. */
const CALL = TURN / 2;
/** The number of tokens up to which native code computes a batch without other threads. */
const MOST_TOKENS = 16_384;

/** A guess of the time per token in milliseconds, for built-in functions and per word of a program. */
const FIRST_GUESS = { builtIn: 4e-6, programWord: 1e-6 };
/** A smaller batch takes about as long as one of this size, because a call takes some microseconds in any case. */
const LEAST_TOKENS = 1024;
/**
 * The number of calls of which the fastest tells the expected time. The first calls are slow, because JavaScript is not
 * compiled yet, and later ones may be interrupted by other processes.
 */
const WINDOW = 16;
/**
 * A function whose calls take too long is tried again, if it was expected to take at most this many times as long as it
 * may: first after FIRST_PATIENCE calls, and then after twice as many each time.
 */
const MOST_TIMES = 4;
const FIRST_PATIENCE = 64;

let spent = 0;
let turnEnds = false;
let helps = false;

/** The expected times of the calls of one function. */
export class CallCost {
  #perToken: number;
  // The fastest of the calls of a window that have been timed, and their number.
  #fastest = Number.POSITIVE_INFINITY;
  #timed = 0;
  // The calls that were expected to take too long, since the last one that was tried nevertheless.
  #tooLong = 0;
  #patience = FIRST_PATIENCE;

  /** @param programWords the length of the function's program, or 0 for a built-in function. */
  constructor(programWords: number) {
    this.#perToken = Math.max(FIRST_GUESS.builtIn, FIRST_GUESS.programWord * programWords);
  }

  /** Returns whether a call with so many tokens is to be computed at once in this turn of the event loop. */
  fits(tokens: number): boolean {
    if (tokens > MOST_TOKENS) return false;
    const expected = this.#expected(tokens);
    return expected <= CALL ? spent + expected <= TURN : this.#isTried(expected);
  }

  /** Returns whether a call with so many tokens may be computed at once in some turn. */
  isSmall(tokens: number): boolean {
    return tokens <= MOST_TOKENS && this.#expected(tokens) <= CALL;
  }

  /** Computes a call with so many tokens at once. */
  run<T>(tokens: number, compute: () => T): T {
    const start = performance.now();
    try {
      return compute();
    } finally {
      const time = performance.now() - start;
      this.#learn(time / Math.max(tokens, LEAST_TOKENS));
      spend(time);
    }
  }

  #expected(tokens: number): number {
    return this.#perToken * Math.max(tokens, LEAST_TOKENS);
  }

  #isTried(expected: number): boolean {
    if (expected > MOST_TIMES * CALL || spent > 0 || ++this.#tooLong < this.#patience) return false;
    this.#tooLong = 0;
    this.#patience *= 2;
    // The window begins anew and ends with this call. If the call is faster than expected, its time is what is expected
    // from now on. If it is slower, it may have been interrupted, and nothing changes.
    this.#fastest = this.#perToken;
    this.#timed = WINDOW - 1;
    return true;
  }

  #learn(perToken: number): void {
    this.#fastest = Math.min(this.#fastest, perToken);
    if (++this.#timed < WINDOW) return;
    this.#perToken = this.#fastest;
    this.#fastest = Number.POSITIVE_INFINITY;
    this.#timed = 0;
  }
}

function spend(time: number): void {
  spent += time;
  if (turnEnds) return;
  turnEnds = true;
  setImmediate(endTurn);
}

/** Tells that a small call was handed over to other threads. This thread helps them after the turn. */
export function handedOver(): void {
  helps = true;
  spend(0);
}

function endTurn(): void {
  spent = 0;
  turnEnds = false;
  if (!helps) return;
  helps = native.help(1000 * TURN);
  if (helps) spend(0);
}
