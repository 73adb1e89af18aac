/**
 * Numbers at random that are the same in every run, from a seed: mulberry32. A linear congruential generator would not
 * do for columns of a batch, as its values 2^22 places apart are nearly the same but for a constant.
 */
export function generator(seed: number) {
  let state = seed >>> 0;
  /** In [0, 1). */
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  /** In [low, high]. */
  const integer = (low: number, high: number) => low + Math.floor(uniform() * (high - low + 1));
  return { uniform, normal, integer };
}
