/** Tests that trainers' files give rows or a LossError, wherever they are truncated or changed. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { types } from 'node:util';
import fc from 'fast-check';
import { LossError } from '../../../lib/index.js';
import { readRollouts } from '../../../lib/tools/rollouts/index.js';
import { temporaryFolder } from '../../support/temporary-folder.js';

const FOLDER = fileURLToPath(new URL('fixtures/dumps/', import.meta.url));
const SEED = 2026;
const RUNS = Number(process.env.POLICY_LOSS_DUMP_RUNS ?? 60);

/** Asserts that a rejection is a LossError, which does not hide a bug of the package. */
function assertExpected(error: unknown): void {
  assert.ok(error instanceof LossError, `${(error as Error).stack} is not a LossError`);
  for (let cause = error.cause; cause !== undefined; cause = (cause as Error).cause)
    if (types.isNativeError(cause) && ['TypeError', 'RangeError', 'ReferenceError'].includes(cause.name))
      assert.fail(`${error.message}: the cause is ${cause.stack}`);
}

describe("trainers' files, damaged", () => {
  const folder = temporaryFolder();
  const files = readdirSync(FOLDER, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !/^(STABLE|README\.md|truth\.json)$/.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name));

  for (const file of files)
    it(`${file.slice(FOLDER.length)} gives rows or an error`, async () => {
      const bytes = readFileSync(file);
      const isText = basename(file).endsWith('.jsonl');
      const whole = await readRollouts([file], { logprobs: 'optional', onWarning() {} }).catch(
        () => undefined,
      );
      await fc.assert(
        fc.asyncProperty(
          fc.nat(bytes.length - 1),
          fc.array(fc.record({ at: fc.nat(bytes.length - 1), bit: fc.nat(7) }), { maxLength: 4 }),
          async (length, changes) => {
            const changed = Buffer.from(bytes);
            for (const { at, bit } of changes) changed[at]! ^= 1 << bit;
            const isCut = changes.length === 0;
            const damaged = folder.write(basename(file), isCut ? changed.subarray(0, length) : changed);
            try {
              const { rows } = await readRollouts([damaged], { logprobs: 'optional', onWarning() {} });
              assert.ok(!isCut || isText, `read ${length} bytes of ${bytes.length}`);
              assert.ok(!whole || rows <= whole.rows, `${rows} rows instead of ${whole?.rows}`);
            } catch (error) {
              assertExpected(error);
            }
          },
        ),
        { numRuns: RUNS, seed: SEED },
      );
    });
});
