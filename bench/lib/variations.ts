// Compares variants of this package's calls with each other: one thread and two, layouts and masks, 16-bit columns,
// GRPO's whole objective and its parts, small calls, and advantage functions.
import { native } from '../../lib/core/native.js';
import { ADVANTAGE_FN, ALGORITHM_TYPE, type Batch, setThreads } from '../../lib/index.js';
import { inHalf, makeInputs, packed, type Shape, withHoles, withPrefixMasks, withTurns } from './batch.js';
import { floor } from './floor.js';
import { nativeContender } from './native-calls.js';
import { type Contender, contender, race, renamed, syncContender } from './race.js';
import type { Times } from './report.js';
import { ratio, speed, spread, type TableContent } from './tables.js';
import { gradientsOf, halfGradientsOf, type Work } from './works.js';

const tokensOf = ([rows, columns]: Shape) => rows * columns;

/** Returns a contender that makes the same calls with this number of threads, under another name. */
function withThreads(name: string, { time }: Contender, threads: number): Contender {
  return {
    name,
    async time(calls) {
      const before = native.cpu().threads;
      setThreads(threads);
      try {
        return await time(calls);
      } finally {
        setThreads(before);
      }
    },
  };
}

/**
 * Times each function with one thread and with two. The arrays of the given shape must fit in the caches, so that
 * memory does not limit the speed.
 */
export async function timeThreads(works: readonly Work[], shape: Shape, rounds: number) {
  const inputs = makeInputs(shape);
  const results: Record<string, Times> = {};
  for (const work of works.filter(({ computes }) => computes)) {
    const gradients = gradientsOf(work, tokensOf(shape));
    const compute = syncContender('', () => work.computeSync(inputs, gradients));
    const contenders = [withThreads('one thread', compute, 1), withThreads('two threads', compute, 2)];
    results[work.id] = await race(contenders, rounds);
  }
  return results;
}

export function threadsTable(results: Record<string, Times>, [rows, columns]: Shape): TableContent {
  return {
    title: `One thread and two, forward and gradient, ${rows}×${columns} through computeSync()`,
    head: ['function', 'one, µs', 'two, µs', 'one / two'],
    rows: Object.entries(results).map(([id, times]) => [
      id,
      (1e3 * times['one thread']!.median).toFixed(0),
      (1e3 * times['two threads']!.median).toFixed(0),
      ratio(times['one thread'], times['two threads']),
    ]),
  };
}

/**
 * The functions to time in every layout. Some need statistics of each row and some do not. Some read few columns and
 * some read many.
 */
const LAID_OUT = ['ppo', 'gspo', 'sft', 'kl k3', 'grpo objective'];

/** Times functions on padded and on packed rows, each with full rows and with rows that end early. */
export async function timeLayouts(works: readonly Work[], shape: Shape, rounds: number) {
  const full = makeInputs(shape);
  const { inputs: prefix, lengths } = withPrefixMasks(full);
  const batches: Record<string, Batch> = {
    padded: full,
    packed: packed(full, new Int32Array(shape[0]).fill(shape[1])),
    'prefix masks': prefix,
    turns: withTurns(full),
    holes: withHoles(full),
    'packed, the same rows': packed(full, lengths),
  };
  const results: Record<string, Times> = {};
  for (const work of works.filter(({ id }) => LAID_OUT.includes(id))) {
    const contenders = Object.entries(batches).map(([name, batch]) => {
      const gradients = gradientsOf(work, (batch.logprob as Float32Array).length);
      return contender(name, () => work.compute(batch, gradients));
    });
    results[work.id] = await race(contenders, rounds);
  }
  return results;
}

export function layoutsTable(results: Record<string, Times>, [rows, columns]: Shape): TableContent {
  return {
    title:
      `Layouts and masks, forward and gradient, ${rows}×${columns}; prefix masks cover half a row on average, turns are ` +
      'runs of 64 to 512 tokens, and holes are random tokens; both mask half of the tokens',
    head: [
      'function',
      'padded, ms',
      'packed, ms',
      'padded / packed',
      'prefix masks, ms',
      'full / prefix',
      'the same rows packed, ms',
      'full / turns',
      'full / holes',
    ],
    rows: Object.entries(results).map(([id, times]) => [
      id,
      times.padded!.median.toFixed(2),
      times.packed!.median.toFixed(2),
      ratio(times.padded, times.packed),
      times['prefix masks']!.median.toFixed(2),
      ratio(times.padded, times['prefix masks']),
      times['packed, the same rows']!.median.toFixed(2),
      ratio(times.padded, times.turns),
      ratio(times.padded, times.holes),
    ]),
  };
}

const HALVES = ['bfloat16', 'float16'] as const;
const WITH_GRADIENTS = ' with gradients';
/** The contenders with 16-bit columns: with gradients in float32, and with gradients of the columns' dtype. */
export const FORMS = HALVES.flatMap((dtype) => [dtype, `${dtype}${WITH_GRADIENTS}`]);

/**
 * Times functions with float columns in float32, bfloat16 and float16, and gradients in float32 and in the columns' dtype.
 */
export async function timeDtypes(works: readonly Work[], shape: Shape, rounds: number) {
  const full = makeInputs(shape);
  const batches = HALVES.map((dtype) => ({ dtype, batch: inHalf(full, dtype) }));
  const results: Record<string, Times> = {};
  for (const work of works.filter(({ computes }) => computes)) {
    const tokens = tokensOf(shape);
    const gradients = gradientsOf(work, tokens);
    const cases = [
      { name: 'float32', batch: full, to: gradients },
      ...batches.flatMap(({ dtype, batch }) => [
        { name: dtype, batch, to: gradients },
        { name: `${dtype}${WITH_GRADIENTS}`, batch, to: halfGradientsOf(work, tokens, dtype) },
      ]),
    ];
    const contenders = cases.flatMap(({ name, batch, to }) => [
      contender(name, () => work.compute(batch, to)),
      renamed(`floor, ${name}`, floor(work, batch, to)),
    ]);
    results[work.id] = await race(contenders, rounds);
  }
  return results;
}

export function dtypesTable(results: Record<string, Times>, [rows, columns]: Shape): TableContent {
  return {
    title: `16-bit columns, forward and gradient, ${rows}×${columns}; speed-up over float32`,
    head: [
      'function',
      'float32, ms',
      'of the floor',
      ...FORMS.flatMap((form) => [form, 'of its floor']),
      'the floor’s bfloat16',
    ],
    rows: Object.entries(results).map(([id, times]) => [
      id,
      times.float32!.median.toFixed(2),
      ratio(times['floor, float32'], times.float32),
      ...FORMS.flatMap((form) => [
        ratio(times.float32, times[form]),
        ratio(times[`floor, ${form}`], times[form]),
      ]),
      ratio(times['floor, float32'], times['floor, bfloat16']),
    ]),
  };
}

/** Times GRPO's whole objective (policy loss, KL loss and entropy loss), and its policy loss alone. */
export async function timeObjective(works: readonly Work[], shape: Shape, rounds: number) {
  const inputs = makeInputs(shape);
  const { advantages: _, ...rewarded } = inputs;
  // The advantages that are computed from rewards: one per row.
  const perRow = { ...inputs, advantages: new Float32Array(shape[0]) };
  const loss = works.find(({ id }) => id === 'ppo');
  const objective = works.find(({ id }) => id === 'grpo objective');
  if (!loss || !objective) return undefined;
  const gradients = gradientsOf(objective, tokensOf(shape));
  const { grad } = gradients;
  const plain = ALGORITHM_TYPE.get('grpo').objective();
  return race(
    [
      contender('policy loss alone', () => loss.compute(inputs, { grad: grad! })),
      contender('objective, both gradients', () => objective.compute(inputs, gradients)),
      contender('objective, entropy coefficient 0', () => plain.compute(inputs, { grad: grad! })),
      contender('objective, entropy coefficient 0, advantages from rewards', () =>
        plain.compute(rewarded, { grad: grad! }),
      ),
      contender('objective, both gradients, advantages from rewards', () =>
        objective.compute(rewarded, gradients),
      ),
      renamed('floor of the policy loss', floor(loss, inputs, { grad: grad! })),
      renamed('floor of the objective', floor(objective, inputs, gradients)),
      renamed('floor of the objective, advantages from rewards', floor(objective, perRow, gradients)),
    ],
    rounds,
  );
}

const IN_FLIGHT = 64;

// Each of the contender's times is that of a round of calls on as many batches, divided by their number.
function inFlightContender(name: string, work: Work, shape: Shape): Contender {
  const calls = Array.from({ length: IN_FLIGHT }, () => {
    const inputs = makeInputs(shape);
    const gradients = gradientsOf(work, tokensOf(shape));
    return () => work.compute(inputs, gradients);
  });
  return {
    name,
    async time(rounds) {
      const times: number[] = [];
      for (let i = 0; i < rounds; i++) {
        const start = performance.now();
        await Promise.all(calls.map((call) => call()));
        times.push((performance.now() - start) / IN_FLIGHT);
      }
      return times;
    },
  };
}

/**
 * Times computeSync() on a small batch. Also times a native call, a batch of one token and compute(), which show how
 * much of that time is not computation.
 */
export async function timeSmallCalls(work: Work, shape: Shape, rounds: number): Promise<Times> {
  const inputs = makeInputs(shape);
  const gradients = gradientsOf(work, tokensOf(shape));
  const one = makeInputs([1, 1]);
  const oneGradient = gradientsOf(work, 1);
  return race(
    [
      syncContender('computeSync()', () => work.computeSync(inputs, gradients)),
      nativeContender('native call', work, inputs, gradients),
      syncContender('computeSync() of one token', () => work.computeSync(one, oneGradient)),
      contender('compute()', () => work.compute(inputs, gradients)),
      inFlightContender('compute(), per call with 64 in flight', work, shape),
    ],
    rounds,
  );
}

/**
 * Times the advantage functions. Every call returns its results in new arrays.
 * @param only selects functions. It is matched against names such as 'advantages grpo'.
 */
export async function timeAdvantages(only: RegExp | undefined, shape: Shape, rounds: number): Promise<Times> {
  const inputs = makeInputs(shape);
  const contenders = ADVANTAGE_FN.names()
    .map((name) => {
      const fn = ADVANTAGE_FN.create(name);
      return contender(`advantages ${name}`, () => fn.compute(inputs));
    })
    .filter(({ name }) => !only || only.test(name));
  return race(contenders, rounds);
}

/** Returns a table of times. Its last column is each time divided by the time in the first row. */
export function timesTable(title: string, times: Times, tokens: number, unit: 'ms' | 'µs'): TableContent {
  const scale = unit === 'µs' ? 1e3 : 1;
  const [first, base] = Object.entries(times)[0]!;
  return {
    title,
    head: ['', unit, 'min – max', 'Mtoken/s', `time / ${first}`],
    rows: Object.entries(times).map(([name, sample]) => [
      name,
      (sample.median * scale).toFixed(2),
      spread(sample, scale),
      name.endsWith('one token') ? '' : speed(tokens, sample),
      ratio(sample, base),
    ]),
  };
}
