/**
 * Returns a generator of pseudo-random numbers (mulberry32) that gives the same numbers for the same seed. A linear
 * congruential generator would not do: its values that are 2^22 places apart differ by almost a constant, and long
 * columns would show this.
 */
export function generator(seed: number) {
  let state = seed >>> 0;
  /** Draws a number from [0, 1). */
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  /** Draws an integer from low to high, both included. */
  const integer = (low: number, high: number) => low + Math.floor(uniform() * (high - low + 1));
  return { uniform, normal, integer };
}
