// Compares a run's measurements with the project's performance targets. Almost all targets are ratios of two times from
// the same run.
import { AS_EXPRESSION, BUILT_IN, CLIPPED_EXPRESSION } from './expressions.js';
import { LIMITS, limitOf, timeOverPpo } from './frameworks.js';
import { CACHED, LARGE, SMALL } from './functions.js';
import { BACKWARD, FORWARD, FUSED, overPyTorch, shareOf } from './logits.js';
import type { Sample } from './race.js';
import { type Bar, find, OURS, type Report } from './report.js';
import { digits, type TableContent } from './tables.js';
import { FORMS } from './variations.js';

const PYTORCH = 'eager PyTorch';
/**
 * A function that reaches this fraction of its traffic floor's speed (see floor.ts) is limited by memory, not by
 * arithmetic.
 */
const MEMORY_BOUND = 0.8;

export function bars(report: Report): Bar[] {
  return [
    comparedWithPyTorch(report),
    ppoOfFloor(report),
    othersOfFloor(report),
    smallComparedWithPyTorch(report),
    smallOverhead(report),
    ...smallCalls(report),
    returnedResults(report),
    threads(report),
    memory(report),
    objective(report),
    objectiveOfFloor(report),
    packedLikePadded(report),
    prefixMasks(report),
    ...maskedTokens(report),
    halves(report),
    ...expressions(report),
    ...frameworks(report),
    ...fromLogits(report),
  ];
}

export function barsTable(list: readonly Bar[]): TableContent {
  return {
    title: 'Targets',
    head: ['target', 'wanted', 'measured', 'met'],
    rows: list.map(({ bar, wanted, measured, met }) => [
      bar,
      wanted,
      measured,
      met === undefined ? '–' : met ? 'yes' : 'no',
    ]),
  };
}

function fromLogits({ logits = [] }: Report): Bar[] {
  const shares = (step: string) =>
    logits.map((times) => ({
      id: `${times.shape.join('×')} ${times.dtype}`,
      value: shareOf(times, step),
    }));
  const speedups = logits.flatMap((times) => {
    const value = overPyTorch(times);
    return value === undefined ? [] : [{ id: `${times.shape.join('×')} ${times.dtype}`, value }];
  });
  return [
    bar(`${FORWARD}: speed relative to reading the logits once`, '≥ 0.85', least(shares(FORWARD), 0.85)),
    bar(
      `${BACKWARD}: speed relative to reading and writing them once`,
      '≥ 0.85',
      least(shares(BACKWARD), 0.85),
    ),
    bar(`${FUSED}: speed relative to the same`, '≥ 0.8', least(shares(FUSED), 0.8)),
    bar(`${FUSED}: speed-up over eager PyTorch`, '≥ 6', least(speedups, 6)),
  ];
}

/** Returns the factor by which `sample` is faster than `other`. */
const speedup = (other: Sample, sample: Sample) => other.median / sample.median;

function bar(name: string, wanted: string, found: { measured: string; met: boolean } | undefined): Bar {
  return { bar: name, wanted, ...(found ?? { measured: 'not measured' }) };
}

function comparedWithPyTorch(report: Report): Bar {
  const samples = find(report, 'ppo', LARGE, true)?.times;
  const name = `ppo, forward and gradient, ${LARGE.join('×')}: speed-up over eager PyTorch`;
  if (!samples?.[PYTORCH]) return bar(name, '≥ 60', undefined);
  const measured = speedup(samples[PYTORCH], samples[OURS]!);
  return bar(name, '≥ 60', { measured: digits(measured), met: measured >= 60 });
}

function ppoOfFloor(report: Report): Bar {
  const samples = find(report, 'ppo', LARGE, true)?.times;
  const measured = samples?.floor && speedup(samples.floor, samples[OURS]!);
  return bar(
    `ppo, forward and gradient, ${LARGE.join('×')}: speed relative to its traffic floor`,
    '≥ 0.8',
    measured ? { measured: digits(measured), met: measured >= 0.8 } : undefined,
  );
}

/**
 * Describes the smallest ratio and says how many of the ratios reach `wanted`. Returns undefined if there are no
 * ratios.
 */
function least(ratios: readonly { id: string; value: number; note?: string }[], wanted: number) {
  const [worst] = ratios.toSorted((a, b) => a.value - b.value);
  const count = ratios.filter(({ value }) => value >= wanted).length;
  return (
    worst && {
      measured: `least ${digits(worst.value)} (${worst.id}${worst.note ?? ''}); ${count} of ${ratios.length} reach it`,
      met: worst.value >= wanted,
    }
  );
}

function othersOfFloor(report: Report): Bar {
  const others = report.functions
    .filter(({ id, shape, gradient }) => id !== 'ppo' && gradient && shape.join() === LARGE.join())
    .map(({ id, times }) => ({ id, value: speedup(times.floor!, times[OURS]!) }));
  return bar('every other function: speed relative to its traffic floor', '≥ 0.6', least(others, 0.6));
}

function smallComparedWithPyTorch(report: Report): Bar {
  const samples = find(report, 'ppo', SMALL, true)?.times;
  const name = `ppo, ${SMALL.join('×')} through computeSync() with gradient: speed-up over eager PyTorch`;
  if (!samples?.[PYTORCH]) return bar(name, '≥ 50', undefined);
  const measured = speedup(samples[PYTORCH], samples[OURS]!);
  return bar(name, '≥ 50', { measured: digits(measured), met: measured >= 50 });
}

// A call with one token computes almost nothing, so its time is what every call costs, including the binding to native
// code.
function smallOverhead({ smallCalls }: Report): Bar {
  const name =
    `ppo, ${SMALL.join('×')} through computeSync() with gradient: µs more than the native call ` +
    '(negative: less than the noise)';
  if (!smallCalls) return bar(name, '≤ 12', undefined);
  const over = 1e3 * (smallCalls['computeSync()']!.median - smallCalls['native call']!.median);
  const withBinding = 1e3 * smallCalls['computeSync() of one token']!.median;
  return bar(name, '≤ 12', {
    measured: `${digits(over)}; a call of one token takes ${digits(withBinding)}`,
    met: Math.max(over, withBinding) <= 12,
  });
}

/** The targets for asynchronous calls on small batches. */
function smallCalls({ smallCalls: samples }: Report): Bar[] {
  const name = `ppo, ${SMALL.join('×')} through compute()`;
  const micros = (what: string) => samples && 1e3 * samples[what]!.median;
  const awaited = micros('compute()');
  const inFlight = micros('compute(), per call with 64 in flight');
  return [
    bar(
      `${name}, one call after another: µs per call`,
      '≤ 15',
      awaited === undefined ? undefined : { measured: digits(awaited), met: awaited <= 15 },
    ),
    bar(
      `${name}, 64 in flight: calls per second`,
      '≥ 100000',
      inFlight === undefined
        ? undefined
        : { measured: String(Math.round(1e6 / inFlight)), met: inFlight <= 10 },
    ),
  ];
}

function returnedResults({ eventLoop }: Report): Bar {
  const call = eventLoop?.['into an array that the call returns']?.call.median;
  return bar(
    `ppo with grad: true, ${LARGE.join('×')}: ms that compute() blocks the event loop`,
    '≤ 0.3',
    call === undefined ? undefined : { measured: digits(call), met: call <= 0.3 },
  );
}

function threads({ threads: results, cores }: Report): Bar {
  const gains = Object.entries(results ?? {}).map(([id, samples]) => ({
    id,
    value: speedup(samples['one thread']!, samples['two threads']!),
  }));
  const found = least(gains, 1.8);
  return bar(
    `two threads: speed-up over one, ${CACHED.join('×')}, which fits in the caches`,
    '≥ 1.8',
    found && {
      ...found,
      measured:
        `${found.measured}; independent calls on two threads gained ${digits(cores!.before)} ` +
        `before the run and ${digits(cores!.after)} after it`,
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
  const name = 'GRPO’s whole objective with both gradients: time divided by its policy loss’s';
  if (!samples) return bar(name, '≤ 1.5', undefined);
  const over = (what: string, base: string) => samples[what]!.median / samples[base]!.median;
  const measured = over('objective, both gradients', 'policy loss alone');
  const traffic = over('floor of the objective', 'floor of the policy loss');
  const plain = over('objective, entropy coefficient 0', 'policy loss alone');
  return bar(name, '≤ 1.5', {
    measured: `${digits(measured)}; the floors ${digits(traffic)}; without the entropy’s gradient ${digits(plain)}`,
    met: measured <= 1.5,
  });
}

function objectiveOfFloor({ objective: samples }: Report): Bar {
  const measured =
    samples &&
    speedup(
      samples['floor of the objective, advantages from rewards']!,
      samples['objective, both gradients, advantages from rewards']!,
    );
  return bar(
    'GRPO’s whole objective from rewards to both gradients: speed relative to its traffic floor',
    '≥ 0.95',
    measured === undefined ? undefined : { measured: digits(measured), met: measured >= 0.95 },
  );
}

/** The targets for losses that are written as expressions, which PPO represents. */
function expressions({ ppoAsExpression: found }: Report): Bar[] {
  const at = (shape: readonly number[]) => `ppo as an expression, forward and gradient, ${shape.join('×')}`;
  const { [BUILT_IN]: builtIn, [PYTORCH]: torch, ...own } = found?.large ?? {};
  const faster = (other: Sample | undefined, wanted: number) => {
    const readme = own[CLIPPED_EXPRESSION];
    const whole = own[AS_EXPRESSION];
    if (!other || !readme || !whole) return undefined;
    const measured = speedup(other, readme);
    return {
      measured: `${digits(measured)} in the README's form; ${digits(speedup(other, whole))} with the dual clip and all metrics`,
      met: measured >= wanted,
    };
  };
  const slower = found && found.small[AS_EXPRESSION]!.median / found.small[BUILT_IN]!.median;
  return [
    bar(`${at(LARGE)}: speed relative to the built-in loss`, '≥ 0.5', faster(builtIn, 0.5)),
    bar(`${at(LARGE)}: speed-up over eager PyTorch`, '≥ 25', faster(torch, 25)),
    bar(
      `${at(SMALL)} through computeSync(): time divided by the built-in loss's`,
      '≤ 4',
      slower === undefined ? undefined : { measured: digits(slower), met: slower <= 4 },
    ),
  ];
}

/** The targets for the losses of other frameworks and papers: those of one pass over the tokens, and the others. */
function frameworks({ frameworks: losses = [] }: Report): Bar[] {
  return [
    { passes: 'one pass', limit: LIMITS.onePass },
    { passes: 'several passes', limit: LIMITS.severalPasses },
  ].map(({ passes, limit }) => {
    const ratios = losses
      .filter((loss) => limitOf(loss) === limit)
      .map((loss) => ({ id: loss.id, value: timeOverPpo(loss) }))
      .toSorted((a, b) => b.value - a.value);
    const [worst] = ratios;
    const count = ratios.filter(({ value }) => value <= limit).length;
    return bar(
      `losses of other frameworks and papers with ${passes} over the tokens: time divided by PPO's`,
      `≤ ${limit}`,
      worst && {
        measured: `most ${digits(worst.value)} (${worst.id}); ${count} of ${ratios.length} within it`,
        met: worst.value <= limit,
      },
    );
  });
}

/** Returns the function with the smallest ratio, together with that ratio. */
function worstOf(
  results: Report['layouts'],
  ratioOf: (samples: Record<string, Sample>) => number,
): { id: string; value: number } | undefined {
  return Object.entries(results ?? {})
    .map(([id, samples]) => ({ id, value: ratioOf(samples) }))
    .sort((a, b) => a.value - b.value)[0];
}

function packedLikePadded({ layouts }: Report): Bar {
  const worst = worstOf(layouts, (samples) => speedup(samples.padded!, samples.packed!));
  return bar(
    'packed rows: speed relative to padded rows with a full mask',
    '≥ 0.95',
    worst && { measured: `least ${digits(worst.value)} (${worst.id})`, met: worst.value >= 0.95 },
  );
}

function prefixMasks({ layouts }: Report): Bar {
  const worst = worstOf(layouts, (samples) => speedup(samples.padded!, samples['prefix masks']!));
  return bar(
    'masks that end after half a row on average: speed-up over full masks',
    '> 1',
    worst && { measured: `least ${digits(worst.value)} (${worst.id})`, met: worst.value > 1 },
  );
}

/** The targets for masked tokens among unmasked ones. */
function maskedTokens({ layouts }: Report): Bar[] {
  return [
    { mask: 'turns', what: 'turns of 64 to 512 tokens, of which every second is masked', wanted: 0.9 },
    { mask: 'holes', what: 'masks of which every second token is 0, at random', wanted: 0.85 },
  ].map(({ mask, what, wanted }) => {
    const ratios = Object.entries(layouts ?? {}).map(([id, samples]) => ({
      id,
      value: speedup(samples.padded!, samples[mask]!),
    }));
    return bar(`${what}: speed relative to a full mask`, `≥ ${wanted}`, least(ratios, wanted));
  });
}

// The target for 16-bit columns, with gradients in float32 and in 16 bits.
function halves({ dtypes }: Report): Bar {
  const ofFloor = (samples: Record<string, Sample>, dtype: string) =>
    speedup(samples[`floor, ${dtype}`]!, samples[dtype]!);
  const bound = Object.entries(dtypes ?? {})
    .filter(([, samples]) => ofFloor(samples, 'float32') >= MEMORY_BOUND)
    .flatMap(([id, samples]) =>
      FORMS.map((form) => ({ id: `${id} ${form}`, value: ofFloor(samples, form) })),
    );
  const none = dtypes && { measured: 'memory limits no function', met: true };
  return bar(
    '16-bit columns: speed relative to their own traffic floor, for functions that memory limits in float32',
    '≥ 0.85',
    least(bound, 0.85) ?? none,
  );
}
