// Subjects on the rows of files. Rows that fit in one part are computed as one batch, as a program would. More take two
// passes over the files: the first learns of each row what the whole's counts and advantages are made of, the second
// computes part by part, with the whole's counts for normalizer, and adds up. All subjects are computed on a part
// before the next is read.

import { type Batch, LossError, type Metrics } from '../index.js';
import { Survey, type Whole, wholeOf } from '../parts/survey.js';
import { type RolloutPart, type StreamOptions, streamRollouts } from '../rollouts/index.js';
import { inTermsOfFiles } from './file-errors.js';
import { perToken, type Subject, type SubjectOptions, type SubjectResult, takesPairs } from './subject.js';

/** How files are evaluated. */
export interface EvaluationSettings {
  /** How the files' columns are called, which are wanted beside the subjects', and what becomes of bad rows. */
  read: Pick<StreamOptions, 'rename' | 'backend' | 'columns' | 'keep' | 'skipBadRows' | 'onBadRow'>;
  /** The most tokens of one part. */
  batchTokens: number;
  /** Where to compute; the CPU by default. */
  device?: string;
  /** Is told how far it has come. */
  progress: EvaluationProgress;
}

/** Who is told how far an evaluation has come. */
export interface EvaluationProgress {
  /** @param what what begins now, in one word. */
  begin(what: string): void;
  /** @param share of what has begun, from 0 to 1. @param rows and @param tokens how many are done with. */
  advance(share: number, rows: number, tokens: number): void;
}

/** What a subject gave for a part. The arrays are good until the next part. */
export interface PartResult {
  grad: Float32Array;
  gradEntropy?: Float32Array;
  /** Per token; absent where none are read. */
  advantages?: Float32Array;
}

/** Who looks at every part with what the subjects gave for it, in their order. */
export type PartWatcher = (part: RolloutPart, results: readonly PartResult[]) => void | Promise<void>;

/** What a subject gave for all rows. */
export interface SubjectEvaluation {
  subject: Subject;
  loss: number;
  metrics: Partial<Metrics>;
  /** Of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  /** Of ∂loss/∂entropy over all tokens. Absent where there is no entropy loss, or no entropy that it could read. */
  gradEntropyNorm?: number;
  /** Where advantages are from: 'given' in the files, or the name of what made them. Absent where none are read. */
  advantages?: string;
}

/** What came of the files. */
export interface FilesEvaluation {
  subjects: SubjectEvaluation[];
  rows: number;
  /** Tokens that the masks let count. */
  tokens: number;
  /** In how many parts the rows came. */
  parts: number;
}

/**
 * Evaluates subjects on the rows of files.
 * @param watch absent: nobody looks at the parts' gradients.
 * @throws LossError of the files, of the subjects, and `ERR_INVALID_OPTION` where one of them needs all rows at once and
 * they are more than a part may hold.
 */
export async function evaluateFiles(
  files: readonly string[],
  subjects: readonly Subject[],
  settings: EvaluationSettings,
  watch?: PartWatcher,
): Promise<FilesEvaluation> {
  const { progress } = settings;
  const totals = subjects.map((subject) => new Total(subject));
  const calls = new Calls(files, totals, settings, watch);
  const options: StreamOptions = {
    ...settings.read,
    columns: [...(settings.read.columns ?? []), ...subjects.flatMap(({ columns }) => columns)],
    maxTokens: settings.batchTokens,
    evenRows: subjects.some(takesPairs),
  };

  progress.begin('reading');
  const found = await readOrSurvey(files, subjects, settings, options, calls);
  progress.begin('computing');
  if (!(found instanceof Survey)) {
    const { rows, tokens } = found;
    await calls.compute(found, wholeOf(found), (share) => progress.advance(share, rows, tokens));
    return { subjects: totals.map((total) => total.finish()), rows, tokens, parts: 1 };
  }

  let parts = 0;
  let rows = 0;
  let tokens = 0;
  // What is wrong with a row has been said.
  for await (const part of streamRollouts(files, { ...options, onBadRow: () => {} })) {
    if (part.first + part.rows > found.rows) break;
    await calls.compute(part, found, (share) =>
      progress.advance((rows + share * part.rows) / found.rows, rows, tokens),
    );
    parts++;
    rows += part.rows;
    tokens += part.tokens;
  }
  if (rows !== found.rows || tokens !== found.tokens)
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${files.join(', ')}: expected the same rows on a second reading, and others came; what cannot be read twice must ` +
        'fit into --batch-tokens',
    );
  return { subjects: totals.map((total) => total.finish()), rows, tokens, parts };
}

/** The only part, or what is to be known of several. */
async function readOrSurvey(
  files: readonly string[],
  subjects: readonly Subject[],
  settings: EvaluationSettings,
  options: StreamOptions,
  calls: Calls,
): Promise<RolloutPart | Survey> {
  const parts = streamRollouts(files, {
    ...options,
    onProgress: ({ bytes, totalBytes, rows, tokens }) =>
      settings.progress.advance(totalBytes > 0 ? bytes / totalBytes : 0, rows, tokens),
  });
  const first: RolloutPart = (await parts.next()).value;
  const second = await parts.next();
  if (second.done) return first;
  await calls.check(first);
  const survey = new Survey(subjects, first.batch, settings.batchTokens);
  await survey.add(first);
  await survey.add(second.value);
  for await (const part of parts) await survey.add(part);
  await survey.settle();
  return survey;
}

/** What a subject has given so far. */
class Total {
  readonly subject: Subject;
  #loss: number | undefined;
  #metrics: Metrics = {};
  #advantageMetrics: Metrics = {};
  #squares = 0;
  #entropySquares: number | undefined;
  #advantages: string | undefined;

  constructor(subject: Subject) {
    this.subject = subject;
  }

  add(
    { loss, metrics, grad, gradEntropy }: SubjectResult,
    madeHere: boolean,
    advantageMetrics: Metrics,
  ): void {
    this.#loss = this.#loss === undefined ? loss : this.#loss + loss;
    for (const [name, value] of Object.entries(metrics)) {
      const before = this.#metrics[name];
      this.#metrics[name] = before === undefined || NO_SUMS.has(name) ? value! : before + value!;
    }
    this.#advantageMetrics = advantageMetrics;
    this.#squares = squaresOf(grad!, this.#squares);
    if (metrics.entropy_loss !== undefined && gradEntropy)
      this.#entropySquares = squaresOf(gradEntropy, this.#entropySquares ?? 0);
    const { readsAdvantages, advantages: step } = this.subject;
    if (readsAdvantages) this.#advantages = madeHere ? step!.name : 'given';
  }

  finish(): SubjectEvaluation {
    return {
      subject: this.subject,
      loss: this.#loss!,
      metrics: { ...this.#metrics, ...this.#advantageMetrics },
      gradNorm: Math.sqrt(this.#squares),
      ...(this.#entropySquares !== undefined && { gradEntropyNorm: Math.sqrt(this.#entropySquares) }),
      ...(this.#advantages !== undefined && { advantages: this.#advantages }),
    };
  }
}

// Coefficients, the same in every part.
const NO_SUMS: ReadonlySet<string> = new Set(['kl_coef', 'mu']);

function squaresOf(values: Float32Array, squares: number): number {
  for (let i = 0; i < values.length; i++) squares += values[i]! * values[i]!;
  return squares;
}

/** The calls of all subjects, part by part. */
class Calls {
  readonly #files: readonly string[];
  readonly #totals: readonly Total[];
  readonly #device: { device?: string };
  readonly #watch: PartWatcher | undefined;
  // Where gradients go: one array for all subjects in turn, or one for each where somebody looks at all of them.
  readonly #arrays: Float32Array[] = [];

  constructor(
    files: readonly string[],
    totals: readonly Total[],
    { device }: EvaluationSettings,
    watch: PartWatcher | undefined,
  ) {
    this.#files = files;
    this.#totals = totals;
    this.#device = device === undefined ? {} : { device };
    this.#watch = watch;
  }

  /** Computes a part, and adds what comes to the totals. */
  async compute(part: RolloutPart, whole: Whole, onShare: (share: number) => void): Promise<void> {
    const { batch } = part;
    const results: PartResult[] = [];
    for (const [i, total] of this.#totals.entries()) {
      const { subject } = total;
      const options: SubjectOptions = {
        ...this.#device,
        grad: this.#array(this.#watch ? i : 0, batch.logprob.length),
      };
      const normalizer = whole.normalizer(subject);
      if (normalizer) options.normalizer = normalizer;
      const { computed, result } = await this.#inTerms(subject, part, async () => {
        const computed = await whole.advantagesOf(subject, part);
        return { computed, result: await subject.compute(batch, computed, options) };
      });
      // A loss has metrics of its own alone.
      total.add(result, computed !== undefined, subject.parts ? whole.advantageMetrics(subject) : {});
      onShare((i + 1) / this.#totals.length);
      if (!this.#watch) continue;
      const advantages = computed ? perToken(batch, computed) : batch.advantages;
      results.push({
        grad: options.grad,
        ...(result.metrics.entropy_loss !== undefined &&
          result.gradEntropy && { gradEntropy: result.gradEntropy }),
        ...(subject.readsAdvantages &&
          advantages !== undefined && { advantages: advantages as Float32Array }),
      });
    }
    await this.#watch?.(part, results);
  }

  /**
   * Lets every subject look at a part's columns, so that what is not there is not found out only after all have been read.
   */
  async check(part: RolloutPart): Promise<void> {
    const batch = withoutRows(part.batch);
    for (const { subject } of this.#totals)
      await this.#inTerms(subject, part, async () => {
        const { advantages: step } = subject;
        const made = step?.isFor(batch) ? await step.make(batch) : undefined;
        await subject.compute(batch, made?.computed, { grad: new Float32Array(0) });
      });
  }

  #array(slot: number, length: number): Float32Array {
    const array = this.#arrays[slot];
    if (array && array.length >= length) return array.subarray(0, length);
    const made = new Float32Array(length);
    this.#arrays[slot] = made;
    return made;
  }

  async #inTerms<T>(subject: Subject, part: RolloutPart, call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      throw inTermsOfFiles(error, subject, part, this.#files);
    }
  }
}

function withoutRows(batch: RolloutPart['batch']): Batch {
  return Object.fromEntries(
    Object.entries(batch).map(([key, value]) => {
      if (key === 'cuSeqlens') return [key, Int32Array.of(0)];
      return [key, (value as Float32Array).subarray(0, 0)];
    }),
  );
}
