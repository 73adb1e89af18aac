/**
 * Logits and log-probabilities of the unmasked tokens, and what losses over them share: softmax, lists of the likeliest
 * entries, divergences. An entry is an element of the vocabulary of one token.
 */
import type { Variable } from '../autograd.js';
import type { Tokens } from '../batch.js';

/** Numbers of entries, token after token. */
export class Entries {
  readonly x: Tokens;
  /** The token of each entry, as an index into `x.index`, and its id in the vocabulary. */
  readonly tokenOf: readonly number[];
  readonly ids: readonly number[];
  readonly values: Variable;

  constructor(x: Tokens, tokenOf: readonly number[], ids: readonly number[], values: Variable) {
    this.x = x;
    this.tokenOf = tokenOf;
    this.ids = ids;
    this.values = values;
  }

  with(values: Variable): Entries {
    return new Entries(this.x, this.tokenOf, this.ids, values);
  }
  map(f: (values: Variable) => Variable): Entries {
    return this.with(f(this.values));
  }

  /** Sums numbers of entries to one number per token. */
  sum(values: Variable): Variable {
    return values.sumBy(this.tokenOf, this.x.index.length);
  }
  /** Repeats a number per token for each of its entries. */
  spread(perToken: Variable): Variable {
    return perToken.gather(this.tokenOf);
  }

  /** ln Σ exp. A token without entries has −Infinity. */
  logSumExp(): Variable {
    const most = new Float64Array(this.x.index.length).fill(Number.NEGATIVE_INFINITY);
    this.values.value.forEach((value, i) => {
      most[this.tokenOf[i]!] = Math.max(most[this.tokenOf[i]!]!, value);
    });
    const shift = this.x.tape.leaf(most.map((value) => (Number.isFinite(value) ? value : 0)));
    const shifted = this.values.sub(this.spread(shift));
    return this.sum(shifted.exp()).log().add(shift);
  }
  /** Subtracts logSumExp(), so that the probabilities of the entries add up to 1. */
  normalized(): Entries {
    return this.with(this.values.sub(this.spread(this.logSumExp())));
  }

  /** Chooses entries by their positions. */
  take(places: readonly number[]): Entries {
    const of = (all: readonly number[]) => places.map((place) => all[place]!);
    return new Entries(this.x, of(this.tokenOf), of(this.ids), this.values.gather(places));
  }
  filter(holds: (value: number, id: number, token: number) => boolean): Entries {
    const places = [...this.values.value.keys()].filter((i) =>
      holds(this.values.value[i]!, this.ids[i]!, this.tokenOf[i]!),
    );
    return this.take(places);
  }
  /** Returns this variable's numbers at the entries of another one. `absent` stands for entries that are not here. */
  at(other: Entries, absent?: number): Variable {
    // All entries of a vocabulary share their lists.
    if (this.tokenOf === other.tokenOf && this.ids === other.ids) return this.values;
    const width = Math.max(largest(this.ids), largest(other.ids)) + 1;
    const places = new Map(this.tokenOf.map((token, i) => [token * width + this.ids[i]!, i]));
    const found = other.tokenOf.map((token, i) => places.get(token * width + other.ids[i]!));
    if (absent === undefined && found.includes(undefined)) throw new Error('an entry is not in the support');
    const isHere = this.x.tape.leaf(found.map((place) => (place === undefined ? 0 : 1)));
    const gathered = (this.values.length > 0 ? this.values : this.x.tape.leaf([0])).gather(
      found.map((place) => place ?? 0),
    );
    return absent === undefined ? gathered : isHere.choose(gathered, absent);
  }
  /** The k largest entries of each token, in the order of the vocabulary. */
  top(k: number): Entries {
    const kept = new Set<number>();
    for (const places of this.#placesOfTokens()) {
      const sorted = places.toSorted((a, b) => this.values.value[b]! - this.values.value[a]!);
      for (const place of sorted.slice(0, k)) kept.add(place);
    }
    return this.take([...this.values.value.keys()].filter((place) => kept.has(place)));
  }
  /** The entries of each token from the smallest to the largest. */
  sorted(): Entries {
    return this.take(
      this.#placesOfTokens().flatMap((places) =>
        places.toSorted((a, b) => this.values.value[a]! - this.values.value[b]!),
      ),
    );
  }
  #placesOfTokens(): number[][] {
    const places = this.x.index.map((): number[] => []);
    this.tokenOf.forEach((token, i) => {
      places[token]!.push(i);
    });
    return places;
  }
}

type Name = 'logits' | 'teacherLogits' | 'refLogits' | 'probs' | 'teacherProbs';

const widthOf = ({ batch }: Tokens, all: ArrayLike<number>): number =>
  batch.rows * batch.columns === 0 ? 0 : all.length / (batch.rows * batch.columns);

/** The length of a list or vocabulary in the batch. */
export function width(x: Tokens, name: Name | 'teacherTopkIds'): number {
  return widthOf(x, x.batch[name]!);
}

/** Returns a column with one number per token and entry of a vocabulary, at the unmasked tokens. */
export function entriesOf(x: Tokens, name: Name, at: readonly number[] = x.index): Entries {
  const all = x.batch[name];
  if (!all) throw new Error(`reference batch: expected ${name}, got none`);
  const { tokenOf, ids, places } = wholeVocabulary(at, widthOf(x, all));
  const whole = name === 'logits' || name === 'probs' ? x.leaf(name) : x.tape.leaf(all);
  return new Entries(x, tokenOf, ids, whole.gather(places));
}

interface Vocabulary {
  tokenOf: number[];
  ids: number[];
  places: number[];
}

const vocabularies = new WeakMap<readonly number[], Map<number, Vocabulary>>();

/** Returns the entries of a whole vocabulary for tokens, and where they are in a column. The lists must not change. */
function wholeVocabulary(tokens: readonly number[], width: number): Vocabulary {
  const known = vocabularies.get(tokens) ?? new Map<number, Vocabulary>();
  vocabularies.set(tokens, known);
  const before = known.get(width);
  if (before) return before;
  const made: Vocabulary = { tokenOf: [], ids: [], places: [] };
  for (const [token, at] of tokens.entries())
    for (let id = 0; id < width; id++) {
      made.tokenOf.push(token);
      made.ids.push(id);
      made.places.push(at * width + id);
    }
  known.set(width, made);
  return made;
}

const largest = (ids: readonly number[]): number => ids.reduce((most, id) => Math.max(most, id), -1);

/** The teacher's list, without absent entries. */
export function teacherList(x: Tokens): Entries {
  const { teacherTopkIds: ids, teacherTopkLogprobs: logprobs } = x.batch;
  const k = widthOf(x, ids!);
  const places = x.index.flatMap((at) => Array.from({ length: k }, (_, i) => at * k + i));
  const tokenOf = x.index.flatMap((_, token) => new Array<number>(k).fill(token));
  return new Entries(
    x,
    tokenOf,
    places.map((place) => ids![place]!),
    x.tape.leaf(places.map((place) => logprobs![place]!)),
  ).filter((value, id) => id >= 0 && value > Number.NEGATIVE_INFINITY);
}

/** ln softmax of logits that may be divided by a temperature. */
export const logSoftmax = (x: Tokens, name: Name = 'logits', temperature = 1): Entries =>
  entriesOf(x, name)
    .map((values) => values.div(temperature))
    .normalized();

/** The label of each token. −100 is no label. */
export const labels = (x: Tokens): number[] => x.index.map((at) => x.batch.targets![at]!);

/** The log-probability of each token's label. */
export function labelLogprob(s: Entries): Variable {
  const { x } = s;
  const ids = labels(x);
  return s.at(new Entries(x, [...ids.keys()], ids, x.tape.leaf(ids.map(() => 0))));
}

/** A weight times a number; 0 where the weight is 0, whatever the number is. */
export const product = (weight: Variable, value: Variable): Variable =>
  weight.test((w) => w !== 0).choose(weight.mul(value), 0);

/** The entropy of each token's distribution. */
export const entropy = (s: Entries): Variable => s.sum(product(s.values.exp(), s.values)).neg();

/** The terms of a divergence, one per entry, from the log-probabilities of student and teacher. */
export type Divergence = (student: Variable, teacher: Variable) => Variable;

export const forwardKl: Divergence = (s, t) => product(t.exp(), t.sub(s));
export const reverseKl: Divergence = (s, t) => product(s.exp(), s.sub(t));

/** β·KL(teacher‖M) + (1 − β)·KL(student‖M) with M = β·teacher + (1 − β)·student. At 0 and 1, the limits. */
export const jsd =
  (beta: number): Divergence =>
  (s, t) => {
    if (beta === 0) return forwardKl(s, t);
    if (beta === 1) return reverseKl(s, t);
    const [p, q] = [s.exp(), t.exp()];
    const mixed = p
      .mul(1 - beta)
      .add(q.mul(beta))
      .log();
    return product(q, t.sub(mixed))
      .mul(beta)
      .add(product(p, s.sub(mixed)).mul(1 - beta));
  };

/** The divergence of each token over the entries of the teacher. */
export const divergence = (of: Divergence, s: Entries, t: Entries): Variable => t.sum(of(s.at(t), t.values));

/** The logarithm of the probability that a list leaves out. */
const tailOf = (list: Entries): Variable => list.logSumExp().min(-1e-7).expm1().neg().log();

/** The divergence over a list, with the probability outside as one more entry, or with both lists renormalised. */
export function listDivergence(of: Divergence, s: Entries, t: Entries, tail: boolean): Variable {
  const student = t.with(s.at(t));
  if (!tail) return divergence(of, student.normalized(), t.normalized());
  return divergence(of, student, t).add(of(tailOf(student), tailOf(t)));
}

/** The entropy of each token over a list, with the probability outside as one more entry, or renormalised. */
export function listEntropy(list: Entries, tail: boolean): Variable {
  if (!tail) return entropy(list.normalized());
  const rest = tailOf(list);
  return entropy(list).sub(product(rest.exp(), rest));
}

/** Numbers for all tokens of the batch, from those of the unmasked ones. */
export const scattered = (x: Tokens, perToken: Variable): Variable =>
  perToken.sumBy(x.index, x.batch.rows * x.batch.columns);
