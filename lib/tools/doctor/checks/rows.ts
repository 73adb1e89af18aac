// Masks, lengths, and rows that occur twice.
import { Growing } from '../../parts/growing.js';
import { type Check, LONG_ENOUGH, TOKEN_COLUMNS } from '../check.js';
import type { Row } from '../row.js';
import { RowSet } from '../row-table.js';
import { medianOf } from '../sums.js';

/** Returns the number of tokens from the first to the last unmasked one. */
function lengthOf({ mask, tokens }: Row): number {
  return tokens === 0 ? 0 : mask.lastIndexOf(1) - mask.indexOf(1) + 1;
}

const emptyMask: Check = {
  name: 'mask-empty',
  title: 'Rows have no unmasked token',
  needs: [TOKEN_COLUMNS],
  meaning:
    'Such a row adds nothing to the loss. A mean over rows may still count it, which makes every other row weigh less.',
  advice:
    'Drop these rows. They are often padding that fills up the last batch, or responses that were cut to nothing.',
  rule: 'info for any such row, warning from 10% of the rows: filters for truncated responses clear a few masks on purpose',
  measure: (row) => [row.tokens],
  start() {
    const rows = new RowSet();
    let all = 0;
    return {
      add({ 0: tokens }, index) {
        all++;
        if (tokens === 0) rows.add(index);
      },
      finish: () => ({
        severity: rows.size === 0 ? undefined : rows.size >= 0.1 * all ? 'warning' : 'info',
        evidence: { emptyRows: rows.size },
        rows,
      }),
    };
  },
};

const TAIL = 4;

const fullMask: Check = {
  name: 'mask-full',
  title: 'All rows have the same length, and no token is masked',
  needs: [],
  meaning:
    'Responses rarely have equal lengths. This is how padded tensors without a mask look, and then the loss counts padding.',
  advice:
    'Store the response mask with the dump (action_mask). If all responses have this length on purpose, all is well.',
  rule:
    `info if two or more rows of ${LONG_ENOUGH} tokens or more have this; warning if one row in four ends in ${TAIL} ` +
    'equal log-probabilities, which sampled tokens do not have',
  measure(row) {
    const { length } = row.mask;
    const tail = row.firstOf('logprobs', 'old_logprobs', 'rollout_logprobs')?.slice(-TAIL);
    const isEqual = tail?.length === TAIL && tail.every((x) => x === tail[0]);
    return [length, length - row.tokens, Number(isEqual)];
  },
  start() {
    let [masked, rows, tails, shortest, longest] = [0, 0, 0, Number.POSITIVE_INFINITY, 0];
    return {
      add({ 0: length, 1: maskedHere, 2: tail }) {
        rows++;
        masked += maskedHere!;
        shortest = Math.min(shortest, length!);
        longest = Math.max(longest, length!);
        tails += tail!;
      },
      finish() {
        const found = masked === 0 && rows > 1 && shortest === longest && longest >= LONG_ENOUGH;
        const severity = found ? (tails >= rows / 4 ? 'warning' : 'info') : undefined;
        return {
          severity,
          evidence: { length: found ? longest : undefined, maskedTokens: masked, equalTails: tails },
        };
      },
    };
  },
};

const maskHoles: Check = {
  name: 'mask-holes',
  title: 'Masks have holes',
  needs: [],
  meaning:
    'Masked tokens lie between unmasked ones. In rollouts of several turns, these are the tool results and the user.',
  advice:
    'In single-turn training, find what cleared the mask. A shift of the mask by one token leaves such holes at the borders of turns.',
  rule: 'info for any such row, because multi-turn rollouts have them',
  measure: (row) => (lengthOf(row) > row.tokens ? [] : undefined),
  start() {
    const rows = new RowSet();
    return {
      add: (_, index) => rows.add(index),
      finish: () => ({
        severity: rows.size > 0 ? 'info' : undefined,
        evidence: { rowsWithHoles: rows.size },
        rows,
      }),
    };
  },
};

const truncated: Check = {
  name: 'length-truncated',
  title: 'Many responses have exactly the greatest length',
  needs: [],
  meaning:
    'They were probably cut off at the limit, so their rewards judge unfinished answers, and their last token does not end the response.',
  advice: 'Raise the limit, mask truncated responses, or penalise their length.',
  rule:
    'info if 5% of the rows (3 or more) share the greatest length, and 5 times more than share a length just below it; ' +
    'warning from 20%, where truncation decides what is learned',
  measure: (row) => [lengthOf(row)],
  start() {
    const counts = new Map<number, number>();
    const lengths = new Growing((length) => new Uint32Array(length));
    return {
      add({ 0: length }) {
        lengths.push(length!);
        counts.set(length!, (counts.get(length!) ?? 0) + 1);
      },
      finish() {
        const longest = lengths.values.reduce((most, length) => Math.max(most, length), 0);
        const atLimit = counts.get(longest) ?? 0;
        const share = lengths.length === 0 ? 0 : atLimit / lengths.length;
        const low = Math.ceil(0.8 * longest);
        let near = 0;
        for (const [length, count] of counts) if (length >= low && length < longest) near += count;
        const perLength = near / Math.max(longest - low, 1);
        const found =
          longest >= LONG_ENOUGH && share >= 0.05 && share < 1 && atLimit >= 3 && atLimit > 5 * perLength;
        const rows = new RowSet();
        if (found)
          lengths.values.forEach((length, index) => {
            if (length === longest) rows.add(index);
          });
        return {
          severity: found ? (share >= 0.2 ? 'warning' : 'info') : undefined,
          evidence: { greatestLength: longest, shareOfRows: share },
          rows,
        };
      },
    };
  },
};

const extremeLengths: Check = {
  name: 'length-extremes',
  title: 'Responses differ extremely in length',
  needs: [],
  meaning:
    'With a mean over tokens, the longest responses dominate the loss. With a mean over rows, each token of a very short one weighs much.',
  advice: 'Read these responses, and compare how the modes of --loss-agg-mode weigh them.',
  rule: 'info for rows above 10 times the median length, or of at most 1 token if the median is 16 or more',
  measure: (row) => [lengthOf(row)],
  start() {
    const lengths = new Growing((length) => new Uint32Array(length));
    return {
      add: ({ 0: length }) => lengths.push(length!),
      finish() {
        const sorted = lengths.values.slice().sort();
        const median = medianOf(sorted);
        const rows = new RowSet();
        lengths.values.forEach((length, index) => {
          // Empty rows are reported by mask-empty.
          if (length > 10 * median || (length === 1 && median >= 16)) rows.add(index);
        });
        return {
          severity: rows.size > 0 && median > 0 ? 'info' : undefined,
          evidence: { shortest: sorted[0], median, longest: sorted.at(-1) },
          rows,
        };
      },
    };
  },
};

const scratch = new DataView(new ArrayBuffer(4));

/** Returns a hash of the values, as an integer below 2^53. */
function hashOf(values: Float32Array): number {
  let [a, b] = [0x811c9dc5, values.length];
  for (const x of values) {
    scratch.setFloat32(0, x);
    const bits = scratch.getInt32(0);
    a = Math.imul(a ^ bits, 0x01000193);
    a ^= a >>> 15;
    b = Math.imul(b + bits, 0x85ebca6b);
    b ^= b >>> 13;
  }
  return (a >>> 0) * 2 ** 21 + ((b >>> 0) >>> 11);
}

const duplicates: Check = {
  name: 'duplicates',
  title: 'Rollouts occur more than once',
  needs: [['old_logprobs', 'logprobs', 'rollout_logprobs']],
  meaning:
    'Rows have the same log-probabilities, token by token. A copy counts twice in the loss, and two copies in different groups distort both baselines.',
  advice:
    'Look for a file that is read twice, rows that pad the last batch, and a replay buffer that returns the same rows. Copies within a group are normal if responses are short or the policy is nearly deterministic.',
  rule:
    `warning for copies (of ${LONG_ENOUGH} tokens or more) in different groups, or with the same task_id and run_id; info ` +
    'for other copies, which sampling can produce',
  measure(row) {
    const values = row.firstOf('old_logprobs', 'logprobs', 'rollout_logprobs')!;
    // Rows of placeholders are all alike. zero-logprob reports them.
    if (values.length < LONG_ENOUGH || values.every((x) => x === values[0])) return undefined;
    return [hashOf(values)];
  },
  start(table) {
    // Of the rows that are compared.
    const hashes = new Growing((length) => new Float64Array(length));
    const indices = new Growing((length) => new Uint32Array(length));
    return {
      add({ 0: hash }, index) {
        hashes.push(hash!);
        indices.push(index);
      },
      finish() {
        const all = hashes.values;
        const order = Uint32Array.from(all.keys()).sort((i, j) => all[i]! - all[j]! || i - j);
        const rows = new RowSet();
        const copied = new RowSet();
        for (let begin = 0, end = 0; begin < order.length; begin = end) {
          while (end < order.length && all[order[end]!] === all[order[begin]!]) end++;
          if (end - begin < 2) continue;
          const copies = [...order.subarray(begin, end)].map((i) => ({
            index: indices.values[i]!,
            group: table.groupOf(indices.values[i]!),
            run: table.runOf(indices.values[i]!),
          }));
          const groups = new Set(copies.map(({ group }) => group));
          const withIds = new Map<string, number>();
          for (const { group, run } of copies)
            withIds.set(`${group} ${run}`, (withIds.get(`${group} ${run}`) ?? 0) + 1);
          for (const { index, group, run } of copies) {
            rows.add(index);
            const hasIds = !Number.isNaN(group) && !Number.isNaN(run);
            if (groups.size > 1 || (hasIds && withIds.get(`${group} ${run}`)! > 1)) copied.add(index);
          }
        }
        const severity = copied.size > 0 ? 'warning' : rows.size > 0 ? 'info' : undefined;
        return {
          severity,
          evidence: { rowsWithCopies: rows.size, acrossGroupsOrSameIds: copied.size },
          rows: copied.size > 0 ? copied : rows,
        };
      },
    };
  },
};

export const ROW_CHECKS: readonly Check[] = [
  emptyMask,
  fullMask,
  maskHoles,
  truncated,
  extremeLengths,
  duplicates,
];
