// Flags: their spelling, and finding them among the words of a command line.
import { toSnakeCase } from '../core/options.js';

/** Returns the flag of an option: `clipRange` and `clip_range` become `--clip-range`. */
export function flagOf(option: string, prefix = ''): string {
  return `--${prefix}${toSnakeCase(option).replaceAll('_', '-')}`;
}

/** Returns the value of the last `--name value` or `--name=value`. */
export function optionValue(name: string, words: readonly string[]): string | undefined {
  let value: string | undefined;
  words.forEach((word, i) => {
    if (word === name) value = words[i + 1];
    else if (word.startsWith(`${name}=`)) value = word.slice(name.length + 1);
  });
  return value;
}

/** Returns the flags among words, without values that are joined to them. */
export function flagsIn(words: readonly string[]): string[] {
  const end = words.indexOf('--');
  return (end < 0 ? words : words.slice(0, end))
    .filter((word) => word.startsWith('--'))
    .map((word) => word.replace(/=.*/s, ''));
}
