// Looks for faults in dumps of training steps.
export type { Check, Evidence, Examiner, Need, Outcome, Severity } from './check.js';
export { CHECKS } from './checks/index.js';
export { type DiagnoseOptions, diagnose } from './diagnose.js';
export {
  type CheckRun,
  type Diagnosis,
  Examination,
  type Finding,
  type FindingRows,
  textOf,
} from './examination.js';
export { RowMeasurer, RowReplay } from './measured-rows.js';
export { differences, Row } from './row.js';
