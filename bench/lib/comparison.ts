// Compares the times of functions with PyTorch's, in a table and in a few sentences.
import { FORMS } from '../peers/torch.js';
import {
  type CpuReport,
  type FunctionTimes,
  type GpuReport,
  OF_LOGITS,
  ON_DEVICE,
  OURS,
  type Times,
} from './report.js';
import { digits, ratio, type TableContent } from './tables.js';

/** Median times in milliseconds. Those of PyTorch are undefined if they were not measured. */
interface Medians {
  ours: number;
  eager: number | undefined;
  /** torch.compile with autograd. */
  compiled: number | undefined;
  /** The faster of the two compiled forms. */
  fastest: number | undefined;
  /** The faster of eager PyTorch and the fastest compiled form. */
  peer: number | undefined;
}

/** Returns the medians that a comparison needs from the times of all contenders. */
export function mediansOf(times: Times): Medians {
  const { eager, compiled, grad_and_value: together } = FORMS;
  const least = (...names: string[]) => {
    const found = names.flatMap((name) => times[name]?.median ?? []);
    return found.length > 0 ? Math.min(...found) : undefined;
  };
  return {
    ours: times[OURS]!.median,
    eager: times[eager]?.median,
    compiled: times[compiled]?.median,
    fastest: least(compiled, together),
    peer: least(eager, compiled, together),
  };
}

/** The titles of the cells of comparedCells(). */
export const COMPARED = ['eager', '`torch.compile`', 'its fastest form', '×'];

/** Returns PyTorch's times, and the time of its faster form divided by this package's. */
export function comparedCells(times: Times, unit: 'ms' | 'µs'): string[] {
  const { ours, eager, compiled, fastest, peer } = mediansOf(times);
  const cell = (time: number | undefined) =>
    time === undefined ? '' : digits(unit === 'µs' ? 1e3 * time : time);
  return [cell(eager), cell(compiled), cell(fastest), peer === undefined ? '' : `**${digits(peer / ours)}**`];
}

export const shapeText = (shape: readonly number[]) => shape.join('×');

/** Returns the table of all functions: a small shape in microseconds, and a large one in milliseconds. */
export function cpuTable({ functions, logits }: CpuReport): TableContent {
  const [small, large] = [...new Set(functions.map(({ shape }) => shapeText(shape)))];
  const rows = functions
    .filter(({ shape }) => shapeText(shape) === large)
    .map(({ id, times }) => {
      const before = functions.find((each) => each.id === id && shapeText(each.shape) === small)!.times;
      return [
        id,
        digits(1e3 * before[OURS]!.median),
        ...comparedCells(before, 'µs'),
        digits(times[OURS]!.median),
        ratio(times.floor, times[OURS]),
        ...comparedCells(times, 'ms'),
      ];
    });
  const ofLogits = logits.map(({ id, shape, times }) => [
    `${id}, ${shapeText(shape)}`,
    ...['', '', '', '', ''],
    digits(times[OURS]!.median),
    ratio(times[OF_LOGITS.rewrite], times[OURS]),
    ...comparedCells(times, 'ms'),
  ]);
  return {
    title:
      'Forward and gradient. × is the time of the faster of eager PyTorch and torch.compile, divided by ours',
    head: ['function', `${small}, µs`, ...COMPARED, `${large}, ms`, 'of the floor', ...COMPARED],
    rows: [...rows, ...ofLogits],
  };
}

/** Returns the table of the steps from logits, which are compared with loops that move the same memory. */
export function logitsSteps({ logits }: CpuReport): TableContent {
  return {
    title: 'Steps from logits',
    head: [
      'logits',
      'forward, ms',
      'of reading them once',
      'gradient in place, ms',
      'of reading and writing once',
    ],
    rows: logits.map(({ id, times }) => [
      id.replace('PPO from logits, ', ''),
      digits(times[OF_LOGITS.forward]!.median),
      ratio(times[OF_LOGITS.read], times[OF_LOGITS.forward]),
      digits(times[OF_LOGITS.backward]!.median),
      ratio(times[OF_LOGITS.rewrite], times[OF_LOGITS.backward]),
    ]),
  };
}

/**
 * Returns the table of all functions on a GPU. The speed of a function's token pass is compared with that of a copy, which
 * reads each byte and writes it.
 */
export function gpuTable({ functions, bytesPerToken, copyBytes }: GpuReport): TableContent {
  return {
    title:
      'Kernels of a call, forward and gradient. × is the time of the faster form of PyTorch, divided by ours',
    head: ['function', 'ms', '% of a copy’s speed', ...COMPARED],
    rows: functions.map(({ id, shape, times }) => {
      const speed = (bytesPerToken[id]! * shape[0] * shape[1]) / times[ON_DEVICE.tokenPass]!.median;
      const copy = (2 * copyBytes) / times[ON_DEVICE.copy]!.median;
      return [id, digits(times[OURS]!.median), digits((100 * speed) / copy), ...comparedCells(times, 'ms')];
    }),
  };
}

const geometricMean = (values: readonly number[]) =>
  Math.exp(values.reduce((sum, x) => sum + Math.log(x), 0) / values.length);

/** Returns a sentence for each shape: how many times as long as this package PyTorch takes. */
export function summaries(functions: readonly FunctionTimes[]): string[] {
  const shapes = [...new Set(functions.map(({ shape }) => shapeText(shape)))];
  return shapes.flatMap((shape) => {
    const compared = functions
      .filter((each) => shapeText(each.shape) === shape)
      .map(({ id, times }) => ({ id, ...mediansOf(times) }));
    const ratios = (form: 'eager' | 'fastest' | 'peer') =>
      compared
        .flatMap(({ id, ours, [form]: theirs }) =>
          theirs === undefined ? [] : [{ id, value: theirs / ours }],
        )
        .sort((a, b) => a.value - b.value);
    const range = (list: readonly { id: string; value: number }[]) => {
      const [least, most] = [list[0]!, list.at(-1)!];
      const mean = digits(geometricMean(list.map(({ value }) => value)));
      return `${digits(least.value)} (${least.id}) to ${digits(most.value)} (${most.id}), geometric mean ${mean},`;
    };
    const [peer, fastest, eager] = [ratios('peer'), ratios('fastest'), ratios('eager')];
    if (peer.length === 0) return [];
    const slower = fastest
      .filter(({ value }) => value < 1)
      .map(({ id, value }) => `${id} (${digits(value)})`);
    return [
      `${shape}, ${peer.length} functions: the faster of eager PyTorch and torch.compile takes ${range(peer)} times as ` +
        `long as this package. Slower than torch.compile in its fastest form: ${slower.join(', ') || 'none'}. Eager ` +
        `PyTorch takes ${range(eager)} times as long.`,
    ];
  });
}
