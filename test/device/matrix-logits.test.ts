/** Every loss from logits on a CUDA device, real or emulated, against the golden cases and the reference. */
import { describeLogits } from '../matrix/logits-losses.js';

describeLogits('cuda:0');
