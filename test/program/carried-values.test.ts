/** Tests which values the loops of compiled segments compute a step ahead. */
import assert from 'node:assert/strict';
import { type Instruction, MOST_CARRIED, scheduleOf } from '../../scripts/generate/carried-values.js';

const REGISTER = 0;
const COLUMN = 1;
const r = (index: number) => [REGISTER, index] as const;
const c = (index: number) => [COLUMN, index] as const;
const instruction = (op: string, out: number, ...operands: Instruction['operands']) => ({
  op,
  out,
  operands,
});

const schedule = (segment: readonly Instruction[], columns: number) =>
  scheduleOf(
    segment,
    MOST_CARRIED,
    columns,
    ([kind]) => kind === REGISTER,
    ({ op }) => op !== 'grad',
  );

/** Returns the numbers of a segment's carried values, if its loop reads and writes so many columns. */
const carriedOf = (segment: readonly Instruction[], columns = 1) => schedule(segment, columns).carried;

describe('values that loops compute a step ahead', () => {
  it('are exponentials and the arithmetic before them, if they are read later', () => {
    const segment = [
      instruction('sub', 0, c(0), c(1)),
      instruction('clip', 1, r(0), c(2), c(2)),
      instruction('exp', 2, r(1)),
      instruction('mul', 1, r(2), r(0)),
      instruction('grad', 0, r(1), c(2)),
    ];
    assert.deepEqual(carriedOf(segment), [0, undefined, 1, undefined, undefined]);
  });

  it('do not depend on other exponentials', () => {
    const segment = [
      instruction('exp', 0, c(0)),
      instruction('sigmoid', 1, r(0)),
      instruction('grad', 0, r(1), c(1)),
    ];
    assert.deepEqual(carriedOf(segment), [0, undefined, undefined]);
  });

  it('have one number for all instructions that compute the same', () => {
    const segment = [
      instruction('sub', 0, c(0), c(1)),
      instruction('exp', 1, r(0)),
      instruction('mul', 1, r(1), c(2)),
      instruction('grad', 0, r(1), c(2)),
      instruction('sub', 2, c(0), c(1)),
      instruction('exp', 0, r(2)),
      instruction('grad', 0, r(0), c(2)),
    ];
    assert.deepEqual(carriedOf(segment), [undefined, 0, undefined, undefined, undefined, 0, undefined]);
  });

  it('are none in a loop that has little to compute for each column', () => {
    const segment = [instruction('exp', 0, c(0)), instruction('grad', 0, r(0), c(1))];
    assert.deepEqual(schedule(segment, 1), { isLong: true, carried: [0, undefined] });
    assert.deepEqual(schedule(segment, 2), { isLong: false, carried: [0, undefined] });
    assert.deepEqual(schedule(segment, 3), { isLong: false, carried: [undefined, undefined] });
  });

  it('are none if the registers would not suffice', () => {
    const segment = Array.from({ length: 7 }, (_, i) => [
      instruction('exp', i, c(i)),
      instruction('grad', 0, r(i), c(i)),
    ]).flat();
    const { isLong, carried } = schedule(segment, 1);
    assert.ok(isLong);
    assert.ok(carried.every((number) => number === undefined));
    assert.equal(carriedOf(segment.slice(2)).filter((number) => number !== undefined).length, MOST_CARRIED);
  });
});
