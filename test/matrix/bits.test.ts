/** Every function in every form of a call, which must give the same bits. */
import { describeBits, describeEmpty, describeUnmasked } from './driver.js';

describeBits();
describeEmpty();
describeUnmasked('cpu');
