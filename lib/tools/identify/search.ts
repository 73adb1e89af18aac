// The search for the configurations that reproduce what a trainer logged.
import { setImmediate } from 'node:timers/promises';
import { LossError } from '../../base/errors.js';
import type { LossAggMode } from '../../base/options.js';
import type { PackedRows, RolloutColumn } from '../rollouts/index.js';
import {
  ALL_BOUNDS,
  argumentsOf,
  boundsOf,
  correctionsOf,
  defaultsOf,
  inAllModes,
  type LossConfiguration,
  namesOf,
  variationsOf,
} from './configurations.js';
import {
  compareScores,
  count,
  type Logged,
  type LoggedNumbers,
  leastDigits,
  type Meeting,
  meet,
  readLogged,
  type Score,
} from './evidence.js';
import { countOf, type Roles, rolesIn, type Split, splitsOf } from './rows.js';
import { type Base, type KlTerm, MicroBatches } from './terms.js';
import { FACTORED, type Trainer, trainerOf } from './trainers.js';

/** Options of {@link identify}. */
export interface IdentifyOptions {
  /** The numbers that the trainer logged for the step. Texts keep their digits: '0.030' is known to three decimals. */
  readonly logged: LoggedNumbers;
  /** The losses to try; by default all that are registered and can be computed on the rows. */
  readonly losses?: readonly string[];
  /** The numbers of micro-batches to try; by default the powers of two, and one per file. */
  readonly microBatches?: readonly number[];
  /** The trainer whose factors the logged losses have. */
  readonly trainer?: string;
  /** The largest relative error of a number that counts as met; 0.001 by default. */
  readonly tolerance?: number;
  /** The first row of each file. */
  readonly files?: readonly number[];
  /** Called repeatedly, with the share of the search that is done. */
  readonly onProgress?: (share: number, tried: number) => void;
}

/** A configuration, and how well it reproduces what was logged. */
export interface Found {
  readonly configuration: LossConfiguration;
  readonly roles: Roles;
  readonly split: Split;
  readonly kl: {
    readonly fn: string;
    readonly coef: number | null;
    readonly lossAggMode: LossAggMode;
  } | null;
  readonly entropyCoef: number;
  /** The factor that the trainer multiplied the logged losses by. */
  readonly factor: number;
  readonly meetings: readonly Meeting[];
  readonly score: Score;
  /** All numbers of the configuration, also those that were not logged. */
  readonly values: Readonly<Record<string, number>>;
}

/** What a search has found: the best configurations, the best first, and how many it has tried. */
export interface Search {
  readonly found: readonly Found[];
  readonly logged: readonly Logged[];
  readonly tried: number;
}

// How many of the best configurations are varied further, and how many get corrections.
const BEAM = 16;
const CORRECTED = 8;
// How many configurations a search keeps.
const KEPT = 2000;
// The losses whose options are always varied, because trainers use them most.
const USUAL = ['ppo', 'gspo', 'cispo'];
const COEFFICIENTS = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1].flatMap((unit) =>
  [1, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 8].map((digit) => Number((digit * unit).toPrecision(3))),
);
const ENTROPY_COEFFICIENTS = [1e-4, 1e-3, 1e-2, 1e-1].flatMap((unit) =>
  [1, 2, 5].map((digit) => Number((digit * unit).toPrecision(2))),
);

/**
 * Runs all candidates on the rows.
 * @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME`; `ERR_MISSING_INPUT` if the rows have no log-probabilities.
 */
export async function search(rows: PackedRows, options: IdentifyOptions): Promise<Search> {
  const searcher = new Searcher(rows, options);
  return searcher.search();
}

/** A policy loss on all rows, and a text that is the same for all options of the loss. */
type OfFamily = Base & { readonly family: string };

class Searcher {
  readonly #rows: PackedRows;
  readonly #options: IdentifyOptions;
  readonly #logged: readonly Logged[];
  readonly #trainer: Trainer;
  readonly #wants: ReadonlySet<string>;
  // The digits to which a number is met.
  readonly #least: number;
  readonly #found: Found[] = [];
  // The best of what was found for each loss, aggregation, roles and split.
  readonly #families = new Map<string, Found>();
  readonly #seen = new Set<string>();
  readonly #microBatches = new Map<string, MicroBatches>();
  #tried = 0;
  // The score of the worst configuration that is kept, once there are enough.
  #worst: Score | undefined;
  #since = performance.now();

  constructor(rows: PackedRows, options: IdentifyOptions) {
    this.#rows = rows;
    this.#options = options;
    this.#logged = readLogged(options.logged);
    this.#trainer = trainerOf(options.trainer);
    this.#wants = new Set(this.#logged.flatMap(({ names }) => names));
    this.#least = leastDigits(options.tolerance ?? 1e-3);
  }

  async search(): Promise<Search> {
    const { losses, microBatches, files = [0] } = this.#options;
    const roles = rolesIn(this.#rows);
    if (roles.length === 0)
      throw new LossError('ERR_MISSING_INPUT', {
        expected:
          "logprobs, old_logprobs or rollout_logprobs, as a loss depends on the policy's log-probabilities",
        received: 'rows without any of them',
      });
    const rows = this.#rows.cuSeqlens.length - 1;
    const splits = this.#trainer.splits ? splitsOf(rows, microBatches, files) : splitsOf(rows, [1], [0]);
    const names = namesOf(losses);
    const defaults = names.flatMap(defaultsOf);
    const steps = defaults.length * roles.length * splits.length;
    let done = 0;
    for (const split of splits)
      for (const each of roles)
        for (const configuration of defaults) {
          this.#try(configuration, each, split);
          await this.#breathe((0.6 * ++done) / steps);
        }
    // The losses of the native module are made at once, so that all pairs of clip bounds can be tried with them. The
    // best pairs are then tried with the other losses.
    const isUsual = ({ configuration }: Found) => USUAL.includes(configuration.name);
    await this.#vary([0.6, 0.7], this.#best(BEAM / 2, isUsual), (each) => variationsOf(each, ALL_BOUNDS()));
    const bounds = this.#best(BEAM).flatMap(({ configuration }) => {
      const own = boundsOf(configuration);
      return own ? [own] : [];
    });
    const unique = [...new Map(bounds.map((each) => [each.join(), each])).values()];
    const others = this.#best(BEAM, (found) => !isUsual(found));
    await this.#vary([0.7, 0.8], others, (each) => variationsOf(each, unique));
    const everywhere = { roles, splits };
    await this.#spread([0.8, 0.85], everywhere);
    // No default is near the logged numbers, so the options of all losses are varied.
    if (this.#best(1).every(({ score }) => score.matches < this.#logged.length)) {
      await this.#vary([0.85, 0.93], this.#bestOfEach(names), (each) => variationsOf(each, []));
      await this.#spread([0.93, 0.95], everywhere);
    }
    if (this.#rows.rolloutLogprob !== undefined)
      await this.#vary([0.95, 1], this.#best(CORRECTED), correctionsOf);
    this.#found.sort((a, b) => compareScores(a.score, b.score));
    return { found: this.#found.slice(0, KEPT), logged: this.#logged, tried: this.#tried };
  }

  // Returns the best of what was found so far, one for each loss, aggregation, roles and split.
  #best(count: number, isWanted: (found: Found) => boolean = () => true): Found[] {
    const wanted = [...this.#families.values()].filter(isWanted);
    return wanted.sort((a, b) => compareScores(a.score, b.score)).slice(0, count);
  }

  // Returns for each loss the best of what was found so far, and the best two on the whole batch: options that are far
  // from the default can look better on micro-batches by accident.
  #bestOfEach(names: readonly string[]): Found[] {
    const isWhole = ({ split }: Found) => countOf(split) === 1;
    return names.flatMap((wanted) => {
      const isWanted = ({ configuration }: Found) => configuration.name === wanted;
      const whole = this.#best(2, (found) => isWanted(found) && isWhole(found));
      return [...new Set([...this.#best(1, isWanted), ...whole])];
    });
  }

  // Tries the best configurations with all aggregations, roles and splits.
  async #spread(
    [from, to]: readonly [number, number],
    { roles, splits }: { roles: readonly Roles[]; splits: readonly Split[] },
  ): Promise<void> {
    const best = this.#best(BEAM).flatMap(({ configuration }) => inAllModes(configuration));
    for (const [i, split] of splits.entries())
      for (const each of roles)
        for (const configuration of best) {
          this.#try(configuration, each, split);
          await this.#breathe(from + ((to - from) * i) / splits.length);
        }
  }

  // Tries variations of configurations, with the same roles and split.
  async #vary(
    [from, to]: readonly [number, number],
    bases: readonly Found[],
    variations: (configuration: LossConfiguration) => LossConfiguration[],
  ): Promise<void> {
    const made = new Map<LossConfiguration, LossConfiguration[]>();
    for (const [i, { configuration, roles, split }] of bases.entries()) {
      const all = made.get(configuration) ?? variations(configuration);
      made.set(configuration, all);
      for (const varied of all) {
        this.#try(varied, roles, split);
        await this.#breathe(from + ((to - from) * i) / bases.length);
      }
    }
  }

  // Runs a configuration with all KL terms, coefficients and factors.
  #try(configuration: LossConfiguration, roles: Roles, split: Split): void {
    // A loss that does not read the old policy is the same for all columns in that role.
    const readsOld = configuration.fn.reads.columns.includes('old_logprob');
    const key = keyOf(configuration, readsOld ? roles : { ...roles, oldLogprobs: 'logprobs' }, split);
    if (this.#seen.has(key)) return;
    this.#seen.add(key);
    const microBatches = this.#partsOf(roles, split);
    const modes = configuration.lossAggMode
      ? [configuration.lossAggMode]
      : (['token-mean', 'seq-mean-token-mean'] as const);
    const klModes = this.#trainer.klAggMode ? [this.#trainer.klAggMode] : modes;
    const wantsKl = ['loss', 'kl_loss', 'grad_norm'].some((name) => this.#wants.has(name));
    const kl = wantsKl ? klModes.flatMap((mode) => microBatches.klTerms(mode)) : [];
    const base = microBatches.base(configuration, kl);
    if (!base) return;
    const entropy = microBatches.entropy(modes[0]);
    const divergence = this.#wants.has('ppo_kl') ? microBatches.divergence() : undefined;
    const known =
      divergence === undefined ? base : { ...base, values: { ppo_kl: divergence, ...base.values } };
    const { name, lossAggMode } = configuration;
    const family = JSON.stringify([name, lossAggMode, roles, split]);
    for (const factor of this.#trainer.factors(countOf(split)))
      this.#combine({ ...known, family }, kl, entropy, factor);
  }

  #partsOf(roles: Roles, split: Split): MicroBatches {
    const key = JSON.stringify([roles, split]);
    let microBatches = this.#microBatches.get(key);
    if (!microBatches) {
      // Gradients of KL terms take memory for each of the rows' tokens, so only one split's are kept.
      this.#microBatches.clear();
      microBatches = new MicroBatches(this.#rows, roles, split, this.#wants.has('grad_norm'));
      this.#microBatches.set(key, microBatches);
    }
    return microBatches;
  }

  #combine(base: OfFamily, kl: readonly KlTerm[], entropy: number | undefined, factor: number): void {
    const loss = base.values.loss!;
    const entropies = entropy === undefined ? [0] : [0, ...ENTROPY_COEFFICIENTS];
    const wantsLoss = this.#logged.find(({ names }) => names.at(-1) === 'loss');
    for (const entropyCoef of wantsLoss ? entropies : [0]) {
      const before = loss - entropyCoef * (entropy ?? 0);
      this.#add(base, undefined, 0, entropyCoef, entropy, factor);
      kl.forEach((term, i) => {
        for (const coef of this.#coefficients(term, before, wantsLoss && wantsLoss.value / factor))
          this.#add(base, { ...term, product: base.products[i]! }, coef, entropyCoef, entropy, factor);
      });
    }
  }

  // Returns the usual coefficients that bring the loss near the logged one; null if no logged number depends on it.
  #coefficients(term: KlTerm, before: number, loss: number | undefined): readonly (number | null)[] {
    if (loss !== undefined) {
      const exact = (loss - before) / term.value;
      const usual = usualNear(exact);
      // If all three terms of the loss were logged, they determine any coefficient.
      const isKnown = ['pg_loss', 'kl_loss'].every((name) => this.#wants.has(name)) && exact > 0;
      return isKnown ? [...new Set([...usual, Number(exact.toPrecision(3))])] : usual;
    }
    if (this.#wants.has('grad_norm')) return COEFFICIENTS;
    return [null];
  }

  #add(
    base: OfFamily,
    kl: (KlTerm & { product: number }) | undefined,
    coef: number | null,
    entropyCoef: number,
    entropy: number | undefined,
    factor: number,
  ): void {
    this.#tried++;
    const { configuration, roles, split, values } = base;
    const c = coef ?? 0;
    const own: Record<string, number> = {
      loss: values.loss! + c * (kl?.value ?? 0) - entropyCoef * (entropy ?? 0),
    };
    if (kl) own.kl_loss = kl.value;
    if (entropy !== undefined) own.entropy_loss = entropy;
    if (this.#wants.has('grad_norm'))
      own.grad_norm = Math.sqrt(
        Math.max(base.gradSquare + (kl ? 2 * c * kl.product + c * c * kl.gradSquare : 0), 0),
      );
    const sources = { own, values, factor };
    const score = { matches: 0, digits: 0 };
    for (const logged of this.#logged) count(logged, valueFor(logged, sources), this.#least, score);
    const best = this.#families.get(base.family);
    const isBest = !best || compareScores(score, best.score) < 0;
    const isKept = !this.#worst || compareScores(score, this.#worst) <= 0;
    if (!isBest && !isKept) return;
    const found: Found = {
      configuration,
      roles,
      split,
      kl: kl ? { fn: kl.fn, coef, lossAggMode: kl.lossAggMode } : null,
      entropyCoef,
      factor,
      meetings: this.#logged.map((logged) => meet(logged, valueFor(logged, sources))),
      score,
      values: { ...values, ...own },
    };
    if (isBest) this.#families.set(base.family, found);
    if (!isKept) return;
    this.#found.push(found);
    if (this.#found.length < 2 * KEPT) return;
    this.#found.sort((a, b) => compareScores(a.score, b.score));
    this.#found.length = KEPT;
    this.#worst = this.#found.at(-1)!.score;
  }

  async #breathe(share: number): Promise<void> {
    if (performance.now() - this.#since < 50) return;
    this.#since = performance.now();
    this.#options.onProgress?.(share, this.#tried);
    await setImmediate();
  }
}

// Returns a candidate's value for a logged number; undefined if it has none. `own` has the numbers that depend on its
// terms, and `values` those of the policy loss.
function valueFor(
  { names }: Logged,
  sources: { own: Record<string, number>; values: Readonly<Record<string, number>>; factor: number },
): number | undefined {
  for (const name of names) {
    const value = sources.own[name] ?? sources.values[name];
    if (value !== undefined) return FACTORED.includes(name) ? sources.factor * value : value;
  }
  return undefined;
}

// Returns the usual coefficients from which a number differs by at most 5 %. They are in ascending order. Most candidates
// need a negative coefficient, so the first comparison is often the last.
function usualNear(exact: number): number[] {
  const near: number[] = [];
  for (const coef of COEFFICIENTS) {
    if (0.95 * coef > exact) break;
    if (1.05 * coef >= exact) near.push(coef);
  }
  return near;
}

function keyOf(
  configuration: LossConfiguration,
  roles: Roles | { logprobs: RolloutColumn; oldLogprobs: string },
  { starts, weights }: Split,
): string {
  const { name, lossAggMode, correction } = configuration;
  return JSON.stringify([name, argumentsOf(configuration), lossAggMode, correction, roles, starts, weights]);
}
