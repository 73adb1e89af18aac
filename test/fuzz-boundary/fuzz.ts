// The fuzzer of the JavaScript boundary: any value at any argument position of any public function gives a result or a
// LossError, never another exception, a crash or a hang. Prints what it did as a test suite does, and one line more with
// the executions and the seed.
//
//   npx tsx test/fuzz-boundary/fuzz.ts [SECONDS]       or POLICY_LOSS_FUZZ_SECONDS; 60 by default
//   POLICY_LOSS_FUZZ_SEED=1 npx tsx …                  a run again; else the seed is of the time
//   npx tsx test/fuzz-boundary/fuzz.ts --case JSON     one case, as a fault prints it
import { parseArgs } from 'node:util';
import { fuzz } from './watch.js';

const { values: flags, positionals } = parseArgs({
  options: { case: { type: 'string' } },
  allowPositionals: true,
});

if (flags.case !== undefined) {
  const { run } = await import('./cases.js');
  await run(JSON.parse(flags.case));
  console.log('a result, or a LossError');
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
