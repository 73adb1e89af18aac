// The metric that repeats the loss.
export { lossMetric } from '../../program/loss-program.js';
