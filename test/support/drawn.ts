/** The random numbers of programs. */

/** Returns the random number of a token: the hash of native/program/draw.h. */
export function drawn(seed: number, row: number, position: number): number {
  const [bits] = new BigUint64Array(Float64Array.of(seed).buffer);
  const step = 0x9e3779b97f4a7c15n;
  const mixed64 = (x: bigint) => {
    let z = BigInt.asUintN(64, x + step);
    z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
    z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn);
    return z ^ (z >> 31n);
  };
  const mixed32 = (x: number) => {
    let y = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    y = Math.imul(y ^ (y >>> 13), 0xc2b2ae35);
    return y ^ (y >>> 16);
  };
  const key = mixed64(mixed64(bits!) + BigInt(row) * step);
  const [low, high] = [Number(BigInt.asIntN(32, key)), Number(BigInt.asIntN(32, key >> 32n))];
  return (mixed32(mixed32((position + low) | 0) ^ high) >>> 8) / 2 ** 24;
}
