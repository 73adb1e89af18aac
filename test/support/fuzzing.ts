/** What the fuzzers share: they search for a failing case with fast-check, and print the outcome as a test suite does. */
import fc from 'fast-check';

/** A case that failed, shrunk as far as possible, and the message of its error. */
export interface Failure<C> {
  /** The seed of the round in which the case was drawn. */
  seed: number;
  case: C;
  message: string;
}

/** What to search for, and for how long. */
export interface Search<C> {
  seconds: number;
  seed: number;
  cases: fc.Arbitrary<C>;
  /** The number of cases in a round. Each round has a seed of its own. */
  casesPerRound: number;
  /** Runs a case. Must throw an error if the case fails. */
  run: (one: C) => Promise<void>;
  /** Called after each round. */
  afterRound?: () => void;
}

/** Runs rounds of random cases until the time is over or a case fails. */
export async function search<C>({
  seconds,
  seed,
  cases,
  casesPerRound,
  run,
  afterRound,
}: Search<C>): Promise<Failure<C> | undefined> {
  // fast-check's own time limits would leave the last case running. So cases pass without being run after this time.
  let until = performance.now() + 1000 * seconds;
  let hasFailed = false;
  const runInTime = async (one: C) => {
    if (performance.now() > until) return;
    try {
      await run(one);
    } catch (error) {
      if (!hasFailed) until = performance.now() + SHRINKING_MS;
      hasFailed = true;
      throw error;
    }
  };
  for (let round = 0; performance.now() < until; round++) {
    const details = await fc.check(fc.asyncProperty(cases, runInTime), {
      seed: seed + round,
      numRuns: casesPerRound,
    });
    afterRound?.();
    if (details.failed && details.counterexample)
      return {
        seed: seed + round,
        case: details.counterexample[0],
        message: String((details.errorInstance as Error)?.message ?? details.errorInstance),
      };
  }
  return undefined;
}

const SHRINKING_MS = 20_000;

/** Returns the message about a failure. It contains the case as JSON, which the fuzzer's option --case repeats. */
export function describeFailure({ message, case: failing, seed }: Failure<unknown>): string {
  return `${message}\ncase: ${JSON.stringify(failing)}\nseed: ${seed}`;
}

/** Returns the seed in the environment variable POLICY_LOSS_FUZZ_SEED, or one that depends on the time. */
export function chosenSeed(): number {
  return Number(process.env.POLICY_LOSS_FUZZ_SEED ?? Date.now() % 2 ** 31);
}

/**
 * Prints the outcome of a fuzzer.
 * @param what what was run, in one line.
 * @param passing the number to print as the number of passing tests.
 * @param fault what failed; undefined if nothing did.
 */
export function conclude(what: string, passing: number, fault: string | undefined): void {
  console.log(`  ${what}`);
  if (fault === undefined) console.log(`  ${passing} passing`);
  else {
    console.log('  1 failing');
    console.error(fault);
    process.exitCode = 1;
  }
}
