import { existsSync, readFileSync } from 'node:fs';

/** Returns the largest memory that this process has taken so far, in bytes. */
export function peakMemory(): number {
  // On Linux, maxRSS includes the memory of the process that started this one.
  const status = existsSync('/proc/self/status') ? readFileSync('/proc/self/status', 'utf8') : '';
  return 1024 * Number(/VmHWM:\s+(\d+)/.exec(status)?.[1] ?? process.resourceUsage().maxRSS);
}
