// Measures how much memory compute() needs in addition to its inputs and outputs. A separate process (memory-child.ts)
// computes every function once, with arrays that exist already. Linux reports how much that process grew.
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { Shape } from './batch.js';
import type { TableContent } from './tables.js';

/**
 * Returns the peak growth of memory during compute() in bytes, by function. Returns undefined on systems other than
 * Linux.
 */
export async function measureMemory(
  shape: Shape,
  only: RegExp | undefined,
): Promise<Record<string, number> | undefined> {
  if (process.platform !== 'linux') return undefined;
  const script = fileURLToPath(new URL('memory-child.ts', import.meta.url));
  const child = fork(script, [JSON.stringify(shape), only?.source ?? '']);
  const [[results]] = await Promise.race([
    Promise.all([once(child, 'message'), once(child, 'exit')]),
    once(child, 'error').then(([error]) => Promise.reject(error)),
    once(child, 'exit').then(([code]) => (code === 0 ? new Promise<never>(() => {}) : failed(code))),
  ]);
  return results as Record<string, number>;
}

function failed(code: number): never {
  throw new Error(`the process that measures memory: expected exit code 0, got ${code}`);
}

export function memoryTable(memory: Record<string, number>, [rows, columns]: Shape): TableContent {
  return {
    title: `Peak growth of the process’s memory during compute(), forward and gradient, ${rows}×${columns}`,
    head: ['function', 'MB'],
    rows: Object.entries(memory).map(([id, bytes]) => [id, (bytes / 1e6).toFixed(3)]),
  };
}
