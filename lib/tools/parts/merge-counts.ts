// Merges the counts of all shards.
import { LossError } from '../../index.js';
import { COLUMNS } from '../rollouts/columns.js';
import { describePlace, type RolloutColumn } from '../rollouts/index.js';
import { tooManyRows } from '../rollouts/limits.js';
import { errorAt } from '../rollouts/source.js';
import { joinNumbers, type Numbers } from './growing.js';
import type { WholeCounts } from './part-file.js';
import { joinRowValues } from './row-metrics.js';
import type { ShardRows } from './shard.js';
import type { GroupInputs, NumberedIds, ShardCounts } from './shard-counts.js';

/**
 * Merges the counts of all shards. The result is the same as if the rows of all shards had been counted at once.
 * @param all the counts in the order of the shards.
 * @param maxRows the maximum number of rows in all shards.
 * @throws LossError if the rows of one shard have other columns than those of another, and if there are too many rows
 * or none.
 */
export function mergeCounts(all: readonly ShardCounts[], maxRows: number): WholeCounts {
  const shards: ShardRows[] = [];
  let start = 0;
  for (const { rows, tokens } of all) {
    shards.push({ start, rows, tokens });
    start += rows;
  }
  if (start > maxRows) throw new LossError('ERR_OUT_OF_MEMORY', tooManyRows(maxRows));
  const counts = all.filter(({ rows }) => rows > 0);
  const [first] = counts;
  if (!first)
    throw new LossError('ERR_INVALID_INPUT', { expected: 'at least one good row', received: 'none' });
  for (const other of counts) checkColumns(first, other);
  const sum = (of: (each: ShardCounts) => number) => counts.reduce((total, each) => total + of(each), 0);
  const joined = <A extends Numbers>(of: (each: ShardCounts) => A, make: (length: number) => A) =>
    joinNumbers(counts.map(of), make);
  const merged: ShardCounts = {
    ...first,
    rows: start,
    tokens: sum(({ tokens }) => tokens),
    size: sum(({ size }) => size),
    parts: sum(({ parts }) => parts),
    longestRow: Math.max(...counts.map(({ longestRow }) => longestRow)),
    unmasked: joined(({ unmasked }) => unmasked, uint32),
    inputs: Object.fromEntries(
      Object.keys(first.inputs).map((key) => [key, joinInputs(counts.map(({ inputs }) => inputs[key]!))]),
    ),
    spreads: Object.fromEntries(
      Object.keys(first.spreads).map((key) => [key, joined(({ spreads }) => spreads[key]!, float64)]),
    ),
  };
  if (first.expert) merged.expert = joined(({ expert }) => expert!, uint8);
  if (first.steps) merged.steps = joined(({ steps }) => steps!, float64);
  if (first.groups) merged.groups = joinIds(counts.map(({ groups }) => groups!));
  if (first.runs) merged.runs = joinIds(counts.map(({ runs }) => runs!));
  return { counts: merged, shards };
}

/** Throws an error if the rows of two shards do not have the same columns, as within a shard. */
function checkColumns(first: ShardCounts, other: ShardCounts): void {
  const lacks = (a: ShardCounts, b: ShardCounts) => b.columns.find((column) => !a.columns.includes(column));
  const fails = (column: RolloutColumn, received: string) =>
    errorAt(other.first ?? { file: 'a shard' }, 'ERR_MISSING_INPUT', {
      key: column,
      expected: `${COLUMNS[column].expected} in every row or in none`,
      received,
    });
  const place = describePlace(first.first ?? { file: 'another shard' });
  const missing = lacks(other, first);
  if (missing) throw fails(missing, `none here, but one in ${place}`);
  const added = lacks(first, other);
  if (added) throw fails(added, `one here, but none in ${place}`);
  const shape = ({ expert, steps, groups, runs, inputs, spreads }: ShardCounts) =>
    JSON.stringify([
      ...[expert, steps, groups, runs].map((values) => values !== undefined),
      Object.entries(inputs).map(([key, { areSums, meanOldLogprobs, penalty }]) => [
        key,
        areSums,
        meanOldLogprobs !== undefined,
        Object.keys(penalty),
      ]),
      Object.keys(spreads),
    ]);
  if (shape(first) !== shape(other))
    throw errorAt(other.first ?? { file: 'a shard' }, 'ERR_INVALID_INPUT', {
      expected: `counts of the same columns as in ${place}`,
      received: 'others',
    });
}

function joinInputs(all: readonly GroupInputs[]): GroupInputs {
  const [{ areSums, meanOldLogprobs }] = all as [GroupInputs, ...GroupInputs[]];
  return {
    rewards: joinNumbers(
      all.map(({ rewards }) => rewards),
      float64,
    ),
    areSums,
    ...(meanOldLogprobs && {
      meanOldLogprobs: joinNumbers(
        all.map(({ meanOldLogprobs }) => meanOldLogprobs!),
        float64,
      ),
    }),
    penalty: joinRowValues(all.map(({ penalty }) => penalty)),
  };
}

/** Joins ids. They get the numbers that they would have if all rows were read in order. */
function joinIds(all: readonly NumberedIds[]): NumberedIds {
  const known = new Map<number | string, number>();
  const renumbered = all.map((each) => renumber(each, known));
  return { numbers: joinNumbers(renumbered, int32), ids: [...known.keys()] };
}

/**
 * Returns the numbers of the rows' ids, among the ids of all shards so far.
 * @param known the numbers of the ids of the shards before. Receives those of the new ids.
 */
export function renumber({ numbers, ids }: NumberedIds, known: Map<number | string, number>): Int32Array {
  const own = ids.map((id) => {
    const number = known.get(id) ?? known.size;
    known.set(id, number);
    return number;
  });
  return numbers.map((number) => own[number]!);
}

const float64 = (length: number) => new Float64Array(length);
const int32 = (length: number) => new Int32Array(length);
const uint32 = (length: number) => new Uint32Array(length);
const uint8 = (length: number) => new Uint8Array(length);
