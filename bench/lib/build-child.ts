// The process that BuildProcess starts: build-child.ts CHECKOUT MEASURED. It uses only the package's public interface, so
// that the builds may differ in everything else.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Batch, Logits } from '../../lib/index.js';
import { type Inputs, inHalf, makeInputs, toBfloat16, withCorners, withTurns } from './batch.js';
import type { Case, Measured, Request } from './build-process.js';
import { type Api, gradientsOf, halfGradientsOf, type Work, works } from './works.js';

const [checkout, text] = process.argv.slice(2) as [string, string];
const { shape, threads, only }: Measured = JSON.parse(text);
const api: Api = await import(pathToFileURL(join(checkout, 'lib/index.ts')).href);
api.setThreads(threads);
const pattern = only === undefined ? undefined : new RegExp(only);
const tokens = shape[0] * shape[1];

/** The approximate milliseconds of calls that are made before a function is timed. */
const WARM_UP = 10;

/** A case whose prepare() copies its arrays to new places in memory, and returns a call on them. */
interface Prepared extends Case {
  prepare(): () => unknown;
}

const isTyped = ArrayBuffer.isView as (value: unknown) => value is Float32Array;

/** Calls a function on a batch. Returns the batch with the arrays that it reads at other places in memory. */
function relocated(batch: Batch, compute: (batch: Batch) => unknown): Batch {
  const placed: Record<string, unknown> = { ...batch };
  const watched = {};
  for (const [key, value] of Object.entries(batch))
    Object.defineProperty(watched, key, {
      enumerable: true,
      get() {
        const half = value as { data?: unknown } | null;
        if (isTyped(value)) placed[key] = value.slice();
        else if (isTyped(half?.data)) placed[key] = { ...half, data: half.data.slice() };
        return value;
      },
    });
  compute(watched);
  return placed;
}

function ofLosses(inputs: Inputs): Prepared[] {
  const half = { bfloat16: inHalf(inputs, 'bfloat16'), float16: inHalf(inputs, 'float16') };
  const float32 = (work: Work) => gradientsOf(work, shape);
  const forms = [
    { form: 'gradient', batch: inputs, gradients: float32 },
    { form: 'forward', batch: inputs, gradients: () => ({}) },
    { form: 'bfloat16', batch: half.bfloat16, gradients: float32 },
    ...(['bfloat16', 'float16'] as const).map((dtype) => ({
      form: `${dtype} with gradients`,
      batch: half[dtype],
      gradients: (work: Work) => halfGradientsOf(work, shape, dtype),
    })),
    { form: 'masked', batch: withCorners(inputs), gradients: float32 },
    { form: 'turns', batch: withTurns(inputs), gradients: float32 },
  ];
  return works(api, pattern).flatMap((work) =>
    forms.map(({ form, batch, gradients }) => ({
      id: work.id,
      form,
      prepare() {
        const arrays = gradients(work);
        const placed = relocated(batch, (watched) => work.computeSync(watched, arrays));
        return () => work.computeSync(placed, arrays);
      },
    })),
  );
}

function ofAdvantages(inputs: Inputs): Prepared[] {
  return api.ADVANTAGE_FN.names().map((name) => ({
    id: `advantages ${name}`,
    form: 'forward',
    prepare() {
      const fn = api.ADVANTAGE_FN.create(name);
      const out = { advantages: new Float32Array(tokens).fill(1) };
      const placed = relocated(inputs, (watched) => fn.computeSync(watched, { out }));
      return () => fn.computeSync(placed, { out });
    },
  }));
}

/** The cases that start from logits. The rows and columns of the shape are rows and vocabulary. */
function ofLogits(inputs: Inputs): Prepared[] {
  const [rows, vocabulary] = shape;
  const targets = Int32Array.from({ length: rows }, (_, row) => (row * 7919) % vocabulary);
  const options = { shape, targets, entropy: true };
  const batch = {
    ...{ shape: [1, rows] as const, targets, actionMask: new Uint8Array(rows).fill(1) },
    oldLogprob: inputs.oldLogprob.slice(0, rows),
    advantages: inputs.advantages.slice(0, rows),
  };
  const objective = api.ALGORITHM_TYPE.get('grpo').objective({
    kl_loss_fn: 'none',
    entropy_loss_fn_args: { entropy_coef: 0.01 },
  });
  const dtypes: Record<string, () => Logits> = {
    float32: () => inputs.logprob.slice(),
    bfloat16: () => ({ data: toBfloat16(inputs.logprob), dtype: 'bfloat16' }),
  };
  return Object.entries(dtypes).flatMap(([form, make]) => [
    {
      id: 'logprobs',
      form,
      prepare() {
        const logits = make();
        return () => api.logprobsSync(logits, options);
      },
    },
    {
      id: 'logprobs backward',
      form,
      prepare() {
        const [logits, out] = [make(), make()];
        const { logsumexp, entropy } = api.logprobsSync(logits, options);
        const gradients = {
          gradLogprob: new Float64Array(rows).fill(1),
          gradEntropy: new Float64Array(rows).fill(1),
        };
        const given = { ...options, ...gradients, logsumexp, entropy: entropy!, out };
        return () => api.logprobsBackwardSync(logits, given);
      },
    },
    {
      id: 'ppo from logits',
      form,
      prepare() {
        const [logits, gradLogits] = [make(), make()];
        return () => objective.fromLogitsSync({ ...batch, logits }, { gradLogits });
      },
    },
  ]);
}

const inputs = makeInputs(shape);
const others = [...ofAdvantages(inputs), ...ofLogits(inputs)].filter(
  ({ id }) => !pattern || pattern.test(id),
);
const cases = [...ofLosses(inputs), ...others];

function timed(call: () => unknown, calls: number): number {
  const start = performance.now();
  for (let i = 0; i < calls; i++) call();
  return (performance.now() - start) / calls;
}

let call: () => unknown = () => undefined;
process.on('message', (request: Request) => {
  if (request.op === 'time') {
    process.send!(timed(call, request.calls));
    return;
  }
  call = cases.find(({ id, form }) => id === request.id && form === request.form)!.prepare();
  // Calls until V8 has compiled the JavaScript of short calls.
  const first = timed(call, 3);
  process.send!(timed(call, Math.min(Math.ceil(WARM_UP / first), 1000)));
});
process.send!(cases.map(({ id, form }) => ({ id, form })));
