/** Tests the functions of lib/logits on a CUDA device, real or emulated. */
import '../logits.test.js';
import '../logits-random.test.js';
