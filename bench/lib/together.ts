// Compares losses of one batch that are computed one after another with the same losses computed together, which reads
// the columns that they share only once.
import { computeTogether, POLICY_LOSS_FN, type Together } from '../../lib/index.js';
import { makeInputs, type Shape } from './batch.js';
import { contender, race } from './race.js';
import type { Times } from './report.js';
import { digits, ratio, type TableContent } from './tables.js';
import type { Work } from './works.js';

const LOSSES = ['ppo', 'gspo', 'cispo', 'sapo', 'topr', 'opmd', 'rec', 'sft'];
const COUNTS = [2, 4, 8];

/** The times of the first few losses, and by how much fewer bytes their memory moves when they are computed together. */
export interface TogetherTimes {
  losses: string[];
  bytes: number;
  times: Times;
}

/** Times the first 2, 4 and 8 of the listed losses, as far as they are among the works. */
export async function timeTogether(
  works: readonly Work[],
  shape: Shape,
  rounds: number,
): Promise<TogetherTimes[]> {
  const inputs = makeInputs(shape);
  const chosen = LOSSES.flatMap((id) => works.find((work) => work.id === id) ?? []);
  const results: TogetherTimes[] = [];
  for (const list of COUNTS.filter((n) => n <= chosen.length).map((n) => chosen.slice(0, n))) {
    const made = list.map(({ name }) => ({
      fn: POLICY_LOSS_FN.create(name),
      options: { grad: new Float32Array(shape[0] * shape[1]) },
    }));
    const oneByOne = async () => {
      for (const { fn, options } of made) await fn.compute(inputs, options);
    };
    const together = () =>
      computeTogether(
        made.map(
          ({ fn, options }) =>
            (together: Together) =>
              fn.compute(inputs, { ...options, together }),
        ),
      );
    const contenders = [contender('one after another', oneByOne), contender('together', together)];
    const losses = list.map(({ id }) => id);
    results.push({ losses, bytes: savedBytes(list), times: await race(contenders, rounds) });
  }
  return results;
}

// Per token: 4 bytes for each column, 1 for the mask, and 8 for a gradient, as a written cache line is read first.
function savedBytes(works: readonly Work[]): number {
  const alone = works.reduce((sum, { columns }) => sum + 4 * columns.length + 1 + 8, 0);
  const columns = new Set(works.flatMap(({ columns }) => columns));
  return alone / (4 * columns.size + 1 + 8 * works.length);
}

export function togetherTable(results: readonly TogetherTimes[], [rows, columns]: Shape): TableContent {
  return {
    title: `Several losses of one batch, forward and gradient, ${rows}×${columns}`,
    head: ['losses', 'one after another, ms', 'together, ms', 'speed-up', 'ratio of the bytes'],
    rows: results.map(({ losses, bytes, times }) => [
      losses.join(', '),
      times['one after another']!.median.toFixed(2),
      times.together!.median.toFixed(2),
      ratio(times['one after another'], times.together),
      digits(bytes),
    ]),
  };
}
