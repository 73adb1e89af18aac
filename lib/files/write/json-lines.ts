// Gradients as JSON lines, packed by gzip or not.
import { createWriteStream } from 'node:fs';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import type { WriteStaged } from './gradients.js';

/** Writes JSON lines. */
export const writeJsonLines: WriteStaged = async (staging, file, { gzip }) => {
  async function* lines() {
    for await (const { ids, grad, gradEntropy } of staging.read()) {
      const entropy = gradEntropy && { grad_entropy: digits(gradEntropy) };
      yield `${JSON.stringify({ ...ids, grad: digits(grad), ...entropy })}\n`;
    }
  }
  const target = createWriteStream(file);
  if (gzip) await pipeline(Readable.from(lines()), createGzip(), target);
  else await pipeline(Readable.from(lines()), target);
};

// Nine digits tell every float32 from all others; JSON.stringify would write the seventeen of a float64.
function digits(floats: Float32Array): number[] {
  return Array.from(floats, (x) => Number(x.toPrecision(9)));
}
