/**
 * Tests user-defined losses in objectives whose advantage functions drop or repeat rows. Reductions must count each row
 * as often as it counts in the loss.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { LOSS_AGG_MODES } from '../../lib/base/options.js';
import { ADVANTAGE_FN, defineLoss, POLICY_LOSS_FN } from '../../lib/index.js';
import { expressionFormula, textOf } from '../reference/expression.js';
import { takeRows } from '../reference/objective.js';
import { layOut, rewardSpec } from '../support/draw.js';
import { assertJudged, EXPRESSIONS, judge, OPTIONS } from '../support/expressions.js';
import { completed, objectiveOf, unadvised } from '../support/objective.js';
import { unpack } from '../support/subject.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
const DROPPING = [
  { advantage_fn: 'grpo', advantage_fn_args: { std_threshold: 0.5 } },
  { advantage_fn: 'grpo', advantage_fn_args: { std_threshold: 0.5, duplicate_experiences: true, seed: 4 } },
  { advantage_fn: 'step_wise_grpo', advantage_fn_args: { std_threshold: 0.5, enable_step_norm: true } },
];
const options = Object.fromEntries(
  Object.entries(OPTIONS).map(([name, value]) => [
    name,
    { type: 'number', default: value, help: 'a number' } as const,
  ]),
);

/** Adds up the values of all copies of each row. `rows` names the row that each copy belongs to. */
function folded(
  copies: ArrayLike<number>,
  rows: readonly number[],
  columns: number,
  count: number,
): Float64Array {
  const sums = new Float64Array(count * columns);
  for (let i = 0; i < copies.length; i++)
    sums[rows[Math.floor(i / columns)]! * columns + (i % columns)]! += copies[i]!;
  return sums;
}

describe('losses from expressions in objectives', () => {
  // The losses take the place of a registered one, because other suites in the same process walk the registry.
  const NAME = 'opmd';
  const original = POLICY_LOSS_FN.get(NAME);
  after(() => POLICY_LOSS_FN.register(NAME, original, { replace: true }));

  it('count each row as often as the advantage function says', () => {
    const seen = { dropped: 0, repeated: 0 };
    fc.assert(
      fc.property(
        EXPRESSIONS.batch,
        fc.constantFrom(...DROPPING),
        rewardSpec,
        fc.constantFrom(...LOSS_AGG_MODES),
        (loss, config, drawn, mode) => {
          const bare = unadvised({ ...drawn, rewards: 'binary', groups: 'some' });
          const laid = layOut(bare);
          const { advantages, keptRows, copies } = ADVANTAGE_FN.create(
            config.advantage_fn,
            config.advantage_fn_args,
          ).computeSync(laid);
          const times = Array.from(copies ?? keptRows, Number);
          const rows = times.flatMap((count, b) => new Array<number>(count).fill(b));
          const batch = { ...bare, advantages: bare.rowLengths ? unpack(bare, advantages) : advantages };
          const args = { ...OPTIONS, loss_agg_mode: mode };
          const judged = judge(expressionFormula(loss), args, takeRows(batch, rows));
          if (!judged) return;
          if (times.includes(0)) seen.dropped++;
          if (times.some((count) => count > 1)) seen.repeated++;

          POLICY_LOSS_FN.register(
            NAME,
            defineLoss(NAME, { options, variable: 'logprob', loss: textOf(loss) }),
            { replace: true },
          );
          const objective = objectiveOf('ppo', {
            ...config,
            policy_loss_fn: NAME,
            kl_loss_fn: 'none',
            entropy_loss_fn: 'none',
            loss_agg_mode: mode,
          });
          const { grad, loss: actual } = completed(bare, objective.computeSync(laid, { grad: true }));
          const once = (numbers: ArrayLike<number>) => folded(numbers, rows, bare.columns, bare.rows);
          assertJudged(
            { loss: actual, metrics: {}, grad },
            {
              expected: { ...judged.expected, grad: once(judged.expected.grad) },
              slack: { ...judged.slack, grad: once(judged.slack.grad) },
            },
          );
        },
      ),
      { numRuns: 200, seed: SEED },
    );
    assert.ok(seen.dropped > 40 && seen.repeated > 10, JSON.stringify(seen));
  });
});
