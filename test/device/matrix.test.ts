/** Every function on a CUDA device, real or emulated: against the golden cases, the reference, and the CPU. */
import { describeBitsOnDevice, describeDrawn, describeGolden, describeUnmasked } from '../matrix/driver.js';

describeGolden('cuda:0');
describeDrawn('cuda:0');
describeBitsOnDevice();
describeUnmasked('cuda:0');
