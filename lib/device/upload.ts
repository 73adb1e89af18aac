// Copies a batch from host memory to a CUDA device.
import type { NativeAdvantageBatch, NativeBatch } from '../../binding.js';
import type { AbortSignalLike } from '../base/abortable.js';
import { cuda } from '../base/native.js';
import { type Steps, takeLater, takeNative } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import { COLUMNS, INPUT_NAMES, type InputName, inputRow, ROW_DATA } from '../batch/columns.js';
import { PER_ROW } from '../batch/convert.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { CU_SEQLENS } from '../batch/layout.js';
import { BatchReader, type Conversions, type HostInput, heldBatch } from '../batch/reader.js';
import { hasDefault } from '../batch/row-data.js';
import type { FloatColumn } from '../batch/values.js';
import { requireCuda } from './device.js';
import { DeviceBatch, ResidentValues } from './device-batch.js';
import { deviceColumnSetter, type OnDevice } from './device-column.js';
import { checkStream } from './stream.js';

/** A batch in host memory, some of whose float columns may already be on the device to which it is uploaded. */
export type UploadBatch = {
  [K in keyof Batch]: FloatColumn extends NonNullable<Batch[K]> ? Batch[K] | OnDevice : Batch[K];
};

/** The options of {@link upload}. */
export interface UploadOptions {
  /** The training framework whose key names the batch may use, in addition to Trinity-RFT's; 'verl' by default. */
  backend?: string;
  /**
   * A stream of the device of the batch: a cudaStream_t as a number, such as PyTorch's `stream.cuda_stream`, or
   * 0n for the default stream. The call's work on the device waits for the work that is on the stream when it begins, so
   * the caller need not synchronize the stream that writes the columns in memory of the device.
   */
  stream?: bigint;
  /** A signal that ends the upload early when it is aborted. The upload then rejects with `ERR_ABORTED`. */
  signal?: AbortSignalLike;
}

const MASKS = ['action_mask', 'expert_mask'] as const;
// The inputs that advantage functions read and losses do not.
const ADVANTAGE_INPUTS = INPUT_NAMES.filter((name) => {
  const { type, loss, advantage, member } = inputRow(name);
  return loss === undefined && (advantage !== undefined || (member !== undefined && type !== 'flags'));
});

/**
 * Copies a batch from host memory to a CUDA device, with every column that losses or advantage functions read. A float
 * column may already be in memory of the device: a {@link DeviceColumn} or an {@link IpcColumn}. It is then copied from
 * there.
 *
 * @param device the name of the device: 'cuda', 'cuda:0', ….
 * @returns a promise of the batch on the device. It rejects with LossError `ERR_DEVICE_UNAVAILABLE`,
 * `ERR_OUT_OF_MEMORY` or `ERR_ABORTED`, or with the same LossErrors as compute() if the batch is invalid.
 */
export function upload(batch: UploadBatch, device: string, options?: UploadOptions): Promise<DeviceBatch> {
  return takeLater(copy(batch, device, options), options);
}

function* copy(batch: UploadBatch, device: string, options: UploadOptions | undefined): Steps<DeviceBatch> {
  const index = requireCuda('upload', device, 'The CPU computes host batches without an upload');
  const { backend = 'verl', stream } = options ?? {};
  checkStream(stream, index);
  const { columns, loss, advantage, step, hadAttentionMask } = yield* readAll(
    batch,
    KeyMapper.get(backend),
    index,
  );
  const inputs = advantage as NativeAdvantageBatch | undefined;
  const call = { device: index, batch: loss.native, inputs, stream };
  const resident = yield* takeNative((abort) => cuda.upload({ ...call, abort }));
  const perRow = COLUMNS.filter((_, i) => (loss.native.dtypes[i]! & PER_ROW) !== 0);
  const values = new ResidentValues(index, resident, columns, new Set(perRow));
  return new DeviceBatch(loss.layout, values, step, hadAttentionMask);
}

// The inputs of a batch that are uploaded.
interface Uploaded {
  columns: ReadonlySet<string>;
  loss: HostInput;
  advantage: NativeBatch | undefined;
  step: unknown;
  hadAttentionMask: boolean;
}

function* readAll(given: UploadBatch, mapper: KeyMapper, uploadTo: number): Steps<Uploaded> {
  const batch = heldBatch(given, mapper);
  const isPresent = (name: InputName) =>
    batch !== null && typeof batch === 'object' && find(batch, mapper.keys(name)) !== undefined;
  const columns = COLUMNS.filter(isPresent);
  const hasRows = columns.length === 0 && isPresent('rewards') && !find(batch, ['shape', ...CU_SEQLENS]);
  // Losses that read data of rows read columns too, except those of rewards.
  const hasLosses = columns.length > 0 || isPresent('rewards');
  const numbers = hasLosses ? ROW_DATA.filter((name) => isPresent(name) || hasDefault(name)) : [];
  // A batch without a mask gets one in which all tokens count.
  const masks = MASKS.filter((name) => (name === 'action_mask' && !hasRows) || isPresent(name));
  const conversions: Conversions = new Map();
  const setElsewhere = deviceColumnSetter(uploadTo);
  const step = batch && find(batch, mapper.keys('step'))?.value;
  const reader = new BatchReader(mapper, {
    inputs: [...columns, ...numbers, ...masks],
    perToken: ['logprob', 'entropy', 'values'],
    ofRows: hasRows,
    setElsewhere,
  });
  const inputs = hasRows ? [] : ADVANTAGE_INPUTS.filter(isPresent);
  const loss = yield* reader.read(batch as Batch, conversions);
  let advantage: NativeBatch | undefined;
  if (inputs.length > 0) {
    const further = new BatchReader(mapper, {
      inputs: ['action_mask', ...inputs],
      order: 'advantage',
      setElsewhere,
    });
    advantage = (yield* further.read(batch as Batch, conversions)).native;
  }
  return {
    columns: new Set([...columns, ...numbers, ...masks, ...inputs]),
    loss,
    advantage,
    step,
    hadAttentionMask: isPresent('attention_mask'),
  };
}
