// Options as people and configuration files write them: camelCase in code, snake_case in Trinity-RFT's files.
import { describeValue, guarded, LossError, unknownOption } from './errors.js';

/** A value in Trinity-RFT's configuration files. */
export type TrinityValue = number | boolean | string | null | undefined;
/** Arguments under Trinity-RFT's names (snake_case). */
export type TrinityArgs = Record<string, TrinityValue>;

/** How the losses of a batch's B rows of T tokens become one number; masked tokens count nowhere. */
export type LossAggMode =
  /** The mean of all tokens. */
  | 'token-mean'
  /** The mean over rows of the sum of each row's tokens. */
  | 'seq-mean-token-sum'
  /** The mean over rows of the mean of each row's tokens. */
  | 'seq-mean-token-mean'
  /** The sum of all tokens, divided by T. */
  | 'seq-mean-token-sum-norm';

const LOSS_AGG_MODES: readonly LossAggMode[] = [
  'token-mean',
  'seq-mean-token-sum',
  'seq-mean-token-mean',
  'seq-mean-token-sum-norm',
];

/** `clip_range_low` → `clipRangeLow`. */
export function toCamelCase(key: string): string {
  return key.replace(/_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** `clipRangeLow` → `clip_range_low`. */
export function toSnakeCase(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** The same arguments under camelCase keys; either spelling is taken. */
export function fromTrinityArgs(args: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(args).map(([key, value]) => [toCamelCase(key), value]));
}

/**
 * Reads options one by one and checks each: every complaint names the option, what it must be and what came.
 * null counts as not given, as Python's None does.
 */
export class OptionReader {
  readonly #owner: string;
  readonly #given: Readonly<Record<string, unknown>>;
  readonly #known = new Set<string>(['backend']);

  constructor(owner: string, given: unknown) {
    if (given !== undefined && (given === null || typeof given !== 'object'))
      throw new LossError(
        'ERR_INVALID_OPTION',
        `${owner}: options must be an object, not ${describeValue(given)}`,
      );
    this.#owner = owner;
    this.#given = (given ?? {}) as Record<string, unknown>;
  }

  /** Whose names the batch's keys may have. */
  get backend(): string {
    return (this.#take('backend') ?? 'verl') as string;
  }

  /** The complaint that an option is not as it must be. */
  invalid(key: string, must: string, value = this.#take(key)): LossError {
    return new LossError(
      'ERR_INVALID_OPTION',
      `${this.#owner}: ${key} must be ${must}, not ${describeValue(value)}`,
    );
  }

  /** A finite number within bounds; `fallback` where it is not given. */
  number<F extends number | undefined>(
    key: string,
    fallback: F,
    range?: { holds: (x: number) => boolean; says: string },
  ): number | F {
    const value = this.#take(key);
    if (value === undefined) return fallback;
    if (typeof value !== 'number' || !Number.isFinite(value) || (range && !range.holds(value)))
      throw this.invalid(key, range ? `a number ${range.says}` : 'a finite number', value);
    return value;
  }

  /** A whole number of at least 1. */
  count(key: string, fallback: number, least = 1): number {
    return this.number(key, fallback, {
      holds: (x) => Number.isInteger(x) && x >= least,
      says: `that is whole and at least ${least}`,
    });
  }

  boolean(key: string, fallback: boolean): boolean {
    const value = this.#take(key);
    if (value === undefined) return fallback;
    if (typeof value !== 'boolean') throw this.invalid(key, 'true or false', value);
    return value;
  }

  choice<C extends string>(key: string, fallback: C, choices: readonly C[]): C {
    const value = this.#take(key);
    if (value === undefined) return fallback;
    if (typeof value !== 'string' || !(choices as readonly string[]).includes(value))
      throw this.invalid(key, `one of ${choices.join(', ')}`, value);
    return value as C;
  }

  lossAggMode(fallback: LossAggMode, key = 'lossAggMode'): LossAggMode {
    return this.choice(key, fallback, LOSS_AGG_MODES);
  }

  /** To be called last: an option that nobody has asked for is a mistake of the caller's. */
  end(): void {
    const keys = guarded(() => Object.keys(this.#given), 'ERR_INVALID_OPTION');
    for (const key of keys)
      if (!this.#known.has(key)) throw unknownOption(this.#owner, key, [...this.#known]);
  }

  #take(key: string): unknown {
    this.#known.add(key);
    return guarded(() => this.#given[key] ?? undefined, 'ERR_INVALID_OPTION');
  }
}

/** Checks an aggregation mode that came as an argument of its own. */
export function checkLossAggMode(owner: string, mode: unknown): LossAggMode {
  return new OptionReader(owner, { lossAggMode: mode }).lossAggMode('token-mean');
}
