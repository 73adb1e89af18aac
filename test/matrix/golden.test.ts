/** Every function against its golden cases, and the float64 reference and losses as expressions. */
import { describeCoverage, describeGolden, describeReferences, describeWritten } from './driver.js';

describeCoverage();
describeReferences();
describeGolden('cpu');
describeWritten();
