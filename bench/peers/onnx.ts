// Runs onnxruntime-node as a peer, on its CPU provider and with several threads. It has no operators for gradients, so
// the graphs contain gradients that were derived by hand. They reuse values of the forward pass, and so cost less than
// automatic differentiation. Input tensors share memory with the batch's arrays, and gradients are written into arrays
// that exist before the call.
import type { Inputs, Shape } from '../lib/batch.js';
import { contender } from '../lib/race.js';
import { type Gradients, gradientsOf, type Outcome, type Work } from '../lib/works.js';
import { Graph, type Protobuf, type Value } from './onnx-graph.js';
import { type Found, importIfThere, type Peer, type Prepared } from './peer.js';

const NAME = 'onnxruntime';

/** The parts of onnxruntime-node that this file uses. */
interface Runtime {
  env: { versions: { node?: string } };
  Tensor: new (type: 'float32' | 'bool', data: Float32Array | Uint8Array, dims: readonly number[]) => Tensor;
  InferenceSession: { create(model: Uint8Array, options: object): Promise<Session> };
}
interface Tensor {
  readonly data: Float32Array;
}
interface Session {
  run(feeds: Record<string, Tensor>, fetches: Record<string, Tensor | null>): Promise<Record<string, Tensor>>;
  release(): Promise<void>;
}

const COLUMNS = ['logprob', 'oldLogprob', 'refLogprob', 'advantages', 'entropy'] as const;

/** The values in a graph that hold the results. */
interface Results {
  loss: Value;
  metrics: Record<string, Value>;
  grad?: Value;
  gradEntropy?: Value;
}

/** A graph whose inputs are columns of the batch. A column becomes an input when it is first used. */
class BatchGraph extends Graph {
  readonly shape: Shape;
  readonly inputs = new Map<string, Value>();

  constructor(shape: Shape) {
    super();
    this.shape = shape;
  }

  column(name: (typeof COLUMNS)[number]): Value {
    return this.#input(name, 'float');
  }

  get mask(): Value {
    return this.#input('actionMask', 'bool');
  }

  masked(value: Value | number): Value {
    return this.op('Where', this.mask, value, 0);
  }

  /** The weight of a token in a mean: 1 / (N + 1e-8), where N is the number of unmasked tokens. */
  get tokenWeight(): Value {
    return this.op('Div', 1, this.op('Add', this.sum(this.float(this.mask)), 1e-8));
  }

  /** Returns the mean of `value` over the unmasked tokens. `weight` is one token's weight in the mean. */
  mean(value: Value, weight: Value): Value {
    return this.op('Mul', this.sum(this.masked(value)), weight);
  }

  /** Returns the fraction of the unmasked tokens for which a condition holds. `weight` is one token's weight. */
  fraction(condition: Value, weight: Value): Value {
    return this.op('Mul', this.sum(this.float(this.op('And', condition, this.mask))), weight);
  }

  #input(name: string, type: 'float' | 'bool'): Value {
    let value = this.inputs.get(name);
    if (value === undefined) {
      value = this.input(name, type, this.shape);
      this.inputs.set(name, value);
    }
    return value;
  }
}

type Formula = (g: BatchGraph, gradient: boolean, args: Record<string, number>) => Results;

const KL_COEF = 0.001;

// Adds PPO's loss and metrics to a graph. With `gradient`, also returns `slope`: the gradient before it is masked and
// multiplied by the weight.
function ppoTerm(g: BatchGraph, weight: Value, gradient: boolean) {
  const advantages = g.column('advantages');
  const difference = g.op('Sub', g.column('logprob'), g.column('oldLogprob'));
  const d = g.op('Clip', difference, -20, 20);
  const ratio = g.op('Exp', d);
  const opposite = g.op('Neg', advantages);
  const free = g.op('Mul', opposite, ratio);
  const bounded = g.op('Mul', opposite, g.op('Clip', ratio, 0.8, 1.2));
  const clipped = g.op('Greater', bounded, free);
  const upper = g.op('Max', free, bounded);
  const lower = g.op('Mul', opposite, 3);
  const dual = g.op('And', g.op('Less', advantages, 0), g.op('Greater', upper, lower));
  const loss = g.mean(g.op('Where', dual, lower, upper), weight);
  const metrics = {
    pg_clipfrac: g.fraction(clipped, weight),
    pg_clipfrac_lower: g.fraction(dual, weight),
    ppo_kl: g.op('Neg', g.mean(d, weight)),
    pg_loss: loss,
  };
  if (!gradient) return { loss, metrics };
  const still = g.op('Or', g.op('Or', clipped, dual), g.op('Greater', g.op('Abs', difference), 20));
  return { loss, metrics, slope: g.op('Where', still, 0, free) };
}

const ppo: Formula = (g, gradient) => {
  const weight = g.tokenWeight;
  const { loss, metrics, slope } = ppoTerm(g, weight, gradient);
  return { loss, metrics, ...(slope && { grad: g.masked(g.op('Mul', slope, weight)) }) };
};

const gspo: Formula = (g, gradient) => {
  const [rows] = g.shape;
  const difference = g.masked(g.op('Sub', g.column('logprob'), g.column('oldLogprob')));
  const tokens = g.sum(g.float(g.mask), true);
  const sums = g.sum(difference, true);
  const means = g.op('Div', sums, g.op('Add', tokens, 1e-8));
  const ratio = g.op('Exp', means);
  const opposite = g.op('Neg', g.column('advantages'));
  const free = g.op('Mul', opposite, ratio);
  const bounded = g.op('Mul', opposite, g.op('Clip', ratio, 1 - 0.0003, 1 + 0.0004));
  const clipped = g.op('Greater', bounded, free);
  const weights = g.op('Div', 1 / rows, g.op('Add', tokens, 1e-8));
  const rowLosses = g.sum(g.masked(g.op('Max', free, bounded)), true);
  const loss = g.sum(g.op('Mul', rowLosses, weights));
  const tokenWeight = g.op('Div', 1, g.op('Add', g.sum(tokens), 1e-8));
  return {
    loss,
    metrics: {
      pg_clipfrac: g.fraction(clipped, tokenWeight),
      ppo_kl: g.op('Neg', g.op('Mul', g.sum(sums), tokenWeight)),
      ppo_kl_seq: g.op('Mul', g.sum(means), -1 / rows),
      pg_loss: loss,
    },
    ...(gradient && { grad: g.masked(g.op('Where', clipped, 0, g.op('Mul', free, weights))) }),
  };
};

const sft: Formula = (g, gradient) => {
  const weight = g.tokenWeight;
  const opposite = g.op('Neg', weight);
  const loss = g.op('Mul', g.sum(g.masked(g.column('logprob'))), opposite);
  return { loss, metrics: { sft_loss: loss }, ...(gradient && { grad: g.masked(opposite) }) };
};

const k3: Formula = (g, gradient) => {
  const weight = g.tokenWeight;
  const d = g.op('Sub', g.column('refLogprob'), g.column('logprob'));
  const rest = g.op('Sub', g.op('Exp', d), 1);
  const kl = g.mean(g.op('Sub', rest, d), weight);
  return {
    loss: g.op('Mul', kl, KL_COEF),
    metrics: { kl_loss: kl, kl_coef: g.constant(KL_COEF) },
    ...(gradient && { grad: g.masked(g.op('Mul', rest, g.op('Mul', weight, -KL_COEF))) }),
  };
};

const grpo: Formula = (g, gradient, { entropy_coef }) => {
  const coef = entropy_coef!;
  const weight = g.tokenWeight;
  const policy = ppoTerm(g, weight, gradient);
  const d = g.op('Sub', g.column('refLogprob'), g.column('logprob'));
  const kl = g.op('Mul', g.mean(g.op('Mul', d, d), weight), 0.5);
  const entropy = g.mean(g.column('entropy'), weight);
  const terms = g.op('Sub', g.op('Mul', kl, KL_COEF), g.op('Mul', entropy, coef));
  const results = {
    loss: g.op('Add', policy.loss, terms),
    metrics: { ...policy.metrics, kl_loss: kl, kl_coef: g.constant(KL_COEF), entropy_loss: entropy },
  };
  if (!policy.slope) return results;
  const slope = g.op('Sub', policy.slope, g.op('Mul', d, KL_COEF));
  return {
    ...results,
    grad: g.masked(g.op('Mul', slope, weight)),
    gradEntropy: g.masked(g.op('Mul', weight, -coef)),
  };
};

const FORMULAS: Record<string, Formula> = { ppo, gspo, sft, 'kl k3': k3, 'grpo objective': grpo };

/** Returns onnxruntime-node as a peer, or says why it is absent. It must be installed in bench/. */
export async function onnx(threads: number): Promise<Found> {
  const runtime = await importIfThere<Runtime>('onnxruntime-node');
  const protobuf = await importIfThere<Protobuf>('protobufjs');
  if (!runtime || !protobuf) return { name: NAME, absent: 'onnxruntime-node is not installed in bench/' };
  return new OnnxPeer(runtime, protobuf, threads);
}

class OnnxPeer implements Peer {
  readonly name = NAME;
  readonly version: string;
  readonly #runtime: Runtime;
  readonly #protobuf: Protobuf;
  readonly #options: object;
  #inputs!: Inputs;

  constructor(runtime: Runtime, protobuf: Protobuf, threads: number) {
    this.version = runtime.env.versions.node ?? 'unknown version';
    this.#runtime = runtime;
    this.#protobuf = protobuf;
    this.#options = {
      intraOpNumThreads: threads,
      interOpNumThreads: 1,
      graphOptimizationLevel: 'all',
      // Threads may spin during a call. They must stop spinning after it, because they would slow down the next
      // contender.
      extra: { session: { force_spinning_stop: '1' } },
    };
  }

  covers({ id }: Work): boolean {
    return FORMULAS[id] !== undefined;
  }

  async load(inputs: Inputs): Promise<void> {
    this.#inputs = inputs;
  }

  async prepare(work: Work, gradient: boolean): Promise<Prepared> {
    const { shape } = this.#inputs;
    const graph = new BatchGraph(shape);
    const results = FORMULAS[work.id]!(graph, gradient, work.args);
    const gradients = gradient ? gradientsOf(work, shape[0] * shape[1]) : {};
    const fetches: Record<string, Tensor | null> = {};
    for (const value of [results.loss, ...Object.values(results.metrics)]) {
      graph.output(value, []);
      fetches[value] = null;
    }
    for (const [name, array] of Object.entries(gradients)) {
      const value = results[name as keyof Gradients]!;
      graph.output(value, shape);
      fetches[value] = new this.#runtime.Tensor('float32', array, shape);
    }
    const feeds = Object.fromEntries([...graph.inputs.keys()].map((name) => [name, this.#tensor(name)]));
    const session = await this.#runtime.InferenceSession.create(graph.encode(this.#protobuf), this.#options);
    const run = async (): Promise<Outcome> => {
      const outputs = await session.run(feeds, fetches);
      const number = (value: Value) => outputs[value]!.data[0]!;
      const metrics = Object.entries(results.metrics).map(([name, value]) => [name, number(value)]);
      return { loss: number(results.loss), metrics: Object.fromEntries(metrics), ...gradients };
    };
    return { ...contender(NAME, run), evaluate: run, release: () => session.release() };
  }

  async end(): Promise<void> {}

  #tensor(name: string): Tensor {
    const { shape } = this.#inputs;
    const data = this.#inputs[name] as Float32Array | Uint8Array;
    return new this.#runtime.Tensor(name === 'actionMask' ? 'bool' : 'float32', data, shape);
  }
}
