// Fails with one clear message if there is no CUDA device, so that the device suite does not fail hundreds of times.
import { devices } from '../../lib/index.js';

const [, first] = devices();
if (first?.available) {
  console.log(`${first.name}: ${first.description}`);
} else {
  console.error(`CUDA device: expected one, got none (${first?.reason.message})`);
  process.exitCode = 1;
}
