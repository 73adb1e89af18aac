/** Runs code in a process of its own, to measure the memory that it takes. */
import assert from 'node:assert/strict';
import { type SpawnSyncOptions, spawnSync } from 'node:child_process';

const PEAK_MEMORY = new URL('peak-memory.ts', import.meta.url).href;

/** The result of the code, and the largest memory of its process in bytes. */
export interface Alone<T> {
  result: T;
  memory: number;
}

/**
 * Runs the body of an asynchronous function in another process. The body reads `given` from the array of that name, and
 * what it returns must be JSON.
 */
export function runAlone<T>(
  body: string,
  given: readonly string[],
  options: SpawnSyncOptions = {},
): Alone<T> {
  const script = `import { peakMemory } from ${JSON.stringify(PEAK_MEMORY)};
    const given = process.argv.slice(1);
    const result = await (async () => { ${body} })();
    console.log(JSON.stringify({ result, memory: peakMemory() }));`;
  const words = ['--import', 'tsx', '--input-type=module', '-e', script, ...given];
  const { stdout, stderr } = spawnSync(process.execPath, words, {
    timeout: 120_000,
    ...options,
    encoding: 'utf8',
  });
  assert.notEqual(stdout, '', stderr);
  return JSON.parse(stdout) as Alone<T>;
}
