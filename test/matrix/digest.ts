// Prints the digests of every function's results on drawn batches, as JSON. instruction-sets.test.ts runs it once per instruction
// set and compares the output.
import { createHash } from 'node:crypto';
import { EDGE_LENGTHS, layOut } from '../support/draw.js';
import { everyTested } from './functions.js';

const digests: Record<string, string> = {};
for (const on of everyTested()) {
  const { numbers, tokens } = on.sync(layOut(on.draw(EDGE_LENGTHS)));
  const hash = createHash('sha256').update(JSON.stringify(numbers));
  for (const column of Object.values(tokens)) {
    const { buffer, byteOffset, byteLength } = column instanceof Float32Array ? column : column.data;
    hash.update(new Uint8Array(buffer, byteOffset, byteLength));
  }
  digests[on.title] = hash.digest('hex');
}
console.log(JSON.stringify(digests));
