// Makes the table that sums up a run: every function's speed compared with its traffic floor and the peers, and what it
// gains from a second thread and from 16-bit columns.
import { CACHED, LARGE, SMALL } from './functions.js';
import { find, OURS, type Report } from './report.js';
import { ratio, type TableContent } from './tables.js';

const SMALL_PEER = 'eager PyTorch';

export function summaryTable(report: Report): TableContent {
  const large = report.functions.filter(({ shape, gradient }) => gradient && shape.join() === LARGE.join());
  const peers = Object.keys(report.peers).filter((name) => large.some(({ times }) => times[name]));
  return {
    title:
      'Every function, forward and gradient. × is the peer’s time divided by this package’s. The last three ' +
      'columns are speed-ups: two threads over one, then bfloat16 and float16 over float32.',
    head: [
      'function',
      `${SMALL.join('×')}, µs`,
      `× ${SMALL_PEER}`,
      `${LARGE.join('×')}, ms`,
      'of the floor',
      ...peers.map((name) => `× ${name}`),
      `two threads, ${CACHED.join('×')}`,
      'bfloat16',
      'float16',
    ],
    rows: large.map(({ id, times }) => {
      const small = find(report, id, SMALL, true)!.times;
      const { 'one thread': one, 'two threads': two } = report.threads?.[id] ?? {};
      const { float32, bfloat16, float16 } = report.dtypes?.[id] ?? {};
      return [
        id,
        (1e3 * small[OURS]!.median).toFixed(2),
        ratio(small[SMALL_PEER], small[OURS]),
        times[OURS]!.median.toFixed(2),
        ratio(times.floor, times[OURS]),
        ...peers.map((name) => ratio(times[name], times[OURS])),
        ratio(one, two),
        ratio(float32, bfloat16),
        ratio(float32, float16),
      ];
    }),
  };
}
