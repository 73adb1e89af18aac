// The native module's typed face: all that lib/ knows of native/. Arrays are borrowed for the length of a call;
// lib/ has checked their types and lengths and worded the errors, native/ checks them again for memory's sake
// and throws a TypeError.

/** A policy loss, KL estimator and entropy loss made ready to be evaluated together. */
export interface NativeFunction {
  readonly __native: unique symbol;
}

/** An advantage function made ready. */
export interface NativeAdvantage {
  readonly __advantage: unique symbol;
}

/**
 * The CUDA devices of the machine. Compute capabilities are 10·major + minor; versions are of CUDA, 1000·major +
 * 10·minor, and 0 where there is none.
 */
export interface NativeCudaDevices {
  devices: {
    index: number;
    description: string;
    /** In bytes. */
    memory: number;
    capability: number;
    /** What this build has code for. */
    leastCapability: number;
  }[];
  /** The newest that the driver knows. */
  driverVersion: number;
  /** That of this build, which a driver must know at least. */
  buildVersion: number;
  /** Of no device: why. */
  obstacle?: 'built-without-cuda' | 'no-driver' | 'old-driver' | 'no-device' | 'failed';
  /** The same in words. */
  message?: string;
}

/** A batch that lies on a CUDA device. */
export interface NativeResident {
  readonly __resident: unique symbol;
}

export interface NativeFunctionSpec {
  /** `name` is one of native/engine/registry.h; options and choices by the names of its fields. */
  policyLoss?: {
    name: string;
    options: Record<string, number | boolean | string>;
    aggregation: string;
    /** Of the experts' rows, where the loss tells them apart; like the others' if absent. */
    expertAggregation?: string;
  };
  kl?: { name: string; aggregation: string };
  entropy?: { usualRowsOnly: boolean; aggregation: string };
}

/** Order of the columns in `NativeBatch.data`. */
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
  /** T; of packed rows the longest one's length. */
  columns: number;
  /** cuSeqlens of packed rows: B + 1 of them. */
  offsets: Int32Array | undefined;
  /** Columns in the order of NativeColumns: Float32Array, or Uint16Array for 16-bit dtypes. */
  data: (Float32Array | Uint16Array | undefined)[];
  /** For each column 0 float32, 1 float16, 2 bfloat16; plus 4 where it has one value per row. */
  dtypes: number[];
  /** Per token; 0: masked. */
  mask: Uint8Array | undefined;
  /** Per row; not 0: an expert's. */
  expert: Uint8Array | undefined;
  /** Per row, how often it counts (0: as if it were not there); undefined: each once. */
  copies?: Uint32Array | undefined;
}

export interface NativeAdvantageSpec {
  /** `name` is one of native/engine/advantages.h; options and choices by the names of its fields. */
  name: string;
  options: Record<string, number | boolean | string>;
}

/** Order of the columns in `NativeAdvantageBatch.data`; all are per token. */
export type NativeAdvantageColumns = [
  tokenLevelRewards: number,
  oldLogprob: number,
  teacherLogprob: number,
  values: number,
  unused: number,
];

/** A batch as advantage functions read it. */
export interface NativeAdvantageBatch extends NativeBatch {
  /** [B]; in the place of token-level rewards they stand on the last unmasked token. */
  rewards: Float64Array | undefined;
  /** [B] */
  baselines: Float64Array | undefined;
  /** [B] any numbers, the same in a group. */
  groups: Int32Array | undefined;
  /** [B] likewise, the same in a run of a group. */
  runs: Int32Array | undefined;
}

/** What may be asked of an advantage function: per token, or per row where it is over groups. */
export interface NativeAdvantageCall {
  /** [B, T] */
  advantages: Float32Array | undefined;
  /** [B, T], of functions over the rest of a row. */
  returns: Float32Array | undefined;
  /** [B], of functions over groups: every unmasked token's advantage. */
  scores: Float32Array | undefined;
  /** [B], of functions over groups: how often each row counts, 0 where it was dropped. */
  copies: Uint32Array | undefined;
  /** Receives the metrics, in the order of advantageValueNames(). */
  values: Float64Array;
  /** Receives the row of a number that is not finite. */
  notFiniteRow: Float64Array;
  /** Of random choices; a whole number. */
  seed: number;
  /** One element; where it becomes non-zero, advantages() stops and its promise gives -1. */
  abort: Int32Array | undefined;
}

/** An advantage function whose advantages go no further than a loss; members as in NativeAdvantageCall. */
export interface NativeAdvantageOnTheWay {
  fn: NativeAdvantage;
  seed: number;
  values: Float64Array;
  notFiniteRow: Float64Array;
}

/** Counts of a batch: unmasked tokens and rows by kind of row, and T. */
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
  /** Negative where entropy is a bonus. */
  entropyCoef: number | undefined;
  /** Counts of the whole batch that this one is a part of, in the order of NativeCounts. */
  normalizer?: Float64Array | undefined;
  /** Receives this batch's own counts, in the order of NativeCounts. */
  counts?: Float64Array | undefined;
  /** What NativeBatch.copies says, for a resident batch. */
  copies?: Uint32Array | undefined;
  /**
   * Of a resident batch: computes these advantages on the device first, and evaluates with them and with how often
   * they let rows count, in the place of a column of advantages. Where a number is not finite, evaluate() gives
   * -1 - k, k being what advantages() gives then, and nothing else is written.
   */
  advantage?: NativeAdvantageOnTheWay | undefined;
  /** One element; where it becomes non-zero, evaluate() stops and its promise gives -1. */
  abort: Int32Array | undefined;
  /** On a CUDA device: compute the gradient and leave it there, as measurements of the device alone want it. */
  gradStays?: boolean;
  /** On a CUDA device: receives the milliseconds there of all passes and of the token pass alone. */
  timing?: Float64Array;
}

export interface NativeBinding {
  /** The package's, of which the module was built. */
  readonly version: string;
  createFunction(spec: NativeFunctionSpec): NativeFunction;
  valueNames(fn: NativeFunction): string[];
  /**
   * Gives a bit mask of the values that exist. On the CPU it runs on this thread and the pool's; a resident batch is
   * computed where it lies, and a host batch on the CUDA device of that index, where one is given.
   */
  evaluateSync(
    fn: NativeFunction,
    batch: NativeBatch | NativeResident,
    call: NativeCall,
    device?: number,
  ): number;
  /**
   * evaluateSync() of a host batch with a mask, of whose call no more is asked: its arguments come one by one, as to look
   * properties up by name takes longer than a small batch. `dtypes` has the codes of NativeBatch.dtypes in 3 bits each.
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
  /** The same on other threads; -1 if aborted. */
  evaluate(
    fn: NativeFunction,
    batch: NativeBatch | NativeResident,
    call: NativeCall,
    device?: number,
  ): Promise<number>;
  /**
   * Reads what evaluate() would read of a host batch and writes its gradients' arrays, by the same threads in the same
   * tiles, and computes nothing: the time that memory alone takes, for measurements. Gives bits that mean nothing.
   */
  traffic(fn: NativeFunction, batch: NativeBatch, call: NativeCall): Promise<number>;
  /**
   * Without a base: out = the estimator's value per token. With one: out = base − scale·m·kl per token.
   * Gives the mean over rows of the mean of m·kl in each (0 without a base).
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
   * Where a batch is computed is as for evaluateSync(). A resident one reads what was uploaded for advantage functions.
   * Gives 0; 1 where a reward is not finite, 2 a token-level reward, 3 a value, 4 a baseline. Results then mean
   * nothing, and notFiniteRow has the row.
   */
  advantagesSync(
    fn: NativeAdvantage,
    batch: NativeAdvantageBatch | NativeResident,
    call: NativeAdvantageCall,
    device?: number,
  ): number;
  /** The same on other threads; -1 if aborted. */
  advantages(
    fn: NativeAdvantage,
    batch: NativeAdvantageBatch | NativeResident,
    call: NativeAdvantageCall,
    device?: number,
  ): Promise<number>;
  /** SAPO's gate of each ratio and advantage, into out. */
  softGate(
    tauPos: number,
    tauNeg: number,
    ratio: Float32Array,
    advantages: Float32Array,
    out: Float32Array,
  ): void;
  /** At most this many threads compute at once, or copy to devices and back. */
  setThreads(threads: number): void;
  cpu(): { cores: number; threads: number; isa: string };
  /** The CUDA devices. */
  cudaDevices(): NativeCudaDevices;
  /** Bytes per second that a device copies within its memory, each byte counted as read and as written. */
  copyBandwidth(device: number, bytes: number): number;
  /**
   * Copies a batch to a CUDA device; -1 if aborted. `inputs`, of the same shape, has what advantage functions read
   * beside mask and old log-probabilities, which are the batch's.
   */
  upload(
    device: number,
    batch: NativeBatch,
    abort: Int32Array | undefined,
    inputs?: NativeAdvantageBatch,
  ): Promise<NativeResident | -1>;
  /** Frees a resident batch, once no call uses it any more. */
  release(resident: NativeResident): void;
}
