// Fuzzes the JavaScript boundary: calls every public function with hostile arguments. Each call must give a result or a
// LossError, and never another exception, a crash or a hang. Prints the number of calls and the seed, and counts of
// passing and failing functions like a test suite.
//
//   npx tsx test/fuzz-boundary/fuzz.ts [SECONDS]       default: POLICY_LOSS_FUZZ_SECONDS, or 60
//   POLICY_LOSS_FUZZ_SEED=1 npx tsx …                  repeats a run; by default the time is the seed
//   npx tsx test/fuzz-boundary/fuzz.ts --case JSON     runs one case in the form in which failures print it
import { parseArgs } from 'node:util';
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
  const seed = Number(process.env.POLICY_LOSS_FUZZ_SEED ?? Date.now() % 2 ** 31);
  const { executions, functions, fault } = await fuzz(seconds, seed);
  console.log(
    `  boundary fuzzer: ${executions} executions of ${functions} functions in ${seconds} s, seed ${seed}`,
  );
  if (fault === undefined) console.log(`  ${functions} passing`);
  else {
    console.log('  1 failing');
    console.error(fault);
    process.exitCode = 1;
  }
}
