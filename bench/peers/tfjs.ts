// Runs TensorFlow.js as a peer, on its WebAssembly backend with SIMD. This is the fastest of its CPU backends that need
// no install script. In Node it has one thread. Gradients come from automatic differentiation. The inputs are copied to
// the backend's memory before the timing, but the times include reading back the results.
import type { Inputs } from '../lib/batch.js';
import { syncContender } from '../lib/race.js';
import type { Outcome, Work } from '../lib/works.js';
import { type Found, importIfThere, type Peer, type Prepared } from './peer.js';

const NAME = 'TensorFlow.js';

/** The methods of a tensor that this file uses. */
interface Tensor {
  add(x: Tensor | number): Tensor;
  sub(x: Tensor | number): Tensor;
  mul(x: Tensor | number): Tensor;
  div(x: Tensor | number): Tensor;
  neg(): Tensor;
  exp(): Tensor;
  square(): Tensor;
  clipByValue(low: number, high: number): Tensor;
  maximum(x: Tensor | number): Tensor;
  minimum(x: Tensor | number): Tensor;
  greater(x: Tensor | number): Tensor;
  less(x: Tensor | number): Tensor;
  logicalAnd(x: Tensor): Tensor;
  where(condition: Tensor, otherwise: Tensor): Tensor;
  toFloat(): Tensor;
  sum(axis?: number, keepDims?: boolean): Tensor;
  mean(): Tensor;
  clone(): Tensor;
  dataSync(): Float32Array;
  dispose(): void;
}

/** The parts of TensorFlow.js that this file uses. */
interface TensorFlow {
  version: { tfjs: string };
  setBackend(name: string): Promise<boolean>;
  ready(): Promise<void>;
  tensor2d(values: Float32Array, shape: readonly number[]): Tensor;
  tidy(work: () => void): void;
  valueAndGrads(
    f: (...x: Tensor[]) => Tensor,
  ): (x: readonly Tensor[]) => { value: Tensor; grads: readonly Tensor[] };
}

/**
 * The columns of a batch as tensors. When TensorFlow.js differentiates a loss by a column, it replaces that column's
 * tensor with another one.
 */
interface Columns {
  logprob: Tensor;
  oldLogprob: Tensor;
  refLogprob: Tensor;
  advantages: Tensor;
  entropy: Tensor;
  /** 1 for each unmasked token, 0 for each masked one. */
  mask: Tensor;
}

/** The metrics of a loss. Those that are tensors have not been read back from the backend yet. */
type Metrics = Record<string, Tensor | number>;

type Formula = (
  x: Columns,
  args: Record<string, number>,
  constant: Columns,
) => { loss: Tensor; metrics: Metrics };

const KL_COEF = 0.001;

function maskedMean(values: Tensor, { mask }: Columns): Tensor {
  // Sums each row first, and then the sums of the rows. The backend adds float32 numbers one by one, so a single sum of
  // four million terms would lose three digits.
  return values.mul(mask).sum(1).sum().div(mask.sum(1).sum().add(1e-8));
}

const ppo: Formula = (x) => {
  const d = x.logprob.sub(x.oldLogprob).clipByValue(-20, 20);
  const ratio = d.exp();
  const opposite = x.advantages.neg();
  const free = opposite.mul(ratio);
  const bounded = opposite.mul(ratio.clipByValue(0.8, 1.2));
  const upper = free.maximum(bounded);
  const lower = opposite.mul(3);
  const negative = x.advantages.less(0);
  const loss = maskedMean(lower.minimum(upper).where(negative, upper), x);
  const metrics = {
    pg_clipfrac: maskedMean(bounded.greater(free).toFloat(), x),
    pg_clipfrac_lower: maskedMean(upper.greater(lower).logicalAnd(negative).toFloat(), x),
    ppo_kl: maskedMean(d.neg(), x),
    pg_loss: loss,
  };
  return { loss, metrics };
};

const gspo: Formula = (x, _args, constant) => {
  const difference = constant.logprob.sub(x.oldLogprob);
  const tokens = x.mask.sum(1, true).add(1e-8);
  const means = difference.mul(x.mask).sum(1, true).div(tokens);
  // For every token, the value is the ratio of the whole sequence, but the derivative is with respect to the token's
  // own logprob.
  const ratio = x.logprob.sub(constant.logprob).add(means).exp();
  const opposite = x.advantages.neg();
  const free = opposite.mul(ratio);
  const bounded = opposite.mul(ratio.clipByValue(1 - 0.0003, 1 + 0.0004));
  const loss = free.maximum(bounded).mul(x.mask).sum(1, true).div(tokens).mean();
  const metrics = {
    pg_clipfrac: maskedMean(bounded.greater(free).toFloat(), x),
    ppo_kl: maskedMean(difference.neg(), x),
    ppo_kl_seq: means.neg().mean(),
    pg_loss: loss,
  };
  return { loss, metrics };
};

const sft: Formula = (x) => {
  const loss = maskedMean(x.logprob.neg(), x);
  return { loss, metrics: { sft_loss: loss } };
};

function klLoss(values: Tensor, x: Columns): { loss: Tensor; metrics: Metrics } {
  const kl = maskedMean(values, x);
  return { loss: kl.mul(KL_COEF), metrics: { kl_loss: kl, kl_coef: KL_COEF } };
}

const k3: Formula = (x) => {
  const d = x.refLogprob.sub(x.logprob);
  return klLoss(d.exp().sub(1).sub(d), x);
};

const grpo: Formula = (x, args, constant) => {
  const policy = ppo(x, args, constant);
  const kl = klLoss(x.refLogprob.sub(x.logprob).square().mul(0.5), x);
  const entropy = maskedMean(x.entropy, x);
  return {
    loss: policy.loss.sub(entropy.mul(args.entropy_coef!)).add(kl.loss),
    metrics: { ...policy.metrics, ...kl.metrics, entropy_loss: entropy },
  };
};

const FORMULAS: Record<string, Formula> = { ppo, gspo, sft, 'kl k3': k3, 'grpo objective': grpo };

/** Returns TensorFlow.js as a peer, or says why it is absent. It must be installed in bench/. */
export async function tfjs(): Promise<Found> {
  const tf = await importIfThere<TensorFlow>('@tensorflow/tfjs');
  if (!tf || !(await importIfThere('@tensorflow/tfjs-backend-wasm')))
    return { name: NAME, absent: '@tensorflow/tfjs is not installed in bench/' };
  if (!(await tf.setBackend('wasm'))) return { name: NAME, absent: 'its wasm backend does not start' };
  await tf.ready();
  return new TensorFlowPeer(tf);
}

class TensorFlowPeer implements Peer {
  readonly name = NAME;
  readonly version: string;
  readonly #tf: TensorFlow;
  #columns: Columns | undefined;

  constructor(tf: TensorFlow) {
    this.version = `${tf.version.tfjs}, wasm`;
    this.#tf = tf;
  }

  covers({ id }: Work): boolean {
    return FORMULAS[id] !== undefined;
  }

  async load(inputs: Inputs): Promise<void> {
    this.#release();
    const column = (values: Float32Array) => this.#tf.tensor2d(values, inputs.shape);
    this.#columns = {
      logprob: column(inputs.logprob),
      oldLogprob: column(inputs.oldLogprob),
      refLogprob: column(inputs.refLogprob),
      advantages: column(inputs.advantages),
      entropy: column(inputs.entropy),
      mask: column(Float32Array.from(inputs.actionMask)),
    };
  }

  async prepare(work: Work, gradient: boolean): Promise<Prepared> {
    const columns = this.#columns!;
    const { wrt, args } = work;
    const formula = FORMULAS[work.id]!;
    // This clone shares its memory with logprob. It counts as a constant when the loss is differentiated by logprob.
    const constant = { ...columns, logprob: columns.logprob.clone() };
    const compute = (): Outcome => {
      let metrics: Record<string, number> = {};
      const loss = (...x: Tensor[]): Tensor => {
        const variables = Object.fromEntries(wrt.map((name, i) => [name, x[i]!]));
        const result = formula({ ...columns, ...variables }, args, constant);
        metrics = read(result.metrics);
        return result.loss;
      };
      const x = wrt.map((name) => columns[name]);
      if (!gradient) return { loss: loss(...x).dataSync()[0]!, metrics };
      const { value, grads } = this.#tf.valueAndGrads(loss)(x);
      const outcome: Outcome = { loss: value.dataSync()[0]!, metrics };
      wrt.forEach((name, i) => {
        outcome[name === 'logprob' ? 'grad' : 'gradEntropy'] = grads[i]!.dataSync();
      });
      return outcome;
    };
    const run = (): Outcome => {
      let outcome: Outcome | undefined;
      // tidy() searches its callback's result for tensors. The outcome is therefore passed through a variable, because
      // searching every number of the gradient would take long.
      this.#tf.tidy(() => {
        outcome = compute();
      });
      return outcome!;
    };
    return {
      ...syncContender(NAME, run),
      evaluate: async () => run(),
      release: async () => constant.logprob.dispose(),
    };
  }

  async end(): Promise<void> {
    this.#release();
  }

  #release(): void {
    for (const column of Object.values(this.#columns ?? {})) column.dispose();
  }
}

function read(metrics: Metrics): Record<string, number> {
  return Object.fromEntries(
    Object.entries(metrics).map(([name, x]) => [name, typeof x === 'number' ? x : x.dataSync()[0]!]),
  );
}
