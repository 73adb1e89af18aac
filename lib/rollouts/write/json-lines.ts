// Gradients as JSON lines, packed by gzip or not.
import { createWriteStream } from 'node:fs';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import type { WriteStaged } from './gradients.js';

/** Writes JSON lines. */
export const writeJsonLines: WriteStaged = async (staging, file, { name }) => {
  async function* lines() {
    for await (const { ids, grad, gradEntropy } of staging.read()) {
      const entropy = gradEntropy && { grad_entropy: digits(gradEntropy) };
      yield `${JSON.stringify({ ...ids, grad: digits(grad), ...entropy })}\n`;
    }
  }
  const target = createWriteStream(file);
  if (/\.gz$/i.test(name)) await pipeline(Readable.from(lines()), createGzip(), target);
  else await pipeline(Readable.from(lines()), target);
};

// As many digits as tell a float32 from all others; JSON.stringify would write the seventeen of a float64.
function digits(floats: Float32Array): number[] {
  return Array.from(floats, (x) => {
    for (let count = 6; ; count++) {
      const short = Number(x.toPrecision(count));
      if (count === 9 || Math.fround(short) === x) return short;
    }
  });
}
