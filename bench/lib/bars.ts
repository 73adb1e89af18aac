// The project's bars, each beside what this run measured. They are ratios within the run.
import { CACHED, LARGE, SMALL } from './functions.js';
import type { Sample } from './race.js';
import { type Bar, find, OURS, type Report } from './report.js';
import { digits, type TableContent } from './tables.js';

const PYTORCH = 'eager PyTorch';
/** At so much of the floor's speed a function is bound by memory and not by its arithmetic. */
const MEMORY_BOUND = 0.8;

export function bars(report: Report): Bar[] {
  return [
    besidePyTorch(report),
    ppoOfFloor(report),
    othersOfFloor(report),
    smallBesidePyTorch(report),
    smallOverhead(report),
    threads(report),
    memory(report),
    objective(report),
    packedLikePadded(report),
    prefixMasks(report),
    halves(report),
  ];
}

export function barsTable(list: readonly Bar[]): TableContent {
  return {
    title: 'The bars',
    head: ['bar', 'wanted', 'measured', 'met'],
    rows: list.map(({ bar, wanted, measured, met }) => [
      bar,
      wanted,
      measured,
      met === undefined ? '–' : met ? 'yes' : 'no',
    ]),
  };
}

/** How many times less `sample` took than `other`. */
const times = (other: Sample, sample: Sample) => other.median / sample.median;

function bar(name: string, wanted: string, found: { measured: string; met: boolean } | undefined): Bar {
  return { bar: name, wanted, ...(found ?? { measured: 'not measured' }) };
}

function besidePyTorch(report: Report): Bar {
  const samples = find(report, 'ppo', LARGE, true)?.times;
  const name = `ppo, forward and gradient, ${LARGE.join('×')}: times as fast as eager PyTorch`;
  if (!samples?.[PYTORCH]) return bar(name, '≥ 60', undefined);
  const measured = times(samples[PYTORCH], samples[OURS]!);
  return bar(name, '≥ 60', { measured: digits(measured), met: measured >= 60 });
}

function ppoOfFloor(report: Report): Bar {
  const samples = find(report, 'ppo', LARGE, true)?.times;
  const measured = samples?.floor && times(samples.floor, samples[OURS]!);
  return bar(
    'ppo likewise: of the traffic floor’s speed',
    '≥ 0.8',
    measured ? { measured: digits(measured), met: measured >= 0.8 } : undefined,
  );
}

// Ratios of functions: the least, and how many are as high as is wanted. A note stands beside its function's name.
function least(ratios: readonly { id: string; value: number; note?: string }[], wanted: number) {
  const [worst] = ratios.toSorted((a, b) => a.value - b.value);
  const count = ratios.filter(({ value }) => value >= wanted).length;
  return (
    worst && {
      measured: `least ${digits(worst.value)} (${worst.id}${worst.note ?? ''}); ${count} of ${ratios.length} have it`,
      met: worst.value >= wanted,
    }
  );
}

function othersOfFloor(report: Report): Bar {
  const others = report.functions
    .filter(({ id, shape, gradient }) => id !== 'ppo' && gradient && shape.join() === LARGE.join())
    .map(({ id, times: samples }) => ({ id, value: times(samples.floor!, samples[OURS]!) }));
  return bar('every other function likewise', '≥ 0.6', least(others, 0.6));
}

function smallBesidePyTorch(report: Report): Bar {
  const samples = find(report, 'ppo', SMALL, true)?.times;
  const name = `ppo, ${SMALL.join('×')} through computeSync() with gradient: times as fast as eager PyTorch`;
  if (!samples?.[PYTORCH]) return bar(name, '≥ 50', undefined);
  const measured = times(samples[PYTORCH], samples[OURS]!);
  return bar(name, '≥ 50', { measured: digits(measured), met: measured >= 50 });
}

// The call of one token has all that a call costs beside the work, the binding's part included.
function smallOverhead({ smallCalls }: Report): Bar {
  const name = 'the same: µs over the native time';
  if (!smallCalls) return bar(name, '≤ 12', undefined);
  const over = 1e3 * (smallCalls['computeSync()']!.median - smallCalls['native call']!.median);
  const withBinding = 1e3 * smallCalls['computeSync() of one token']!.median;
  return bar(name, '≤ 12', {
    measured: `${digits(over)}; a call of one token takes ${digits(withBinding)} in all`,
    met: Math.max(over, withBinding) <= 12,
  });
}

function threads({ threads: results, cores }: Report): Bar {
  const gains = Object.entries(results ?? {}).map(([id, samples]) => ({
    id,
    value: times(samples['one thread']!, samples['two threads']!),
  }));
  const found = least(gains, 1.8);
  return bar(
    `two threads: times as fast as one, ${CACHED.join('×')}, which fits in the caches`,
    '≥ 1.8',
    found && {
      ...found,
      measured: `${found.measured}; calls that share nothing ${digits(cores!.before)} before and ${digits(cores!.after)} after`,
    },
  );
}

function memory(report: Report): Bar {
  const [most] = Object.entries(report.memory ?? {}).sort(([, a], [, b]) => b - a);
  return bar(
    `memory beyond inputs and outputs, ${LARGE.join('×')}, in MB`,
    '≤ 2',
    most && { measured: `at most ${digits(most[1] / 1e6)} (${most[0]})`, met: most[1] <= 2e6 },
  );
}

function objective({ objective: samples }: Report): Bar {
  const name = 'grpo’s whole objective, both gradients: times its policy loss alone';
  if (!samples) return bar(name, '≤ 1.5', undefined);
  const over = (what: string, base: string) => samples[what]!.median / samples[base]!.median;
  const measured = over('objective, both gradients', 'policy loss alone');
  const traffic = over('floor of the objective', 'floor of the policy loss');
  const plain = over('objective, entropy coefficient 0', 'policy loss alone');
  return bar(name, '≤ 1.5', {
    measured: `${digits(measured)}; the floors ${digits(traffic)}; without entropy’s gradient ${digits(plain)}`,
    met: measured <= 1.5,
  });
}

// The worst of a ratio over some functions.
function worstOf(
  results: Report['layouts'],
  of: (samples: Record<string, Sample>) => number,
): { id: string; value: number } | undefined {
  return Object.entries(results ?? {})
    .map(([id, samples]) => ({ id, value: of(samples) }))
    .sort((a, b) => a.value - b.value)[0];
}

function packedLikePadded({ layouts }: Report): Bar {
  const worst = worstOf(layouts, (samples) => times(samples.padded!, samples.packed!));
  return bar(
    'packed rows: of the speed of padded ones with a full mask',
    '≥ 0.95',
    worst && { measured: `least ${digits(worst.value)} (${worst.id})`, met: worst.value >= 0.95 },
  );
}

function prefixMasks({ layouts }: Report): Bar {
  const worst = worstOf(layouts, (samples) => times(samples.padded!, samples['prefix masks']!));
  return bar(
    'masks that end after half a row: times as fast as full ones',
    '> 1',
    worst && { measured: `least ${digits(worst.value)} (${worst.id})`, met: worst.value > 1 },
  );
}

// Of the worse of both types.
function halves({ dtypes }: Report): Bar {
  const bound = Object.entries(dtypes ?? {})
    .filter(([, samples]) => times(samples['floor, float32']!, samples.float32!) >= MEMORY_BOUND)
    .map(([id, samples]) => {
      const worse = samples.bfloat16!.median > samples.float16!.median ? 'bfloat16' : 'float16';
      const floor = times(samples['floor, float32']!, samples[`floor, ${worse}`]!);
      return { id, value: times(samples.float32!, samples[worse]!), note: `; its floor ${digits(floor)}` };
    });
  const none = dtypes && { measured: 'none is bound by memory', met: true };
  return bar(
    'columns of 16 bits: times as fast as float32, of what is bound by memory',
    '≥ 1.3',
    least(bound, 1.3) ?? none,
  );
}
