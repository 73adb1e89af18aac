/**
 * Tests that every rollout file gives the right rows or a LossError, within limits on memory and time, and that no text
 * from a file reaches the terminal as a control character. The suite reads valid files of every format, repeats cases
 * that failed in the past, and runs the file fuzzer briefly with a fixed seed. `npm run fuzz:files` runs it for longer,
 * each time with another seed.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { type FileCase, FORMATS } from './cases.js';
import { fuzzFiles, Runner } from './run.js';

const SEED = 2026;
const SECONDS = 5;
const VARIANTS = 6;
const REGRESSIONS = new URL('./regressions/', import.meta.url);

describe('files', () => {
  let runner: Runner;
  before(() => {
    runner = new Runner();
  });
  after(() => runner.close());

  for (const format of FORMATS)
    it(`${format}: valid files of every variant give the right rows`, async () => {
      const { read } = runner.outcome;
      for (let variant = 0; variant < VARIANTS; variant++) {
        const content = { seed: variant, rows: 5, tokens: 7 };
        await runner.run({ format, content, variant, mutations: [], left: 1000, command: variant });
      }
      assert.equal(runner.outcome.read, read + VARIANTS);
    });

  for (const name of readdirSync(REGRESSIONS))
    it(`${name} passes`, async () => {
      const one: FileCase = JSON.parse(readFileSync(new URL(name, REGRESSIONS), 'utf8'));
      await runner.run(one);
    });

  it('open no socket', () => runner.endReader());

  for (const [what, formats] of [
    ['cases', FORMATS],
    ['pickles', ['pickle']],
  ] as const)
    it(`hold in random ${what}`, async () => {
      const { executions, fault } = await fuzzFiles(SECONDS, SEED, formats);
      assert.equal(fault, undefined);
      assert.ok(executions > 0);
    });
});
