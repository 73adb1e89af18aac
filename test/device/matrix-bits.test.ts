/** Every function on a CUDA device, real or emulated, against the CPU. */
import { describeBitsOnDevice } from '../matrix/driver.js';

describeBitsOnDevice();
