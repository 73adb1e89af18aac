// Fuzzes the JavaScript boundary: calls every public function with hostile arguments. Each call must return a result or
// throw a LossError. Another exception, a crash or a hang is a failure. Prints the number of calls and the seed. Also
// prints the number of passing or failing functions, as a test suite does.
//
//   npx tsx test/fuzz-boundary/fuzz.ts [SECONDS]       default: POLICY_LOSS_FUZZ_SECONDS, or 60
//   POLICY_LOSS_FUZZ_SEED=1 npx tsx …                  repeats a run; by default the seed is the time
//   npx tsx test/fuzz-boundary/fuzz.ts --case JSON     runs one case; JSON is what a failure prints
import { parseArgs } from 'node:util';
import { chosenSeed, conclude } from '../support/fuzzing.js';
import { fuzz } from './watch.js';

const { values: flags, positionals } = parseArgs({
  options: { case: { type: 'string' } },
  allowPositionals: true,
});

if (flags.case !== undefined) {
  const { run } = await import('./cases.js');
  await run(JSON.parse(flags.case));
  console.log('passed: a result or a LossError');
} else {
  const seconds = Number(positionals[0] ?? process.env.POLICY_LOSS_FUZZ_SECONDS ?? 60);
  const seed = chosenSeed();
  const { executions, functions, fault } = await fuzz(seconds, seed);
  const what = `boundary fuzzer: ${executions} executions of ${functions} functions in ${seconds} s, seed ${seed}`;
  conclude(what, functions, fault);
}
