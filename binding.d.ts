// The interface between lib/ and native/: the types of the native module. lib/ uses nothing else of native/.
//
// A call borrows the arrays that are passed to it: it may read and write them until it ends. lib/ checks their types
// and lengths, and reports errors to users. native/ checks them again to protect memory, and throws a TypeError if they
// are wrong.

/**
 * Computes what a descriptor asks for. Without `later`, the calling thread computes it, with the help of the pool's
 * threads if it is large, and the function returns its value. With `later`, other threads compute it, and the function
 * returns a promise of its value. Until the promise settles, the native module refers to the descriptor, which must not
 * change. The memory of its arrays must be neither transferred nor resized.
 */
export interface NativeCompute<Call> {
  /**
   * `abort` has one element. If the caller sets it to a number other than 0, the call ends early and its promise resolves
   * to -1.
   */
  (call: Call & { later: true; abort?: Int32Array | undefined }): Promise<number>;
  (call: Call): number;
}

/** Where a call is computed. */
export interface NativePlace {
  /**
   * The index of the CUDA device that computes a batch in host memory. Undefined for the CPU, and for a resident batch,
   * which its own device computes.
   */
  device?: number | undefined;
  /** Only on a device: a cudaStream_t. The call's work on the device waits for the work that is on the stream. */
  stream?: bigint | undefined;
}

/** A function that is ready to evaluate batches: a policy loss, a KL estimator and an entropy loss, or some of them. */
export interface NativeFunction {
  readonly __native: unique symbol;
}

/** An advantage function that is ready to be called. */
export interface NativeAdvantage {
  readonly __advantage: unique symbol;
}

/**
 * The CUDA devices of the machine. A compute capability is the number 10·major + minor. A CUDA version is the number
 * 1000·major + 10·minor, or 0 without a driver or in a module that was built without CUDA.
 */
export interface NativeCudaDevices {
  devices: {
    index: number;
    description: string;
    /** The size of the device's memory in bytes. */
    memory: number;
    capability: number;
    /** The lowest compute capability that this build supports. */
    leastCapability: number;
  }[];
  /** The newest CUDA version that the driver supports. */
  driverVersion: number;
  /**
   * The oldest CUDA version that the driver may support. It can be older than the one that the module was built with.
   */
  requiredVersion: number;
  /** The kind of reason why no device can be used. Undefined if there is a device. */
  obstacle?: 'built-without-cuda' | 'no-driver' | 'old-driver' | 'no-device' | 'failed';
  /** The reason in words, for error messages. */
  message?: string;
}

/** A resident batch: a batch that was copied to a CUDA device and stays there until it is released. */
export interface NativeResident {
  readonly __resident: unique symbol;
}

/**
 * An array of float32 values in the memory of a CUDA device, which calls write. It has memory from the first successful
 * call on.
 */
export interface NativeDeviceArray {
  readonly __deviceArray: unique symbol;
}

/** A policy loss of native/engine/registry.h. */
export interface NativeLossSpec {
  /** The loss's name in the registry. */
  name: string;
  /** The options and choices of the loss, under the names in its `fields`. */
  options: Record<string, number | boolean | string>;
  aggregation: string;
  /**
   * How the losses of the expert's rows are aggregated, if the loss treats these rows differently from the others. The
   * default is `aggregation`.
   */
  expertAggregation?: string;
  /** Whether the loss of each token is multiplied by the column `weights`. */
  weighted?: boolean;
}

/** A program, as native/program/program.h describes it. */
export interface NativeProgram {
  /**
   * Six numbers per instruction: the index of the operation in NativeBinding.programOps, where the result goes (`out`),
   * and four operands. An operand is 65536·kind + index, with the kinds of program::Kind.
   */
  code: Int32Array;
  constants: Float64Array;
  /** The number of registers that the program uses. */
  registers: number;
  rowValues: number;
  batchValues: number;
  /** The number of metrics of tokens and rows. */
  metrics: number;
  /** The number of metrics of the batch. */
  batchMetrics: number;
  /** Whether rows without unmasked tokens also take part. */
  allRows: boolean;
}

/**
 * A metric of a program: the mean of its values for the tokens or the rows, or its value for the batch. A result of a part
 * of a batch lacks the metrics of the batch.
 */
export interface NativeProgramMetric {
  name: string;
  per: 'token' | 'row' | 'batch';
}

/** A policy loss that is computed by programs. */
export interface NativeProgramLossSpec {
  /**
   * Calls without a gradient run a program of their own, or the one with the gradient if that is faster. Both must output
   * the same losses and metrics.
   */
  program: {
    withGrad: NativeProgram;
    withoutGrad: NativeProgram;
    /** Whether the programs need the whole batch in one call. lib/ checks it. */
    readsWholeBatch: boolean;
  };
  /** The metrics that the programs output. Those of tokens and rows are numbered together, in this order. */
  metrics: readonly NativeProgramMetric[];
  aggregation: string;
}

export interface NativeFunctionSpec {
  policyLoss?: NativeLossSpec | NativeProgramLossSpec;
  kl?: { name: string; aggregation: string };
  entropy?: { usualRowsOnly: boolean; aggregation: string };
}

export interface NativeBatch {
  /** The number of rows. */
  rows: number;
  /** The number of tokens per row. If the rows are packed, the length of the longest row. */
  rowLength: number;
  /** If the rows are packed: the position at which each row begins, then the end of the last row (cuSeqlens). */
  offsets: Int32Array | undefined;
  /**
   * The columns in the order of COLUMNS (lib/batch/columns.ts), or of ADVANTAGE_COLUMNS in a batch of an advantage
   * function, then the weights (see NativeLossSpec.weighted). Undefined where a column is not given. The list may end before columns
   * that are not given. float32 values are in a Float32Array, and 16-bit values in a Uint16Array.
   */
  data: (Float32Array | Uint16Array | undefined)[];
  /**
   * One number for each column: 0 for float32, 1 for float16, 2 for bfloat16. 4 is added if the column has one value
   * per row instead of one per token.
   */
  dtypes: number[];
  /**
   * Only for upload(), update() and calls of evaluate() on a device: the addresses of columns that are copied from memory of
   * the device, in the order of `data`, undefined where a column is in `data` or not given. `dtypes` has their codes too. They
   * must not change until the promise settles.
   */
  pointers?: (bigint | undefined)[];
  /**
   * Of columns in memory of other processes: the cudaIpcMemHandle_t, 64 bytes. `pointers` then holds the offset of the
   * column in that memory.
   */
  handles?: (Uint8Array | undefined)[];
  /** Arrays of deviceArray() whose memory is in `pointers`. They are kept until the promise settles. */
  arrays?: (NativeDeviceArray | undefined)[];
  /** Numbers per row in the order of ROW_DATA, undefined where they are not given. The groups and the
   * pairs are given as the index of the next row of the row's group; after the last row of a group comes the first. */
  rowData?: (Float64Array | undefined)[] | undefined;
  /** One byte per token, 0 if the token is masked (does not count). */
  mask: Uint8Array | undefined;
  /** One byte per row, not 0 if an expert wrote the row. */
  expert: Uint8Array | undefined;
  /** How many times each row counts; 0 leaves the row out. If undefined, each row counts once. */
  repeats?: Uint32Array | undefined;
}

export interface NativeAdvantageSpec {
  /**
   * The function's name in native/engine/advantage_registry.h. `options` holds the options and choices of the function,
   * under the names in its `fields`.
   */
  name: string;
  options: Record<string, number | boolean | string>;
}

/**
 * How the advantages of some tokens spread before they are whitened: the count, the mean, and the sum of the squared
 * deviations from the mean over the unmasked tokens.
 */
export type NativeSpread = [count: number, mean: number, squares: number];

/** A batch from which an advantage function computes advantages. */
export interface NativeAdvantageBatch extends NativeBatch {
  /** One reward per row. The row's last unmasked token earns it. Used instead of token-level rewards. */
  rewards: Float64Array | undefined;
  /** One baseline per row, with which the row's reward is compared. */
  baselines: Float64Array | undefined;
  /** One group number per row. Rows with the same number form a group. */
  groups: Int32Array | undefined;
  /** One run number per row. Rows of a group that have the same number form a run of several steps. */
  runs: Int32Array | undefined;
  /**
   * Several further rewards per row, and the weight of each. Of K rewards, the first array holds K·rows numbers, with
   * the first reward of all rows first. Only for host batches and functions that can combine rewards, which then read
   * these instead of token-level rewards.
   */
  namedRewards?: Float64Array;
  rewardWeights?: Float64Array;
  /**
   * Only on the CPU. How many unmasked tokens each row stands for. A function over groups then weighs the rows by these
   * numbers instead of by the tokens that they have.
   */
  rowTokens?: Float64Array | undefined;
  /**
   * Only on the CPU, if this batch is a part of a larger one: a NativeSpread of all rows of the larger one, which
   * addSpreads() has added up. A function that whitens along rows uses it instead of this batch's own.
   */
  spread?: Float64Array | undefined;
}

/**
 * A call of an advantage function. Most members are arrays that receive a result. Such an array is undefined if the
 * result is not wanted.
 */
export interface NativeAdvantageCall extends NativePlace {
  fn: NativeAdvantage;
  /** A resident batch has the inputs that were passed to upload(). */
  batch: NativeAdvantageBatch | NativeResident;
  /** Receives the advantage of each token. */
  advantages: Float32Array | undefined;
  /** Receives the return of each token, if the function computes returns. */
  returns: Float32Array | undefined;
  /** Receives, for each row, the advantage of all its unmasked tokens. Only functions over groups have scores. */
  scores: Float32Array | undefined;
  /** Receives how many times each row counts, 0 for a dropped row. Only functions over groups have repeats. */
  repeats: Uint32Array | undefined;
  /**
   * Only on the CPU, for functions that whiten along rows: receives a NativeSpread of each row. `advantages` may then be
   * undefined. Receives nothing if the batch has `spread`.
   */
  spreads?: Float64Array | undefined;
  /** Receives the metrics, in the order of advantageValueNames(). */
  values: Float64Array;
  /** One element. If an input value is not finite, it receives the index of that value's row. */
  notFiniteRow: Float64Array;
  /** The seed for the function's random choices. It must be an integer. */
  seed: number;
}

/**
 * An advantage function that computes the advantages for a loss in the same call. Its members other than `fn` have the
 * same meaning as in NativeAdvantageCall.
 */
export interface NativeFusedAdvantage {
  fn: NativeAdvantage;
  seed: number;
  values: Float64Array;
  notFiniteRow: Float64Array;
}

/**
 * The size of a batch: its unmasked tokens and its rows, each counted separately for usual rows and for an expert's
 * rows, and the length of the rows.
 */
export type NativeCounts = [
  usualTokens: number,
  expertTokens: number,
  usualRows: number,
  expertRows: number,
  rowLength: number,
];

/** A call of a function. */
export interface NativeCall extends NativePlace {
  fn: NativeFunction;
  batch: NativeBatch | NativeResident;
  /** Receives the loss and the metrics, in the order of valueNames(). */
  values: Float64Array;
  /**
   * Receives ∂loss/∂logprob for each token, or the gradient by the column of another kind of loss: a Float32Array, a
   * Uint16Array for 16-bit values, or an array on the device that evaluates the batch. It is an address, or an offset in the
   * memory of `gradHandle`, if it is the caller's memory of the device that evaluates a host batch. That may be the memory of
   * a column.
   */
  grad: Float32Array | Uint16Array | NativeDeviceArray | bigint | undefined;
  gradHandle?: Uint8Array | undefined;
  /** Receives ∂loss/∂entropy for each token, as `grad` does. It must be another array. */
  gradEntropy: Float32Array | Uint16Array | NativeDeviceArray | undefined;
  /** The dtype of `grad`, numbered as in NativeBatch.dtypes, plus 8 times that of `gradEntropy`. The default is 0. */
  gradDtypes?: number;
  /** Receives ∂loss/∂log_z for each row, or ∂loss/∂rewards in a loss of rewards. */
  gradLogZ?: Float32Array | undefined;
  mu: number | undefined;
  klCoef: number | undefined;
  /** The factor of the entropy term in the loss. It is negative if a higher entropy is to lower the loss (a bonus). */
  entropyCoef: number | undefined;
  /**
   * If this batch is a part of a larger one: the counts of the whole batch, in the order of NativeCounts. They replace
   * this batch's own counts when the loss is normalized.
   */
  normalizer?: Float64Array | undefined;
  /** Receives this batch's own counts, in the order of NativeCounts. */
  counts?: Float64Array | undefined;
  /** Receives what merge() needs of this batch: `partLength` numbers. */
  part?: Float64Array | undefined;
  /** Only for a resident batch: how many times each of its rows counts, as in NativeBatch.repeats. */
  repeats?: Uint32Array | undefined;
  /** Only for a resident batch: a mask that replaces its own, as in NativeBatch.mask. */
  mask?: Uint8Array | undefined;
  /** Only for a resident batch: the column `weights`, one float32 per token. */
  weights?: Float32Array | undefined;
  /** Only for a resident batch: replaces the column `logprob`, one float32 per token. */
  logprob?: Float32Array | undefined;
  /**
   * Only for a resident batch: the advantage function to run first, on the device. The loss then reads these advantages
   * instead of the batch's own. If the function works on groups, the loss also uses the repeats that it computes. If an
   * input value is not finite, evaluate() writes only notFiniteRow and returns -1 - k, where k is the number that
   * advantages() would return.
   */
  advantage?: NativeFusedAdvantage | undefined;
  /**
   * Only on the CPU, with a function for which gradientIsPerToken() is true: the call then computes `logprob` and
   * `entropy` of these logits, `grad` and `gradEntropy` of their tokens, and writes the gradient with respect to the
   * logits to `out`. It computes no values. The batch's columns of log-probabilities and entropies must contain the
   * memory of `logprob` and `entropy`.
   */
  logits?: NativeLogitsOfTokens | undefined;
}

/** A call that computes a KL estimate for every token. */
export interface NativeKlCall extends NativePlace {
  estimator: string;
  batch: NativeBatch | NativeResident;
  /**
   * Receives the estimates. With `base`, receives base − scale·KL for unmasked tokens, and base for masked ones.
   */
  out: Float32Array;
  base: Float32Array | undefined;
  scale: number;
}

/** A call that computes from logits: log-probabilities or, if `out` is given, the gradient with respect to the logits. */
export interface NativeLogits extends NativePlace {
  rows: number;
  /** The number of logits per row. */
  vocabulary: number;
  /** The distance between the first logits of two rows. */
  rowStride: number;
  /** An address, or an offset in the memory of `dataHandle`, if the logits are in memory of the device. */
  data: Float32Array | Uint16Array | bigint;
  /** The dtype's number, as in NativeBatch.dtypes. */
  dtype: number;
  /** Per row: a token id, or −100 to ignore the row. Must not change during the call. */
  targets: Int32Array;
  temperature: number;
  /** Per row; replaces `temperature`. */
  temperatures: Float64Array | undefined;
  /** 0 for none. */
  softcap: number;
  /** The token ids that take part in each row: those from offsets[row] to offsets[row + 1] − 1. */
  tokenIds?: Int32Array | undefined;
  /** rows + 1 numbers, which must not change during the call. */
  offsets?: Int32Array | undefined;
  /** Per row. Receives the log-probabilities. */
  logprob?: Float32Array | undefined;
  /**
   * Per row. Without `out`, these two receive the results. With `out`, they hold the results of an earlier call; what is
   * missing is computed again.
   */
  logsumexp?: Float64Array | undefined;
  entropy?: Float32Array | undefined;
  /** Receives the gradient. It may be `data`, and is a bigint in the same cases. */
  out?: Float32Array | Uint16Array | bigint;
  outDtype?: number;
  /** The distance between the first numbers of two rows of `out`. */
  outStride?: number;
  /** Per row: the gradients with respect to the log-probability, which `out` needs, and to the entropy. */
  gradLogprob?: Float64Array | undefined;
  gradEntropy?: Float64Array | undefined;
  /**
   * Without `out`: the same number of places for each row, row after row. They receive the tokens with the largest logits
   * first and, of equal logits, smaller ids first; −1 after the last token, and in ignored rows. On a device, the logits
   * must then be in its memory.
   */
  topIds?: Int32Array | undefined;
  /**
   * The same number of further token ids for each row, row after row. −1 stands for none. The call then computes their
   * log-probabilities too or, with `out`, the gradient from those with respect to these, instead of gradLogprob. It takes
   * neither a softcap nor a support.
   */
  listIds?: Int32Array | undefined;
  /** As many log-probabilities as listIds has ids, 0 for an id of −1. A call with `out` reads them, and one without writes them. */
  listLogprob?: Float32Array | undefined;
  /** As many gradients as listIds has ids, with respect to their log-probabilities. */
  gradListLogprob?: Float32Array | undefined;
  /** Per row, with gradListLogprob: the probability of all tokens that are not listed, and the gradient with respect to it. */
  others?: Float64Array | undefined;
  gradOthers?: Float64Array | undefined;
  /** As in NativeBatch.handles: the memory of another process that has the logits, and the gradient. */
  dataHandle?: Uint8Array | undefined;
  outHandle?: Uint8Array | undefined;
  /** One number: receives the milliseconds that the kernels take, as the device measures them. For benchmarks. */
  timing?: Float64Array | undefined;
  /** As in NativeBatch: what has the memory of the logits and of the gradient. */
  arrays?: NativeDeviceArray[];
}

/** The logits of some consecutive tokens of a batch. Row i is the token firstToken + i. */
export interface NativeLogitsOfTokens extends NativeLogits {
  firstToken: number;
}

/**
 * A call on the output head: the layer of a model that turns hidden states into logits. Without any gradient, it computes
 * logits = hidden·weightᵀ + bias. With one, it computes the gradients from that of the logits. Rows that are ignored take
 * no part. On a device, the arrays that may be NativeDeviceArrays must be.
 */
export interface NativeHead extends NativePlace {
  rows: number;
  /** The number of logits per row. */
  vocabulary: number;
  /** The length of a hidden state. */
  size: number;
  /** As in NativeLogits. */
  targets: Int32Array;
  /** [rows, size]; the dtypes are numbered as in NativeBatch.dtypes. */
  hidden: Float32Array | Uint16Array;
  hiddenDtype: number;
  /** [vocabulary, size] */
  weight: Float32Array | Uint16Array;
  weightDtype: number;
  /** [vocabulary] */
  bias?: Float32Array | Uint16Array | undefined;
  biasDtype?: number | undefined;
  /** Only on a device: keeps a copy of `weight`, which the first call makes. Two numbers of 16 bits take one element. */
  weightThere?: NativeDeviceArray | undefined;
  /** The rows from the first one that is not ignored to the last one: the logits, or the gradient with respect to them. */
  logits: Float32Array | NativeDeviceArray;
  /** [rows, size]. The ignored rows become 0. */
  gradHidden?: Float32Array | Uint16Array | undefined;
  gradHiddenDtype?: number | undefined;
  /** [vocabulary, size] */
  gradWeight?: Float32Array | NativeDeviceArray | undefined;
  /** [vocabulary] */
  gradBias?: Float32Array | NativeDeviceArray | undefined;
  /** Whether gradWeight and gradBias contain the sums over earlier rows. */
  adds?: boolean;
}

/** What computes: the contract of every engine. A second engine implements this and has no devices. */
export interface NativeEngine {
  /** The version of the package from whose source the module was built. */
  readonly version: string;
  /** The length of NativeCall.part. Its last number tells the terms: 1 policy loss + 2 KL loss + 4 entropy loss. */
  readonly partLength: number;
  /** The names of the operations of programs. */
  readonly programOps: readonly string[];
  createFunction(spec: NativeFunctionSpec): NativeFunction;
  valueNames(fn: NativeFunction): string[];
  /**
   * Returns whether the gradients of a token depend only on its own columns, on numbers of its row, and on the mask.
   */
  gradientIsPerToken(fn: NativeFunction): boolean;
  /**
   * Returns how many instructions for tokens the interpreter runs in a call with or without a gradient. The other
   * instructions are in loops that are compiled ahead of time (native/program/compiled.h).
   */
  interpretedInstructions(fn: NativeFunction, withGrad: boolean): number;
  /**
   * Evaluates a function on a batch. Bit i of the value is set if values[i] exists. A metric does not exist if it is
   * about rows of a kind (usual or expert) that the batch lacks. For batches of at most 8192 tokens in at most 32 rows,
   * lib/ does not set `later`, also in its asynchronous calls.
   */
  evaluate: NativeCompute<NativeCall>;
  /**
   * Computes the values of a batch from NativeCall.part of each of its parts, of which there is at least one. Returns
   * what evaluate() returns, or -1 if a part has other terms or coefficients than the first.
   * @param counts of the whole batch, in the order of NativeCounts.
   */
  merge(
    fn: NativeFunction,
    parts: readonly Float64Array[],
    counts: Float64Array,
    values: Float64Array,
  ): number;
  /**
   * Computes a KL estimate for every token. The value is 0 without `base`. With `base`, it is the mean KL: the mean over
   * the unmasked tokens of each row, averaged over all rows.
   */
  kl: NativeCompute<NativeKlCall>;
  createAdvantage(spec: NativeAdvantageSpec): NativeAdvantage;
  advantageValueNames(fn: NativeAdvantage): string[];
  /**
   * Computes advantages. The value is 0 on success. If an input value is not finite, the results are meaningless,
   * notFiniteRow receives the index of the value's row, and the value says which input it is: 1 rewards, 2 token-level
   * rewards, 3 values, 4 baselines.
   */
  advantages: NativeCompute<NativeAdvantageCall>;
  /**
   * Adds a NativeSpread of each row to that in `total`. The rows of a batch must be added in order, the first one to
   * zeros: an evaluation of the whole batch adds them in this way, so that the sum has the same bits.
   */
  addSpreads(spreads: Float64Array, total: Float64Array): void;
  /** Computes a call from logits. The value is 0. */
  logits: NativeCompute<NativeLogits>;
  /** Computes logits from hidden states, or the gradients back. The value is 0. */
  head: NativeCompute<NativeHead>;
  /**
   * Computes SAPO's soft gate for each ratio and its advantage, and writes the gates to `out`. `tauPos` is the gate's
   * temperature for positive advantages, and `tauNeg` the one for all others.
   */
  softGate(
    tauPos: number,
    tauNeg: number,
    ratio: Float32Array,
    advantages: Float32Array,
    out: Float32Array,
  ): void;
  /** Limits the number of threads that compute, or copy to and from devices, at the same time. */
  setThreads(threads: number): void;
  cpu(): { cores: number; threads: number; isa: string };
}

/** A batch that is copied to a device, or columns that replace those of a resident batch. */
export interface NativeUpload {
  /** Its float columns may be in memory of the device. */
  batch: NativeBatch;
  /**
   * The inputs of advantage functions, of the same shape. Their mask and old log-probabilities are not copied, because
   * advantage functions use those of the batch.
   */
  inputs?: NativeAdvantageBatch | undefined;
  /** As in NativeCompute. */
  abort?: Int32Array | undefined;
  /** The copies wait for the work that is on this cudaStream_t. */
  stream?: bigint | undefined;
}

/** The CUDA devices, and what is in their memory. */
export interface NativeDevices {
  cudaDevices(): NativeCudaDevices;
  /** Copies a batch to the CUDA device with the index `device`. Resolves to -1 if the call is aborted. */
  upload(call: NativeUpload & { device: number }): Promise<NativeResident | -1>;
  /**
   * Makes another resident batch, in which the given columns replace those of `resident`. `resident` does not change,
   * so calls that read it may be in progress. The two share the memory of everything else. Only float columns are copied,
   * and they must have the shape of `resident`. Resolves to -1 if the call is aborted.
   */
  update(call: NativeUpload & { resident: NativeResident }): Promise<NativeResident | -1>;
  /**
   * Gives device memory that no batch or array occupies, and pinned memory of the host, back to the driver, after the
   * calls in progress on the device. Resolves to 0. Does nothing if no call has used the device.
   */
  trim(device: number): Promise<number>;
  /** Frees the memory of a resident batch as soon as no call uses the batch. Does not wait for that. */
  release(resident: NativeResident): void;
  /** Makes an array of `length` values on a device. If `shareable` is set, other processes can open its memory. */
  deviceArray(device: number, length: number, shareable: boolean): NativeDeviceArray;
  /** Resolves to the cudaIpcMemHandle_t of a shareable array that a call has written, 64 bytes. */
  exportDeviceArray(array: NativeDeviceArray): Promise<Uint8Array>;
  /** Returns the array's address on the device; 0 if no call has written the array, or if its length is 0. */
  deviceArrayAddress(array: NativeDeviceArray): bigint;
  /** Copies an array that a call has written to `out`, after the calls in progress. Resolves to 0. */
  readDeviceArray(array: NativeDeviceArray, out: Float32Array): Promise<number>;
  /** Frees the array's memory as soon as no call uses it. Does not wait for that. */
  releaseDeviceArray(array: NativeDeviceArray): void;
  /**
   * Allocates page-locked memory on the host while `device` is current, and returns a promise of it. `bytes` must be
   * positive. The memory is freed when the ArrayBuffer was collected or detached and no call uses it.
   */
  allocPinned(device: number, bytes: number): Promise<ArrayBuffer>;
  /** Detaches an ArrayBuffer that allocPinned() made. Returns false, and does nothing, if another function made it. */
  freePinned(buffer: ArrayBuffer): boolean;
}

/** The addon: the engine for CPUs, and for CUDA devices if there are any. */
export interface NativeBinding extends NativeEngine, NativeDevices {}
