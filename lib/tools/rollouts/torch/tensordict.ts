// TensorDicts, as the tensordict library writes them into pickles: all tensors in the bytes of a single one.
import { BadObject, PyList } from '../pickle/values.js';
import { sizeOfShape } from '../tensor/tensor.js';
import { dtypeNamed, isShape, Jagged, Storage, Strided } from './strided.js';

const NESTED_VALUES = '<NJT_VALUES>';
const NESTED_OFFSETS = '<NJT_OFFSETS>';
const MAX_NESTED_ROWS = 2 ** 20;
const BYTES_PER_LEAF = 512;

/**
 * Returns the tensors by their names.
 * @param args metadata, whose `leaves` say where each tensor is: (type, shape, start, stop, padding); and a tensor of
 * bytes.
 */
export function rebuildConsolidated([metadata, all]: readonly unknown[]): Map<string, unknown> {
  const leaves = metadata instanceof Map ? metadata.get('leaves') : undefined;
  if (!(leaves instanceof Map) || !(all instanceof Strided) || all.storage.elementBytes !== 1)
    throw new BadObject('leaves and bytes of a TensorDict', 'other values');
  const { budget } = all.storage.bytes;
  budget.hold(BYTES_PER_LEAF * leaves.size);
  const tensors = new Map<string, unknown>();
  const nested = new Map<string, Strided>();
  for (const [name, leaf] of leaves) {
    if (typeof name !== 'string' || !Array.isArray(leaf)) continue;
    const tensor = leafOf(leaf, all);
    if (name.startsWith('<')) nested.set(name, tensor);
    else tensors.set(name, tensor);
  }
  for (const [name, values] of nested) {
    if (!name.startsWith(NESTED_VALUES)) continue;
    const plain = name.slice(NESTED_VALUES.length);
    const offsets = nested.get(`${NESTED_OFFSETS}${plain}`);
    if (!offsets || !(sizeOfShape(offsets.shape) <= MAX_NESTED_ROWS))
      throw new BadObject(`the offsets of ${plain.slice(0, 40)}`, 'none, or too many');
    budget.hold(Float64Array.BYTES_PER_ELEMENT * sizeOfShape(offsets.shape));
    tensors.set(plain, new Jagged(values, offsets.values()));
  }
  return tensors;
}

function leafOf([type, shape, start, stop, padding]: readonly unknown[], all: Strided): Strided {
  const sizes = shape instanceof PyList && shape.length <= 64 ? shape.items() : shape;
  if (!isShape(sizes) || !isNatural(start) || !isNatural(stop) || !isNatural(padding))
    throw new BadObject('type, shape and place of a tensor', 'other values');
  const { bytes } = all.storage;
  const dtype = dtypeNamed(type);
  // Tensors begin at multiples of eight bytes. The bytes up to the next one belong to no tensor.
  const size = stop - start - padding;
  if (size < 0 || all.offset + stop > bytes.size)
    throw new BadObject(`a tensor within ${bytes.size} bytes`, `one from ${start} to ${stop}`);
  return Strided.contiguous(Storage.of(bytes.slice(all.offset + start, size), dtype), sizes);
}

function isNatural(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
