// Formats what the doctor has found, for tables and pages.
import type { CheckRun, Diagnosis, Finding } from '../doctor/index.js';
import { describePlace, type Place } from '../rollouts/index.js';

/** Returns the words of a name in camel case: meanDifference becomes 'mean difference'. Other names stay unchanged. */
export function wordsOf(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

/** Returns a text that says which rows show a fault, such as '3 of 256 rows: a.jsonl, lines 5, 9, 12'. */
export function describeRows({ rows: found }: Finding, rows: number): string {
  if (found.first.length === 0) return 'the dump as a whole';
  const inFiles = found.files.length > 1 ? ` in ${found.files.length} files` : '';
  return `${found.count} of ${rows} rows${inFiles}: ${describePlaces(found)}`;
}

/** Returns the first few places of some rows as text, such as 'a.jsonl, lines 5, 9, …'. */
export function describePlaces({ count, first }: { count: number; first: readonly Place[] }): string {
  const byFile = new Map<string, Place[]>();
  for (const place of first) byFile.set(place.file, [...(byFile.get(place.file) ?? []), place]);
  const texts = [...byFile.values()].map(([place, ...others]) => {
    const numbers = others.map(({ line, row }) => `, ${line ?? row}`).join('');
    return describePlace(place!).replace(/(line|row)( \d+)$/, numbers === '' ? '$&' : `$1s$2${numbers}`);
  });
  return texts.join('; ') + (count > first.length ? ', …' : '');
}

/** Returns the checks that could not run, by what they miss, such as 'rollout_logprobs'. */
export function missingColumns({ checks }: Pick<Diagnosis, 'checks'>): Map<string, CheckRun[]> {
  const byColumn = new Map<string, CheckRun[]>();
  for (const check of checks)
    if (!check.ran) {
      const missing = check.missing.join(' and ');
      byColumn.set(missing, [...(byColumn.get(missing) ?? []), check]);
    }
  return byColumn;
}
