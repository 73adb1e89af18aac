/** Every function on a CUDA device, real or emulated, against the reference. */
import { describeDrawn } from '../matrix/driver.js';
import { describeZeros } from '../matrix/zeros.js';

describeDrawn('cuda:0');
describeZeros('cuda:0');
