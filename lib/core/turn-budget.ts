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
// The weight of a new time in the average, and how many times as long as expected it may count as. So a call that was
// interrupted by another process does not change the average much.
const WEIGHT = 1 / 8;
const MOST_TIMES = 4;

let spent = 0;
let turnEnds = false;
let helps = false;

/** The expected times of the calls of one function. */
export class CallCost {
  #perToken: number;

  /** @param programWords the length of the function's program, or 0 for a built-in function. */
  constructor(programWords: number) {
    this.#perToken = Math.max(FIRST_GUESS.builtIn, FIRST_GUESS.programWord * programWords);
  }

  /** Returns whether a call with so many tokens may be computed at once in this turn of the event loop. */
  fits(tokens: number): boolean {
    return this.isSmall(tokens) && spent + this.#perToken * tokens <= TURN;
  }

  /** Returns whether a call with so many tokens may be computed at once in some turn. */
  isSmall(tokens: number): boolean {
    return tokens <= MOST_TOKENS && this.#perToken * tokens <= CALL;
  }

  /** Computes a call with so many tokens at once. */
  run<T>(tokens: number, compute: () => T): T {
    const start = performance.now();
    try {
      return compute();
    } finally {
      const time = performance.now() - start;
      this.#learn(time / Math.max(tokens, 1));
      spend(time);
    }
  }

  #learn(perToken: number): void {
    const counted = Math.min(perToken, MOST_TIMES * this.#perToken);
    this.#perToken += WEIGHT * (counted - this.#perToken);
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
