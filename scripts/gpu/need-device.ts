// Prints the CUDA device, or fails with one clear message if there is none. Without this check, hundreds of tests in
// the device suite would fail instead.
import { devices } from '../../lib/index.js';

const [, first] = devices();
if (first?.available) {
  console.log(`${first.name}: ${first.description}`);
} else {
  console.error(`CUDA device: expected one, got none (${first?.reason.message})`);
  process.exitCode = 1;
}
