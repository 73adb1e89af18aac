/** Reads a file in a process of its own, to measure its memory. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { tmpdir } from 'node:os';

const LIBRARY = new URL('../../lib/rollouts/index.ts', import.meta.url).href;

/**
 * Returns the number of rows or the error's message, and the largest memory of the process in bytes.
 * @param temporary the folder for temporary files.
 */
export function readApart(file: string, temporary = tmpdir()): { said: string | number; memory: number } {
  // On Linux, the maxRSS of a process includes that of the process that started it.
  const script = `import { existsSync, readFileSync } from 'node:fs';
    import { streamRollouts } from ${JSON.stringify(LIBRARY)};
    let said = 0;
    try {
      for await (const { rows } of streamRollouts([process.argv[1]], { maxTokens: 2 ** 19 })) said += rows;
    } catch ({ message }) {
      said = message;
    }
    const status = existsSync('/proc/self/status') ? readFileSync('/proc/self/status', 'utf8') : '';
    const kilobytes = /VmHWM:\\s+(\\d+)/.exec(status)?.[1] ?? process.resourceUsage().maxRSS;
    console.log(JSON.stringify({ said, memory: 1024 * kilobytes }));`;
  const { stdout, stderr } = spawnSync(
    process.execPath,
    ['--import', 'tsx', '--input-type=module', '-e', script, file],
    { encoding: 'utf8', env: { ...process.env, TMPDIR: temporary } },
  );
  assert.notEqual(stdout, '', stderr);
  return JSON.parse(stdout);
}
