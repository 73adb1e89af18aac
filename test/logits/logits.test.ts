/** Tests the functions of lib/logits on the CPU. test/device/logits.test.ts tests them on a CUDA device. */
import { testDrawnLogits } from '../support/drawn-logits-suite.js';
import { testLogits } from '../support/logits-suite.js';
import { CPU_WAYS } from '../support/logits-ways.js';

describe('logits', () => testLogits(CPU_WAYS));

describe('drawn logits', () => testDrawnLogits(CPU_WAYS));
