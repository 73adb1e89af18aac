// Writes gradients as JSON lines. Compresses them by gzip if the file's name ends in .gz.
import { createWriteStream } from 'node:fs';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import { finiteOrText } from './json.js';
import type { WriteStaged } from './staging.js';

/** Writes JSON lines. */
export const writeJsonLines: WriteStaged = async (staging, file, { name }) => {
  async function* lines() {
    for await (const { ids, grad, gradEntropy } of staging.read()) {
      const entropy = gradEntropy && { grad_entropy: shortest(gradEntropy) };
      yield `${JSON.stringify({ ...ids, grad: shortest(grad), ...entropy })}\n`;
    }
  }
  const target = createWriteStream(file);
  if (/\.gz$/i.test(name)) await pipeline(Readable.from(lines()), createGzip(), target);
  else await pipeline(Readable.from(lines()), target);
};

/**
 * Rounds each float32 to the fewest digits, from 6 to 9, that still identify it. Its text is then shorter than the 17
 * digits of a float64. A number that is not finite becomes a string.
 */
export function shortest(floats: Float32Array): (number | string)[] {
  return Array.from(floats, (x) => {
    for (let count = 6; ; count++) {
      const short = Number(x.toPrecision(count));
      if (count === 9 || Math.fround(short) === x) return finiteOrText(short);
    }
  });
}
