// Fuzzes the readers of rollout files: makes valid files of every format, changes their fields, and reads them with the
// library and with `evaluate`. Each file must give the right rows or a LossError. Another exception, a crash, a hang,
// more than 1 GB of memory or a control character in the output is a failure.
//
//   npm run fuzz:files [-- --minutes N]                 default: 60
//   npm run fuzz:files -- --format pickle               one format, such as random pickles
//   npm run fuzz:files -- --case JSON                   runs one case; JSON is what a failure prints
//
// The environment variable POLICY_LOSS_FUZZ_SEED sets the seed, which is otherwise the time. When a fault is fixed, add
// its case to test/fuzz-files/regressions, in a file named after the fault.
import { parseArgs } from 'node:util';
import { chosenSeed, conclude } from '../support/fuzzing.js';
import { FORMATS, type Format } from './cases.js';
import { fuzzFiles, Runner } from './run.js';

const { values: flags } = parseArgs({
  options: {
    case: { type: 'string' },
    format: { type: 'string' },
    minutes: { type: 'string', default: '60' },
  },
});

if (flags.case !== undefined) {
  const runner = new Runner();
  try {
    await runner.run(JSON.parse(flags.case));
    await runner.endReader();
    console.log(`passed, with ${Math.round(runner.outcome.memory / 1e6)} MB of memory`);
  } finally {
    runner.close();
  }
} else {
  const seed = chosenSeed();
  const all: readonly Format[] = [...FORMATS, 'pickle'];
  const formats = all.filter((format) => flags.format === undefined || format === flags.format);
  const { executions, read, memory, fault } = await fuzzFiles(60 * Number(flags.minutes), seed, formats);
  const what = `file fuzzer: ${executions} files in ${flags.minutes} minutes, ${read} of them readable`;
  conclude(`${what}, at most ${Math.round(memory / 1e6)} MB, seed ${seed}`, 1, fault);
}
