/** Every function against the float64 reference, on batches and with arguments that are drawn at random. */
import { describeDrawn } from './driver.js';

describeDrawn('cpu');
