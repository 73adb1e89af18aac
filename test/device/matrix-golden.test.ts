/** Every function on a CUDA device, real or emulated, against the golden cases, and on batches without a mask. */
import { describeGolden, describeUnmasked } from '../matrix/driver.js';

describeGolden('cuda:0');
describeUnmasked('cuda:0');
