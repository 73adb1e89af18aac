// Writes the character-level language model as ONNX files: npx tsx write-onnx.ts FOLDER
//
// An ONNX file is a protobuf message. Its fields are described in onnx.proto; this file encodes the few that it needs.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type CharacterModel, countModel } from './character-model.js';

/** A row of rollouts.jsonl: a prompt, a sampled response, its reward, and a number for each token of the response. */
export interface Rollout {
  task_id: number;
  prompt: string;
  response: string;
  reward: number;
  logprobs: number[];
  old_logprobs: number[];
  ref_logprobs: number[];
}

/** The rollouts of examples/rollouts.jsonl, from whose texts the model is counted. */
export const ROLLOUTS: readonly Rollout[] = readFileSync(
  new URL('../rollouts.jsonl', import.meta.url),
  'utf8',
)
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line));

/** The dtypes of the logits, and their numbers in ONNX. */
const DTYPES = { float32: 1, float16: 10 } as const;
const INT64 = 7;

/** The dtype of a model's logits. */
export type DType = keyof typeof DTYPES;

/** Writes the model twice into a folder: with logits in float32 and in float16. Returns the model and the files. */
export function writeModels(folder: string): { model: CharacterModel; files: Record<DType, string> } {
  const model = countModel(ROLLOUTS.map(({ prompt, response }) => prompt + response));
  const files = { float32: join(folder, 'float32.onnx'), float16: join(folder, 'float16.onnx') };
  for (const dtype of ['float32', 'float16'] as const) writeFileSync(files[dtype], encode(model, dtype));
  return { model, files };
}

/** Encodes a model that takes int64 `ids` of shape [batch, time] and gives `logits` of shape [batch, time, V]. */
function encode({ vocabulary, tables }: CharacterModel, dtype: DType): Uint8Array {
  const size = vocabulary.length;
  const nodes: Uint8Array[] = [];
  const initializers: Uint8Array[] = [];
  const node = (type: string, inputs: string[], output: string, ...attributes: Uint8Array[]) =>
    nodes.push(
      message(
        ...inputs.map((input) => bytes(1, input)),
        bytes(2, output),
        bytes(4, type),
        ...attributes.map((attribute) => bytes(5, attribute)),
      ),
    );
  const tensor = (name: string, type: number, dims: number[], data: ArrayBufferView) =>
    initializers.push(
      message(
        ...dims.map((dim) => integer(1, dim)),
        integer(2, type),
        bytes(8, name),
        bytes(9, new Uint8Array(data.buffer, data.byteOffset, data.byteLength)),
      ),
    );

  tables.forEach((table, k) => {
    tensor(`table${k}`, DTYPES.float32, [size, size], table);
    // Moves the ids by k positions: k zeros come in at the left, and k ids go out at the right.
    tensor(`pads${k}`, INT64, [4], BigInt64Array.from([0n, BigInt(k), 0n, BigInt(-k)]));
    node('Pad', ['ids', `pads${k}`], `ids${k}`);
    node('Gather', [`table${k}`, `ids${k}`], `part${k}`);
  });
  node(
    'Sum',
    [...tables.keys()].map((k) => `part${k}`),
    'sum',
  );
  node('Cast', ['sum'], 'logits', message(bytes(1, 'to'), integer(3, DTYPES[dtype]), integer(20, 2)));

  const value = (name: string, type: number, dims: (string | number)[]) => {
    const shape = dims.map((dim) =>
      bytes(1, message(typeof dim === 'number' ? integer(1, dim) : bytes(2, dim))),
    );
    return message(
      bytes(1, name),
      bytes(2, message(bytes(1, message(integer(1, type), bytes(2, message(...shape)))))),
    );
  };
  const graph = message(
    ...nodes.map((each) => bytes(1, each)),
    bytes(2, 'character-model'),
    ...initializers.map((each) => bytes(5, each)),
    bytes(11, value('ids', INT64, ['batch', 'time'])),
    bytes(12, value('logits', DTYPES[dtype], ['batch', 'time', size])),
  );
  const [irVersion, opset] = [8, 17];
  return message(integer(1, irVersion), bytes(7, graph), bytes(8, message(integer(2, opset))));
}

/** Joins the fields of a protobuf message. */
function message(...fields: Uint8Array[]): Uint8Array {
  return Buffer.concat(fields);
}

/** Encodes a field that is a text, bytes or a message. */
function bytes(field: number, content: string | Uint8Array): Uint8Array {
  const data = Buffer.from(content);
  return Buffer.concat([varint((field << 3) | 2), varint(data.length), data]);
}

/** Encodes a field that is a whole number of at least 0. */
function integer(field: number, value: number): Uint8Array {
  return Buffer.concat([varint(field << 3), varint(value)]);
}

/** Encodes a whole number in groups of 7 bits, the lowest group first. The highest bit says that more follow. */
function varint(value: number): Uint8Array {
  const groups: number[] = [];
  for (; value > 127; value = Math.floor(value / 128)) groups.push((value % 128) | 128);
  return Uint8Array.from([...groups, value]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { files } = writeModels(process.argv[2] ?? '.');
  console.log(`Wrote ${Object.values(files).join(' and ')}`);
}
