/** Tests sketches, which approximate a distribution in constant memory, against the sorted values. */
import assert from 'node:assert/strict';
import { binsFor, Sketch } from '../../../lib/tools/cli/report/sketch.js';
import { Fields } from '../../../lib/tools/parts/fields.js';
import { generator } from '../../support/random.js';

function sketchOf(values: Iterable<number>): Sketch {
  const sketch = new Sketch();
  for (const x of values) sketch.add(x);
  return sketch;
}

// Yields numbers from [0, 1). They look random but are the same in every run.
function* sequence(count: number): Generator<number> {
  const { uniform } = generator(1);
  for (let i = 0; i < count; i++) yield uniform();
}

describe('a sketch', () => {
  it('has quantiles within 1/128 of the sorted values, at any scale', () => {
    for (const scale of [1e-12, 1, 1e9]) {
      const values = [...sequence(20_000)].map((u) => Math.fround(scale * Math.tan(Math.PI * (u - 0.5))));
      const sketch = sketchOf(values);
      values.sort((a, b) => a - b);
      for (const q of [0, 0.001, 0.01, 0.25, 0.4, 0.75, 0.99, 0.999, 1]) {
        const exact = values[Math.min(Math.floor(q * values.length), values.length - 1)]!;
        const found = sketch.quantile(q);
        assert.ok(Math.abs(found - exact) <= Math.abs(exact) / 128, `${q}: ${found}, expected ${exact}`);
      }
      assert.equal(sketch.count, values.length);
      assert.deepEqual([sketch.min, sketch.max], [values[0], values.at(-1)]);
    }
  });

  it('is exact for repeated values', () => {
    const [a, b] = [Math.fround(-0.7), Math.fround(1.3)];
    const sketch = sketchOf([b, a, b, 0, b, a, b]);
    assert.deepEqual(
      [0, 0.3, 0.5, 1].map((q) => sketch.quantile(q)),
      [a, 0, b, b],
    );
    assert.equal(sketch.zeros, 1);
  });

  it('counts values that are not finite separately', () => {
    const sketch = sketchOf([1, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 1e300, 2]);
    assert.deepEqual([sketch.count, sketch.nonFinite, sketch.min, sketch.max], [2, 4, 1, 2]);
    assert.ok(Number.isNaN(new Sketch().quantile(0.5)));
  });

  it('puts every value into the right bin', () => {
    const values = [...sequence(5000)].map((u) => u * 8 - 3);
    const sketch = sketchOf(values);
    const { low, width, counts } = sketch.histogram(binsFor(sketch.view(), 40, false));
    assert.ok(Math.abs(counts.reduce((sum, n) => sum + n, 0) - 5000) < 1e-6);
    counts.forEach((n, i) => {
      const inside = values.filter((x) => x >= low + i * width && x < low + (i + 1) * width).length;
      assert.ok(Math.abs(n - inside) <= 0.1 * inside + 3, `bin ${i}: ${n}, expected about ${inside}`);
    });
  });

  it('leaves zeros out on request', () => {
    const sketch = sketchOf([0, 0, 0, -0, 1, -1]);
    const total = (zeros: boolean) =>
      sketch.histogram(binsFor(sketch.view(), 10, false), zeros).counts.reduce((sum, n) => sum + n, 0);
    assert.deepEqual([total(true), total(false)], [6, 2]);
  });

  it('shows the whole range except for outliers', () => {
    assert.deepEqual(sketchOf([-1, 0, 2]).view(), { low: -1, high: 2 });
    const { low, high } = sketchOf([...[...sequence(1000)].map((u) => 1 + u), 1e6]).view();
    assert.ok(low >= 1 && low < 1.1 && high > 1.9 && high < 3, `${low} to ${high}`);
  });

  it('has the same bits for any order and any division of the values', () => {
    const values = [...sequence(3000)].map((u) => Math.tan(Math.PI * (u - 0.5)));
    values.push(0, -0, Number.NaN, 1e-42, -1e-42);
    const whole = sketchOf(values);
    const merged = sketchOf(values.slice(1700).reverse());
    merged.merge(sketchOf([]));
    merged.merge(sketchOf(values.slice(0, 1700)));
    assert.ok(merged.equals(whole));
    assert.deepEqual(merged.toJson(), whole.toJson());
    const again = Sketch.from(new Fields('a.part', JSON.parse(JSON.stringify(merged.toJson()))));
    assert.ok(again.equals(whole));
    for (const q of [0, 0.1, 0.5, 0.999, 1]) assert.equal(again.quantile(q), whole.quantile(q));
    assert.deepEqual(again.view(), whole.view());
  });

  it('makes bins for a single value', () => {
    for (const x of [0, 1, -2.5e-7, 3e8]) {
      const sketch = sketchOf([x, x, x]);
      const { counts } = sketch.histogram(binsFor(sketch.view(), 72, true));
      assert.deepEqual(
        counts.filter((n) => n > 0),
        [3],
      );
    }
  });
});
