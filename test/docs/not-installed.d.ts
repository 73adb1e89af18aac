// What the code of README.md and docs uses of packages that are not installed here.
declare module 'onnxruntime-node' {
  export class Tensor {
    constructor(type: 'int64', data: BigInt64Array, dims: readonly number[]);
    readonly type: string;
    readonly dims: readonly number[];
    readonly data: Float32Array | Uint16Array | BigInt64Array;
  }
  export class InferenceSession {
    static create(path: string): Promise<InferenceSession>;
    run(inputs: Record<string, Tensor>): Promise<Record<string, Tensor>>;
  }
}
declare module '@huggingface/transformers';
declare module '@bull-board/api';
declare module '@bull-board/api/bullMQAdapter';
declare module '@bull-board/express';
declare module 'express';
