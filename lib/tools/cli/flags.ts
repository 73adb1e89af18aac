// How flags are spelled, and how they are found among the arguments of a command line.
import { toSnakeCase } from '../../base/options.js';

/**
 * Returns the flag that sets an option: `clipRange` and `clip_range` become `--clip-range`. A prefix such as
 * `advantage-` comes after the dashes.
 */
export function flagOf(option: string, prefix = ''): string {
  return `--${prefix}${toSnakeCase(option).replaceAll('_', '-')}`;
}

/**
 * Returns the values of a flag that is written as `--name value` or `--name=value`, in their order. Arguments after
 * `--` are not flags.
 * @param name the flag, including its dashes.
 * @param words the arguments of the command line.
 */
export function optionValues(name: string, words: readonly string[]): string[] {
  return beforeOperands(words).flatMap((word, i, all) => {
    if (word === name) return all[i + 1] ?? [];
    return word.startsWith(`${name}=`) ? word.slice(name.length + 1) : [];
  });
}

/**
 * Returns the value of a flag, as {@link optionValues} does; undefined if it is absent. If the flag appears several
 * times, the last value counts.
 */
export function optionValue(name: string, words: readonly string[]): string | undefined {
  return optionValues(name, words).at(-1);
}

/**
 * Returns the flags among the arguments of a command line. A flag with a joined value is returned without it: `--a=1`
 * as `--a`. Arguments after `--` are not flags.
 */
export function flagsIn(words: readonly string[]): string[] {
  return beforeOperands(words)
    .filter((word) => word.startsWith('--'))
    .map((word) => word.replace(/=.*/s, ''));
}

function beforeOperands(words: readonly string[]): readonly string[] {
  const end = words.indexOf('--');
  return end < 0 ? words : words.slice(0, end);
}
