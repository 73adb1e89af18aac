/** Every function against the float64 reference, on batches and with arguments that are drawn at random or have factors of 0. */
import { describeDrawn } from './driver.js';
import { describeZeros } from './zeros.js';

describeDrawn('cpu');
describeZeros('cpu');
