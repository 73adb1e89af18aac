// The types of the native module. lib/ knows nothing else about native/.
//
// Arrays are borrowed for the duration of a call. lib/ checks their types and lengths and words the errors. native/
// checks them again to protect memory, and throws a TypeError.

/** A policy loss, a KL estimator and an entropy loss, prepared for evaluation together. */
export interface NativeFunction {
  readonly __native: unique symbol;
}

/** A prepared advantage function. */
export interface NativeAdvantage {
  readonly __advantage: unique symbol;
}

/**
 * The CUDA devices of the machine. A compute capability is 10·major + minor. A CUDA version is 1000·major + 10·minor,
 * or 0 if there is none.
 */
export interface NativeCudaDevices {
  devices: {
    index: number;
    description: string;
    /** Bytes of device memory. */
    memory: number;
    capability: number;
    /** The lowest compute capability that this build supports. */
    leastCapability: number;
  }[];
  /** The newest CUDA version that the driver supports. */
  driverVersion: number;
  /** The CUDA version of this build. A driver must support at least this one. */
  buildVersion: number;
  /** The reason why there is no device. */
  obstacle?: 'built-without-cuda' | 'no-driver' | 'old-driver' | 'no-device' | 'failed';
  /** The reason in words. */
  message?: string;
}

/** A batch in the memory of a CUDA device. */
export interface NativeResident {
  readonly __resident: unique symbol;
}

export interface NativeFunctionSpec {
  /** `name` is a loss of native/engine/registry.h. Options and choices have the names of its fields. */
  policyLoss?: {
    name: string;
    options: Record<string, number | boolean | string>;
    aggregation: string;
    /** The aggregation of the expert's rows, if the loss has any. Default: `aggregation`. */
    expertAggregation?: string;
  };
  kl?: { name: string; aggregation: string };
  entropy?: { usualRowsOnly: boolean; aggregation: string };
}

/** The order of the columns in `NativeBatch.data`. */
export type NativeColumns = [
  logprob: number,
  oldLogprob: number,
  refLogprob: number,
  advantages: number,
  entropy: number,
];

export interface NativeBatch {
  /** B */
  rows: number;
  /** T, or the length of the longest packed row. */
  columns: number;
  /** [B + 1] cuSeqlens, if the rows are packed. */
  offsets: Int32Array | undefined;
  /** Columns in the order of NativeColumns: Float32Array, or Uint16Array for 16-bit dtypes. */
  data: (Float32Array | Uint16Array | undefined)[];
  /** Per column: 0 for float32, 1 for float16, 2 for bfloat16, plus 4 if the column has one value per row. */
  dtypes: number[];
  /** [B, T] 0 if masked. */
  mask: Uint8Array | undefined;
  /** [B] not 0 if the row is an expert's. */
  expert: Uint8Array | undefined;
  /** [B] how often a row counts, 0 to leave it out. Undefined: each row counts once. */
  copies?: Uint32Array | undefined;
}

export interface NativeAdvantageSpec {
  /** `name` is a function of native/engine/advantage_registry.h. Options and choices have the names of its fields. */
  name: string;
  options: Record<string, number | boolean | string>;
}

/** The order of the columns in `NativeAdvantageBatch.data`. All are per token. */
export type NativeAdvantageColumns = [
  tokenLevelRewards: number,
  oldLogprob: number,
  teacherLogprob: number,
  values: number,
  unused: number,
];

/** The batch of an advantage function. */
export interface NativeAdvantageBatch extends NativeBatch {
  /** [B] rewards of the last unmasked tokens. They replace token-level rewards. */
  rewards: Float64Array | undefined;
  /** [B] */
  baselines: Float64Array | undefined;
  /** [B] rows with equal numbers form a group. */
  groups: Int32Array | undefined;
  /** [B] rows of a group with equal numbers form a run. */
  runs: Int32Array | undefined;
}

/** The results that an advantage function is asked for. Undefined arrays are not wanted. */
export interface NativeAdvantageCall {
  /** [B, T] */
  advantages: Float32Array | undefined;
  /** [B, T] for functions over the rest of a row. */
  returns: Float32Array | undefined;
  /** [B] for functions over groups: the advantage of every unmasked token. */
  scores: Float32Array | undefined;
  /** [B] for functions over groups: how often a row counts, 0 if it was dropped. */
  copies: Uint32Array | undefined;
  /** Receives the metrics, in the order of advantageValueNames(). */
  values: Float64Array;
  /** Receives the row of a value that is not finite. */
  notFiniteRow: Float64Array;
  /** The seed of random choices, an integer. */
  seed: number;
  /** One element. If it becomes non-zero, advantages() stops and resolves to -1. */
  abort: Int32Array | undefined;
}

/** An advantage function whose advantages only a loss reads. The members are those of NativeAdvantageCall. */
export interface NativeAdvantageOnTheWay {
  fn: NativeAdvantage;
  seed: number;
  values: Float64Array;
  notFiniteRow: Float64Array;
}

/** The counts of a batch: unmasked tokens and rows by kind of row, and T. */
export type NativeCounts = [
  usualTokens: number,
  expertTokens: number,
  usualRows: number,
  expertRows: number,
  columns: number,
];

export interface NativeCall {
  /** Receives the loss and the metrics, in the order of valueNames(). */
  values: Float64Array;
  /** Receives ∂loss/∂logprob per token. */
  grad: Float32Array | undefined;
  /** Receives ∂loss/∂entropy per token. */
  gradEntropy: Float32Array | undefined;
  mu: number | undefined;
  klCoef: number | undefined;
  /** Negative if entropy is a bonus. */
  entropyCoef: number | undefined;
  /** The counts of the whole batch if this batch is a part of it, in the order of NativeCounts. */
  normalizer?: Float64Array | undefined;
  /** Receives this batch's own counts, in the order of NativeCounts. */
  counts?: Float64Array | undefined;
  /** NativeBatch.copies of a resident batch. */
  copies?: Uint32Array | undefined;
  /**
   * For a resident batch: computes these advantages on the device first. The loss reads them, and how often their
   * function lets a row count, instead of the batch's own. If a value is not finite, evaluate() writes nothing and
   * returns -1 - k, where k is the result of advantages().
   */
  advantage?: NativeAdvantageOnTheWay | undefined;
  /** One element. If it becomes non-zero, evaluate() stops and resolves to -1. */
  abort: Int32Array | undefined;
}

export interface NativeBinding {
  /** The version of the package that the module was built from. */
  readonly version: string;
  createFunction(spec: NativeFunctionSpec): NativeFunction;
  valueNames(fn: NativeFunction): string[];
  /**
   * Returns a bit mask of the values that exist. A resident batch is computed on its device. A host batch is computed
   * on the CUDA device with index `device`, or without one on the CPU, by this thread and the pool's.
   */
  evaluateSync(
    fn: NativeFunction,
    batch: NativeBatch | NativeResident,
    call: NativeCall,
    device?: number,
  ): number;
  /**
   * A form of evaluateSync() for host batches with a mask, on the CPU. Its arguments come one by one because looking up
   * properties by name takes longer than computing a small batch. `dtypes` packs NativeBatch.dtypes, 3 bits each.
   */
  evaluateHost(
    fn: NativeFunction,
    rows: number,
    columns: number,
    offsets: Int32Array | undefined,
    dtypes: number,
    logprob: Float32Array | Uint16Array | undefined,
    oldLogprob: Float32Array | Uint16Array | undefined,
    refLogprob: Float32Array | Uint16Array | undefined,
    advantages: Float32Array | Uint16Array | undefined,
    entropy: Float32Array | Uint16Array | undefined,
    mask: Uint8Array,
    expert: Uint8Array | undefined,
    values: Float64Array,
    grad: Float32Array | undefined,
    gradEntropy: Float32Array | undefined,
    mu: number | undefined,
    klCoef: number | undefined,
    entropyCoef: number | undefined,
  ): number;
  /** Runs evaluateSync() on other threads. Resolves to -1 if aborted. */
  evaluate(
    fn: NativeFunction,
    batch: NativeBatch | NativeResident,
    call: NativeCall,
    device?: number,
  ): Promise<number>;
  /**
   * Computes out = kl per token, or with a base out = base − scale·m·kl. Returns the mean over rows of each row's mean
   * of m·kl, or 0 without a base.
   */
  klSync(
    estimator: string,
    batch: NativeBatch | NativeResident,
    out: Float32Array,
    base: Float32Array | undefined,
    scale: number,
    device?: number,
  ): number;
  kl(
    estimator: string,
    batch: NativeBatch | NativeResident,
    out: Float32Array,
    base: Float32Array | undefined,
    scale: number,
    device?: number,
  ): Promise<number>;
  createAdvantage(spec: NativeAdvantageSpec): NativeAdvantage;
  advantageValueNames(fn: NativeAdvantage): string[];
  /**
   * Computes advantages where evaluateSync() would compute. A resident batch uses the inputs that upload() got.
   *
   * Returns 0, or the input in which a value is not finite: 1 rewards, 2 token-level rewards, 3 values, 4 baselines. The
   * results are then meaningless, and notFiniteRow receives the row.
   */
  advantagesSync(
    fn: NativeAdvantage,
    batch: NativeAdvantageBatch | NativeResident,
    call: NativeAdvantageCall,
    device?: number,
  ): number;
  /** Runs advantagesSync() on other threads. Resolves to -1 if aborted. */
  advantages(
    fn: NativeAdvantage,
    batch: NativeAdvantageBatch | NativeResident,
    call: NativeAdvantageCall,
    device?: number,
  ): Promise<number>;
  /** Writes SAPO's gate of each ratio and advantage to `out`. */
  softGate(
    tauPos: number,
    tauNeg: number,
    ratio: Float32Array,
    advantages: Float32Array,
    out: Float32Array,
  ): void;
  /** Limits the threads that compute, or copy to devices and back, at the same time. */
  setThreads(threads: number): void;
  cpu(): { cores: number; threads: number; isa: string };
  cudaDevices(): NativeCudaDevices;
  /**
   * Copies a batch to a CUDA device. Resolves to -1 if aborted. `inputs` has the same shape and holds the inputs of
   * advantage functions, except for the mask and the old log-probabilities, which are those of the batch.
   */
  upload(
    device: number,
    batch: NativeBatch,
    abort: Int32Array | undefined,
    inputs?: NativeAdvantageBatch,
  ): Promise<NativeResident | -1>;
  /** Frees a resident batch as soon as no call uses it. */
  release(resident: NativeResident): void;
}
