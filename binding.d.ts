// The types of the native module. lib/ knows nothing else about native/.
//
// A call borrows its arrays until it ends. lib/ checks their types and lengths and reports errors to users. native/
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
 * The CUDA devices of the machine. A compute capability is given as 10·major + minor. A CUDA version is given as
 * 1000·major + 10·minor, or 0 if there is no driver or no CUDA build.
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
  /** The CUDA version of this build. The driver must support at least this version. */
  buildVersion: number;
  /** Why there is no device. */
  obstacle?: 'built-without-cuda' | 'no-driver' | 'old-driver' | 'no-device' | 'failed';
  /** The reason in words. */
  message?: string;
}

/** A resident batch: one that was copied to a CUDA device and stays there. */
export interface NativeResident {
  readonly __resident: unique symbol;
}

export interface NativeFunctionSpec {
  /** `name` is a loss in native/engine/registry.h. Options and choices have the names in its `fields`. */
  policyLoss?: {
    name: string;
    options: Record<string, number | boolean | string>;
    aggregation: string;
    /** How the expert's rows are aggregated, if the loss tells them apart. Default: `aggregation`. */
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
  /** B, the number of rows. */
  rows: number;
  /** T, or the length of the longest packed row. */
  rowLength: number;
  /** [B + 1] cuSeqlens, if the rows are packed. */
  offsets: Int32Array | undefined;
  /** Columns in the order of NativeColumns: Float32Array, or Uint16Array for 16-bit dtypes. */
  data: (Float32Array | Uint16Array | undefined)[];
  /** Per column: 0 for float32, 1 for float16, 2 for bfloat16, plus 4 if the column has one value per row. */
  dtypes: number[];
  /** [B, T] 0 for masked tokens. */
  mask: Uint8Array | undefined;
  /** [B] not 0 for the expert's rows. */
  expert: Uint8Array | undefined;
  /** [B] how often each row counts; 0 leaves a row out. Undefined: each row counts once. */
  repeats?: Uint32Array | undefined;
}

export interface NativeAdvantageSpec {
  /** `name` is a function in native/engine/advantage_registry.h. Options and choices have the names in its `fields`. */
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
  /** [B] one reward per row, for its last unmasked token. Used instead of token-level rewards. */
  rewards: Float64Array | undefined;
  /** [B] one baseline per row. */
  baselines: Float64Array | undefined;
  /** [B] group numbers. Rows with equal numbers form a group. */
  groups: Int32Array | undefined;
  /** [B] run numbers. Rows of one group with equal numbers form a run. */
  runs: Int32Array | undefined;
}

/** The arrays that receive an advantage function's results. Undefined means that a result is not wanted. */
export interface NativeAdvantageCall {
  /** [B, T] */
  advantages: Float32Array | undefined;
  /** [B, T] for functions over the rest of a row: the returns. */
  returns: Float32Array | undefined;
  /** [B] for functions over groups: the advantage of every unmasked token. */
  scores: Float32Array | undefined;
  /** [B] for functions over groups: how often each row counts; 0 for dropped rows. */
  repeats: Uint32Array | undefined;
  /** Receives the metrics, in the order of advantageValueNames(). */
  values: Float64Array;
  /** One element. Receives the row of an input value that is not finite. */
  notFiniteRow: Float64Array;
  /** The seed of random choices, an integer. */
  seed: number;
  /** One element. If it becomes non-zero, advantages() stops and resolves to -1. */
  abort: Int32Array | undefined;
}

/** An advantage function for a loss in the same call. The other members are those of NativeAdvantageCall. */
export interface NativeFusedAdvantage {
  fn: NativeAdvantage;
  seed: number;
  values: Float64Array;
  notFiniteRow: Float64Array;
}

/** The counts of a batch: unmasked tokens and rows, each by kind of row (usual or an expert's), and T. */
export type NativeCounts = [
  usualTokens: number,
  expertTokens: number,
  usualRows: number,
  expertRows: number,
  rowLength: number,
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
  /** NativeBatch.repeats of a resident batch. */
  repeats?: Uint32Array | undefined;
  /**
   * For a resident batch: first computes these advantages on the device. The loss reads them instead of the batch's
   * advantages, and uses the repeats of a function over groups. If an input value is not finite, evaluate() writes
   * only notFiniteRow and returns -1 - k, where k is what advantages() would return.
   */
  advantage?: NativeFusedAdvantage | undefined;
  /** One element. If it becomes non-zero, evaluate() stops and resolves to -1. */
  abort: Int32Array | undefined;
}

export interface NativeBinding {
  /** The version of the package that the module was built from. */
  readonly version: string;
  createFunction(spec: NativeFunctionSpec): NativeFunction;
  valueNames(fn: NativeFunction): string[];
  /**
   * Evaluates a batch. Returns a bit mask of the values that exist. A resident batch is computed on its device. A host
   * batch is computed on the CUDA device with index `device`. Without `device`, this thread and the pool's threads
   * compute it on the CPU.
   */
  evaluateSync(
    fn: NativeFunction,
    batch: NativeBatch | NativeResident,
    call: NativeCall,
    device?: number,
  ): number;
  /**
   * A version of evaluateSync() for host batches with a mask, on the CPU. It takes separate arguments because looking
   * up properties by name takes longer than computing a small batch. `dtypes` packs NativeBatch.dtypes, 3 bits each,
   * with the first column in the lowest bits.
   */
  evaluateHost(
    fn: NativeFunction,
    rows: number,
    rowLength: number,
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
   * Computes out = kl per token. With a base, computes out = base − scale·m·kl, where m is the mask, and returns the
   * average over rows of each row's mean m·kl. Returns 0 without a base.
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
   * Computes advantages, on the same device as evaluateSync() would use. For a resident batch, the inputs are those
   * that were passed to upload().
   *
   * Returns 0 on success. If an input value is not finite, returns a number for the input: 1 rewards, 2 token-level
   * rewards, 3 values, 4 baselines. The results are then meaningless, and notFiniteRow receives the row.
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
  /** Writes SAPO's gate for each pair of ratio and advantage to `out`. */
  softGate(
    tauPos: number,
    tauNeg: number,
    ratio: Float32Array,
    advantages: Float32Array,
    out: Float32Array,
  ): void;
  /** Limits how many threads compute, or copy to and from devices, at the same time. */
  setThreads(threads: number): void;
  cpu(): { cores: number; threads: number; isa: string };
  cudaDevices(): NativeCudaDevices;
  /**
   * Copies a batch to a CUDA device. Resolves to -1 if aborted. `inputs` holds the inputs of advantage functions and
   * must have the same shape. Its mask and old log-probabilities are not copied; those of the batch are used.
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
