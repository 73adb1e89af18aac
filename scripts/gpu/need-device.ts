// Ends with a plain word where there is no CUDA device, in place of a suite that fails hundreds of times over.
import { devices } from '../../lib/index.js';

const [, first] = devices();
if (first?.available) {
  console.log(`${first.name}: ${first.description}`);
} else {
  console.error(`There is no CUDA device to test: ${first?.reason.message}`);
  process.exitCode = 1;
}
