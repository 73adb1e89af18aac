/** Makes the text of large rollout files. */
import { generator } from '../../test/support/random.js';

// The seed is fixed, so that every run writes the same file.
const random = generator(1).uniform;

/** Makes a rollout with random values and 100 to 1,899 tokens. textOf() adds the task_id. */
function makeRow(): Record<string, unknown> {
  const tokens = 100 + Math.floor(1800 * random());
  const list = (value: (t: number) => number) =>
    Array.from({ length: tokens }, (_, t) => Number(value(t).toPrecision(6)));
  const old = list(() => -3 * random());
  return {
    prompt: 'What is asked. '.repeat(20),
    response: 'said '.repeat(tokens),
    reward: Number(random().toFixed(3)),
    logprobs: list((t) => old[t]! + 0.4 * (random() - 0.5)),
    old_logprobs: old,
    ref_logprobs: list((t) => old[t]! + 0.4 * (random() - 0.5)),
  };
}

/**
 * Yields the lines of the file until they have `bytes` bytes in total. Each line is a random choice from 512 rollouts.
 * Eight successive lines have the same task_id.
 */
export function* textOf(bytes: number, csv: boolean): Generator<string> {
  const rows = Array.from({ length: 512 }, makeRow);
  const cell = (value: unknown) =>
    typeof value === 'number'
      ? String(value)
      : `"${typeof value === 'string' ? value : JSON.stringify(value)}"`;
  const bodies = rows.map((row) =>
    csv ? Object.values(row).map(cell).join(',') : JSON.stringify(row).slice(1),
  );
  if (csv) yield `task_id,${Object.keys(rows[0]!).join(',')}\n`;
  for (let written = 0, index = 0; written < bytes; index++) {
    const body = bodies[Math.floor(random() * bodies.length)]!;
    const task = index >> 3;
    const line = csv ? `${task},${body}\n` : `{"task_id":${task},${body}\n`;
    written += line.length;
    yield line;
  }
}
