/** Reads a file in a process of its own, to measure its memory. */
import { type Alone, runAlone } from '../../support/alone.js';

const LIBRARY = new URL('../../../lib/tools/rollouts/index.js', import.meta.url).href;

/**
 * Returns the number of rows or the error's message, and the largest memory of the process in bytes.
 * @param temporary the folder for temporary files; by default that of the system.
 */
export function readApart(file: string, temporary?: string): Alone<string | number> {
  return runAlone(
    `const { streamRollouts } = await import(given[0]);
    let rows = 0;
    try {
      for await (const part of streamRollouts([given[1]], { maxTokens: 2 ** 19 })) rows += part.rows;
    } catch ({ message }) {
      return message;
    }
    return rows;`,
    [LIBRARY, file],
    { env: temporary === undefined ? process.env : { ...process.env, TMPDIR: temporary } },
  );
}
