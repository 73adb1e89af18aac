/** The dumps that trainers' own code wrote are healthy: the doctor finds no error and no warning, and diff no difference. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { diffDumps } from '../../../lib/tools/diff/index.js';
import { diagnose } from '../../../lib/tools/doctor/index.js';

const path = (name: string) => fileURLToPath(new URL(`../rollouts/fixtures/dumps/${name}`, import.meta.url));
const TRUTH: { file: string; expected: { rows: number; tokens: number } }[] = JSON.parse(
  readFileSync(path('truth.json'), 'utf8'),
);

// The readers warn where a dump does not say whose log-probabilities it has.
const QUIET = { onWarning: () => {} };

describe("trainers' dumps", () => {
  for (const { file, expected } of TRUTH) {
    it(`${file} has no errors and no warnings`, async () => {
      const { rows, tokens, findings, checks } = await diagnose([path(file)], QUIET);
      assert.deepEqual({ rows, tokens }, { rows: expected.rows, tokens: expected.tokens });
      assert.deepEqual(
        findings.filter(({ severity }) => severity !== 'info'),
        [],
      );
      assert.ok(checks.filter(({ ran }) => ran).length > 5);
    });

    it(`${file} is equal to itself`, async () => {
      const { equal, rows, columns } = await diffDumps([path(file)], [path(file)], { read: QUIET });
      assert.deepEqual([equal, rows], [true, expected.rows]);
      const mask = columns.find(({ column }) => column === 'action_mask')!;
      assert.equal(mask.compared, expected.tokens);
    });
  }
});
