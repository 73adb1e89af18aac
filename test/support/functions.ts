/** Lists every policy loss, KL function and entropy loss with drawn arguments. */
import fc from 'fast-check';
import { LOSS_AGG_MODES, needsOf, toSnakeCase } from '../../lib/base/options.js';
import { type FunctionDeclaration, POLICY_LOSS_FN, VALUE_LOSS_FN } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import type { Args } from '../reference/index.js';
import type { BatchSpec } from './draw.js';
import { ARGUMENTS } from './draw-arguments.js';
import type { Family } from './subject.js';

/** Returns the values of loss_agg_mode that a function takes with these arguments. */
export function modesOf(family: Family, name: string, args: Args): readonly string[] {
  if (family !== 'policy' && family !== 'value') return LOSS_AGG_MODES;
  const registry = family === 'policy' ? POLICY_LOSS_FN : VALUE_LOSS_FN;
  const { options } = registry.get(name).declaration as FunctionDeclaration;
  const { lossAggMode } = options;
  const modes = lossAggMode?.type === 'choice' ? lossAggMode.choices : LOSS_AGG_MODES;
  const needed = Object.entries(options).flatMap(
    ([key, option]) => needsOf(option, args[toSnakeCase(key)]).lossAggMode ?? [],
  );
  return needed.length > 0 ? modes.filter((mode) => needed.includes(mode)) : modes;
}

/**
 * Lists every function with `samples` sets of drawn arguments. If loss_agg_mode is an argument, lists each set once per
 * mode.
 */
export function everyFunction(samples = 3): { family: Family; name: string; args: Args; title: string }[] {
  return (['policy', 'kl', 'entropy', 'value', 'reward'] as const).flatMap((family) =>
    Object.entries(ARGUMENTS[family]).flatMap(([name, arbitrary]) =>
      fc.sample(arbitrary, { seed: 5, numRuns: samples }).flatMap((args, i) => {
        const modes = 'loss_agg_mode' in args ? modesOf(family, name, args) : [undefined];
        return modes.map((mode) => ({
          family,
          name,
          args: mode ? { ...args, loss_agg_mode: mode } : args,
          title: [family, name, ...(mode ? [mode] : []), `#${i}`].join(' '),
        }));
      }),
    ),
  );
}

/** Returns every function once, with the first aggregation that everyFunction() lists for its arguments of a sample. */
export function oneOfEach(sample = 0) {
  const seen = new Set<string>();
  return everyFunction(sample + 1).filter(({ family, name, title }) => {
    const isFirst = title.endsWith(`#${sample}`) && !seen.has(`${family} ${name}`);
    if (isFirst) seen.add(`${family} ${name}`);
    return isFirst;
  });
}

export const everyRow = (batch: RewardedBatch) => Array.from({ length: batch.rows }, (_, b) => b);

/**
 * Generates descriptions of batches whose sums are not much smaller than their terms. The tests' bounds are relative to
 * the sums, so rounding errors of terms that cancel could exceed them.
 */
export const specs: fc.Arbitrary<BatchSpec> = fc.record({
  seed: fc.nat(),
  rows: fc.integer({ min: 1, max: 12 }),
  columns: fc.integer({ min: 1, max: 70 }),
  values: fc.constantFrom('moderate', 'onpolicy'),
  mask: fc.constantFrom('ones', 'prefix', 'random', 'emptyrows', 'zero'),
  packed: fc.boolean(),
});
