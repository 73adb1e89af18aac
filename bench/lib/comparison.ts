// The tables that compare the times of functions with PyTorch's.
import { mediansOf, shapeText } from './ratios.js';
import { type CpuReport, type GpuReport, OF_LOGITS, ON_DEVICE, OURS, type Times } from './report.js';
import { digits, ratio, type TableContent } from './tables.js';

/** The titles of the cells of comparedCells(). */
const COMPARED = ['eager', '`torch.compile`', 'its fastest form', '×'];

/** Returns PyTorch's times, and the time of its faster form divided by this package's. */
function comparedCells(times: Times, unit: 'ms' | 'µs'): string[] {
  const { ours, eager, compiled, fastest, peer } = mediansOf(times);
  const cell = (time: number | undefined) =>
    time === undefined ? '' : digits(unit === 'µs' ? 1e3 * time : time);
  return [cell(eager), cell(compiled), cell(fastest), peer === undefined ? '' : `**${digits(peer / ours)}**`];
}

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

/** Returns the table of the steps of PPO from logits, which are compared with loops that move the same memory. */
export function logitsSteps({ logits }: CpuReport): TableContent {
  const withSteps = logits.filter(({ times }) => OF_LOGITS.forward in times);
  return {
    title: 'Steps from logits',
    head: [
      'logits',
      'forward, ms',
      'of reading them once',
      'gradient in place, ms',
      'of reading and writing once',
    ],
    rows: withSteps.map(({ id, times }) => [
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
