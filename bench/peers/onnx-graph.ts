// Builds and encodes ONNX models. A graph is built one operator at a time and encoded with protobufjs. Only the part of
// ONNX is supported that elementwise formulas and sums need.

/** The parts of protobufjs that this file uses. */
export interface Protobuf {
  parse(
    source: string,
    options: { keepCase: boolean },
  ): {
    root: { lookupType(name: string): { encode(message: object): { finish(): Uint8Array } } };
  };
}

/** The name of a tensor in a graph. */
export type Value = string & { readonly __value: unique symbol };

// The messages and fields of onnx.proto that this file writes.
const FORMAT = `
  syntax = "proto2";
  message Model {
    optional int64 ir_version = 1;
    optional Graph graph = 7;
    repeated OperatorSet opset_import = 8;
  }
  message OperatorSet { optional string domain = 1; optional int64 version = 2; }
  message Graph {
    repeated Node node = 1;
    optional string name = 2;
    repeated Tensor initializer = 5;
    repeated ValueInfo input = 11;
    repeated ValueInfo output = 12;
  }
  message Node {
    repeated string input = 1;
    repeated string output = 2;
    optional string op_type = 4;
    repeated Attribute attribute = 5;
  }
  message Attribute { optional string name = 1; optional int64 i = 3; optional int32 type = 20; }
  message Tensor {
    repeated int64 dims = 1;
    optional int32 data_type = 2;
    repeated float float_data = 4 [packed = true];
    repeated int64 int64_data = 7 [packed = true];
    optional string name = 8;
  }
  message ValueInfo { optional string name = 1; optional Type type = 2; }
  message Type { optional TensorType tensor_type = 1; }
  message TensorType { optional int32 elem_type = 1; optional TensorShape shape = 2; }
  message TensorShape { repeated Dimension dim = 1; }
  message Dimension { optional int64 dim_value = 1; }
`;
const IR_VERSION = 8;
const OPSET = 17;
const INT_ATTRIBUTE = 2;
const TYPES = { float: 1, int64: 7, bool: 9 } as const;

/** An ONNX graph that is being built. */
export class Graph {
  readonly #nodes: object[] = [];
  readonly #initializers: object[] = [];
  readonly #inputs: object[] = [];
  readonly #outputs = new Map<Value, object>();
  readonly #constants = new Map<number, Value>();
  #values = 0;

  input(name: string, type: 'float' | 'bool', shape: readonly number[]): Value {
    this.#inputs.push(describe(name, type, shape));
    return name as Value;
  }

  /** Makes a value an output of the graph. The output has the same name as the value. */
  output(value: Value, shape: readonly number[]): void {
    this.#outputs.set(value, describe(value, 'float', shape));
  }

  constant(number: number): Value {
    let value = this.#constants.get(number);
    if (value === undefined) {
      value = this.#name();
      this.#constants.set(number, value);
      this.#initializers.push({ name: value, dims: [], data_type: TYPES.float, float_data: [number] });
    }
    return value;
  }

  /** Adds an ONNX operator to the graph and returns its output. Inputs that are numbers become constants. */
  op(type: string, ...inputs: (Value | number)[]): Value {
    return this.#node(type, inputs, []);
  }

  /** Converts a bool value, such as a mask, to float32. */
  float(value: Value): Value {
    return this.#node('Cast', [value], [{ name: 'to', i: TYPES.float, type: INT_ATTRIBUTE }]);
  }

  /**
   * Sums all elements of a value to a scalar. If `rows` is true, sums each row instead, and the result has one column.
   */
  sum(value: Value, rows = false): Value {
    const keep = [{ name: 'keepdims', i: Number(rows), type: INT_ATTRIBUTE }];
    if (!rows) return this.#node('ReduceSum', [value], keep);
    const axes = this.#name();
    this.#initializers.push({ name: axes, dims: [1], data_type: TYPES.int64, int64_data: [1] });
    return this.#node('ReduceSum', [value, axes], keep);
  }

  encode(protobuf: Protobuf): Uint8Array {
    const model = protobuf.parse(FORMAT, { keepCase: true }).root.lookupType('Model');
    const graph = {
      name: 'policy-loss',
      node: this.#nodes,
      initializer: this.#initializers,
      input: this.#inputs,
      output: [...this.#outputs.values()],
    };
    const opset = { domain: '', version: OPSET };
    return model.encode({ ir_version: IR_VERSION, graph, opset_import: [opset] }).finish();
  }

  #node(op_type: string, inputs: readonly (Value | number)[], attribute: object[]): Value {
    const output = this.#name();
    const input = inputs.map((x) => (typeof x === 'number' ? this.constant(x) : x));
    this.#nodes.push({ op_type, input, output: [output], attribute });
    return output;
  }

  #name(): Value {
    return `v${this.#values++}` as Value;
  }
}

function describe(name: string, type: keyof typeof TYPES, shape: readonly number[]): object {
  const dim = shape.map((dim_value) => ({ dim_value }));
  return { name, type: { tensor_type: { elem_type: TYPES[type], shape: { dim } } } };
}
