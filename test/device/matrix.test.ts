/** Every function on a CUDA device, real or emulated: against the golden cases, the reference, and the CPU. */
import { describeBitsOnDevice, describeDrawn, describeGolden, describeUnmasked } from '../matrix/driver.js';
import { describeZeros } from '../matrix/zeros.js';

describeGolden('cuda:0');
describeDrawn('cuda:0');
describeZeros('cuda:0');
describeBitsOnDevice();
describeUnmasked('cuda:0');
