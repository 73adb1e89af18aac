// Compares the times of functions with PyTorch's, in a few sentences.
import { FORMS } from '../peers/torch.js';
import { type CpuReport, type FunctionTimes, OURS, type Times } from './report.js';
import { digits } from './tables.js';

export const shapeText = (shape: readonly number[]) => shape.join('×');

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

/** How many times as long as this package PyTorch takes for each function, in ascending order. */
type Ratios = readonly { id: string; value: number }[];

function ratiosOf(functions: readonly FunctionTimes[], form: 'eager' | 'fastest' | 'peer'): Ratios {
  return functions
    .flatMap(({ id, times }) => {
      const { ours, [form]: theirs } = mediansOf(times);
      return theirs === undefined ? [] : [{ id, value: theirs / ours }];
    })
    .sort((a, b) => a.value - b.value);
}

function meanOf(ratios: Ratios): string {
  return digits(Math.exp(ratios.reduce((sum, { value }) => sum + Math.log(value), 0) / ratios.length));
}

function rangeOf(ratios: Ratios): string {
  const [least, most] = [ratios[0]!, ratios.at(-1)!];
  return `${digits(least.value)} (${least.id}) to ${digits(most.value)} (${most.id})`;
}

/** Groups functions by shape. */
function shapesOf(functions: readonly FunctionTimes[]): [shape: string, functions: FunctionTimes[]][] {
  const shapes = [...new Set(functions.map(({ shape }) => shapeText(shape)))];
  return shapes.map((shape) => [shape, functions.filter((each) => shapeText(each.shape) === shape)]);
}

/** Returns a few sentences for each shape: how many times as long as this package PyTorch takes. */
export function summaries(functions: readonly FunctionTimes[]): string[] {
  return shapesOf(functions).flatMap(([shape, ofShape]) => {
    const peer = ratiosOf(ofShape, 'peer');
    if (peer.length === 0) return [];
    const eager = ratiosOf(ofShape, 'eager');
    const slower = ratiosOf(ofShape, 'fastest').filter(({ value }) => value < 1);
    return [
      `${shape}, ${peer.length} functions: the faster of eager PyTorch and torch.compile takes ${meanOf(peer)} times as ` +
        `long as this package (geometric mean), from ${rangeOf(peer)}. Slower than torch.compile in its fastest form: ` +
        `${slower.map(({ id, value }) => `${id} (${digits(value)})`).join(', ') || 'none'}. Eager PyTorch takes ` +
        `${meanOf(eager)} times as long, from ${rangeOf(eager)}.`,
    ];
  });
}

/** Returns what README.md says about the speed. */
export function claim({ machine, functions }: CpuReport): string {
  const ends = (ratios: Ratios) => `${digits(ratios[0]!.value)} to ${digits(ratios.at(-1)!.value)}`;
  const lines = shapesOf(functions).map(([shape, ofShape]) => {
    const [peer, eager] = [ratiosOf(ofShape, 'peer'), ratiosOf(ofShape, 'eager')];
    return `- ${shape} tokens: ${meanOf(peer)} times as long (${ends(peer)}); eager PyTorch alone ${ends(eager)} times.`;
  });
  return [
    `Time of the faster of eager PyTorch and \`torch.compile\` for loss, metrics and gradient, on ${machine.threads} threads of`,
    `${machine.cpu} with ${machine.isa}, relative to this package (geometric mean and range over all functions):`,
    '',
    ...lines,
  ].join('\n');
}
