/** Runs code in a process of its own, to measure the memory that it takes. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';

/** What the code returned, and the largest memory of its process in bytes. */
export interface Alone<T> {
  result: T;
  memory: number;
}

/**
 * Runs the body of an asynchronous function in another process. The body reads `given` from the array of that name, and
 * what it returns must be JSON.
 */
export function runAlone<T>(body: string, given: readonly string[], timeout = 120_000): Alone<T> {
  // On Linux, maxRSS includes the memory of the process that started this one.
  const script = `import { existsSync, readFileSync } from 'node:fs';
    const given = process.argv.slice(1);
    const result = await (async () => { ${body} })();
    const status = existsSync('/proc/self/status') ? readFileSync('/proc/self/status', 'utf8') : '';
    const kilobytes = Number(/VmHWM:\\s+(\\d+)/.exec(status)?.[1] ?? process.resourceUsage().maxRSS);
    console.log(JSON.stringify({ result, memory: 1024 * kilobytes }));`;
  const words = ['--import', 'tsx', '--input-type=module', '-e', script, ...given];
  const { stdout, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8', timeout });
  assert.notEqual(stdout, '', stderr);
  return JSON.parse(stdout) as Alone<T>;
}
