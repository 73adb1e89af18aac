/**
 * Tests how curves are sampled: points are dense where a curve bends, so that kinks and jumps are drawn at the right
 * ratio.
 */
import assert from 'node:assert/strict';
import { type Curve, sampleCurve } from '../../../lib/tools/cli/report/curves.js';
import { lossSubject } from './support.js';

const RANGE = { low: -Math.log(2), high: Math.log(4) };

describe('sampling curves', () => {
  it('finds the ends of a clip range, and includes ratio 1', () => {
    const points = sampleCurve(lossSubject('ppo').curve, RANGE)!;
    assert.ok(points.length < 400, `${points.length} points`);
    assert.ok(points.every(({ logRatio }, i) => i === 0 || logRatio > points[i - 1]!.logRatio));
    assert.deepEqual([points[0]!.logRatio, points.at(-1)!.logRatio], [RANGE.low, RANGE.high]);
    assert.ok(points.some(({ logRatio }) => logRatio === 0));
    // PPO's gradient for advantage 1 is 0 above ratio 1.2. For advantage −1 it is 0 below ratio 0.8 and above ratio 3.
    for (const [series, ratio] of [
      [1, 1.2],
      [3, 0.8],
      [3, 3],
    ] as const) {
      const jump = points.findIndex(
        ({ values, logRatio }, i) =>
          i > 0 &&
          Math.abs(Math.exp(logRatio) - ratio) < 0.05 &&
          (values[series] === 0) !== (points[i - 1]!.values[series] === 0),
      );
      const [before, after] = [points[jump - 1]!, points[jump]!].map(({ logRatio }) => Math.exp(logRatio));
      assert.ok(
        before! <= ratio && after! >= ratio && after! - before! < 1e-3,
        `${ratio}: ${before} to ${after}`,
      );
    }
  });

  it('finds a clip range far narrower than a step', () => {
    const points = sampleCurve(lossSubject('gspo').curve, RANGE)!;
    const inside = points.filter(({ logRatio }) => logRatio !== 0 && Math.abs(logRatio) < 4e-4);
    assert.ok(inside.length >= 4, `${inside.length} points in the clip range`);
  });

  it('keeps values that are not finite', () => {
    const curve: Curve = (advantage, ratios) => ({
      loss: ratios.map((r) => (r > 2 ? Number.NaN : advantage * r)),
      grad: ratios.map(() => Number.POSITIVE_INFINITY),
    });
    const points = sampleCurve(curve, RANGE)!;
    for (const { logRatio, values } of points) {
      const ratio = Math.exp(logRatio);
      const loss = ratio > 2 ? Number.NaN : ratio;
      assert.deepEqual(values, [loss, Number.POSITIVE_INFINITY, -loss, Number.POSITIVE_INFINITY]);
    }
  });

  it('returns nothing for a subject without a curve', () => {
    assert.equal(
      sampleCurve(() => undefined, RANGE),
      undefined,
    );
  });
});
