// Ranks what a search has found, joins what the rows cannot tell apart, and says what would tell it apart.
import type { LossAggMode } from '../../base/options.js';
import type { RolloutColumn } from '../rollouts/index.js';
import { argumentsOf } from './configurations.js';
import { areEqual, type Meeting, surpasses } from './evidence.js';
import { countOf } from './rows.js';
import type { Found, Search } from './search.js';

/** A configuration that may have produced the logged numbers. */
export interface Candidate {
  /** 1 for the best. Configurations that the logged numbers cannot tell apart share a rank. */
  readonly rank: number;
  /** The policy loss's name in the registry. */
  readonly loss: string;
  /** The loss's arguments, under snake_case names. */
  readonly options: Readonly<Record<string, unknown>>;
  /**
   * Names of arguments that the logged numbers do not determine, because other values give the same numbers;
   * 'correction' if a correction changes nothing.
   */
  readonly undetermined: readonly string[];
  /** null if the loss has no choice. */
  readonly lossAggMode: LossAggMode | null;
  /** The KL term; `coef` is null if no logged number depends on it. */
  readonly kl: {
    readonly fn: string;
    readonly coef: number | null;
    readonly lossAggMode?: LossAggMode;
  } | null;
  readonly entropyCoef: number;
  /** The arguments of verl's rollout correction; null for none. */
  readonly correction: Readonly<Record<string, unknown>> | null;
  readonly microBatches: number;
  /** Whether all micro-batches weigh the same, or as much as they have rows. */
  readonly microBatchWeights: 'equal' | 'rows';
  /** The columns that stand for the current policy and for the old one. */
  readonly logprobsFrom: RolloutColumn;
  readonly oldLogprobsFrom: RolloutColumn;
  /** The factor that the trainer multiplied the logged losses by. */
  readonly factor: number;
  /** The candidate's value for each logged number, and how well they agree. */
  readonly logged: Readonly<Record<string, Meeting>>;
  /** How many logged numbers the candidate meets. */
  readonly matches: number;
}

/** The ranked candidates. */
export interface Ranking {
  readonly candidates: readonly Candidate[];
  /** Numbers that were not logged and that differ among the candidates of rank 1. */
  readonly wouldTellApart: readonly string[];
}

/** Ranks configurations. @param top how many ranks are returned. */
export function rank({ found, logged }: Search, top: number): Ranking {
  const alike: Found[][] = [];
  for (const each of found) {
    const last = alike.at(-1);
    if (last && areEqual(last[0]!.meetings, each.meetings)) last.push(each);
    else if (alike.length === top) break;
    else alike.push([each]);
  }
  const ranks = alike.flatMap(withoutSurpassed).slice(0, top);
  const names = logged.map(({ name }) => name);
  const known = logged.flatMap(({ names }) => names);
  return {
    candidates: ranks.flatMap((members, i) => candidatesOf(members, i + 1, names)),
    wouldTellApart: ranks[0] ? differing(ranks[0], known) : [],
  };
}

/**
 * Splits off the configurations that another one surpasses which is not more complex. Many of them only add a needless
 * term with a small coefficient, which changes nothing but the last digits. A more complex configuration does not surpass
 * a simpler one: among the many complex ones, some come nearer to a trainer's rounding errors by chance.
 */
function withoutSurpassed(members: readonly Found[]): Found[][] {
  const isSurpassed = (each: Found) =>
    members.some((other) => partsOf(other) <= partsOf(each) && surpasses(other.meetings, each.meetings));
  const surpassed = new Set(members.filter(isSurpassed));
  const others = members.filter((each) => !surpassed.has(each));
  return surpassed.size > 0 ? [others, [...surpassed]] : [others];
}

// Joins configurations that differ only in options or corrections to the one with the fewest options that differ from the default.
function candidatesOf(members: readonly Found[], rank: number, names: readonly string[]): Candidate[] {
  const groups = new Map<string, Found[]>();
  for (const each of members) {
    const { configuration, roles, split, kl, entropyCoef, factor } = each;
    const { name, lossAggMode } = configuration;
    const { starts, weights } = split;
    const key = JSON.stringify([name, lossAggMode, roles, starts, weights, kl, entropyCoef, factor]);
    const group = groups.get(key);
    if (group) group.push(each);
    else groups.set(key, [each]);
  }
  // The simplest come first, and equally simple ones as they are registered.
  return [...groups.values()]
    .map((group) => ({ group, plain: group.reduce((a, b) => (distanceOf(b) < distanceOf(a) ? b : a)) }))
    .sort((a, b) => partsOf(a.plain) - partsOf(b.plain))
    .map(({ group, plain }) => candidateOf(plain, group, rank, names));
}

function candidateOf(
  plain: Found,
  group: readonly Found[],
  rank: number,
  names: readonly string[],
): Candidate {
  const { configuration, roles, split, kl, entropyCoef, factor, meetings, score } = plain;
  const options = argumentsOf(configuration);
  const undetermined = new Set(
    group.flatMap((other) => {
      const theirs = argumentsOf(other.configuration);
      const names = [...new Set([...Object.keys(options), ...Object.keys(theirs)])];
      const changed = names.filter((name) => options[name] !== theirs[name]);
      return other.configuration.correction === configuration.correction
        ? changed
        : [...changed, 'correction'];
    }),
  );
  const ownMode = kl && kl.lossAggMode === (configuration.lossAggMode ?? 'token-mean');
  return {
    rank,
    loss: configuration.name,
    options,
    undetermined: [...undetermined],
    lossAggMode: configuration.lossAggMode,
    kl: kl && { fn: kl.fn, coef: kl.coef, ...(!ownMode && { lossAggMode: kl.lossAggMode }) },
    entropyCoef,
    correction: configuration.correction,
    microBatches: countOf(split),
    microBatchWeights: split.weighing,
    logprobsFrom: roles.logprobs,
    oldLogprobsFrom: roles.oldLogprobs,
    factor,
    logged: Object.fromEntries(names.map((name, i) => [name, meetings[i]!])),
    matches: score.matches,
  };
}

// Returns how far a configuration is from the defaults.
function distanceOf({ configuration }: Found): number {
  return Object.keys(configuration.args).length + (configuration.correction ? 1 : 0);
}

// Returns how complex a configuration is.
function partsOf({ configuration, kl, entropyCoef, split, factor }: Found): number {
  return (
    (kl ? 1 : 0) +
    (kl?.fn.includes('+') ? 1 : 0) +
    (entropyCoef === 0 ? 0 : 1) +
    (configuration.correction ? 1 : 0) +
    (countOf(split) === 1 ? 0 : 1) +
    (factor === 1 ? 0 : 1) +
    (configuration.name.includes('/') ? 0.5 : 0)
  );
}

// Returns the names of numbers that tell configurations apart: first those that all have and that differ by more than
// rounding, then those that only some have.
function differing(members: readonly Found[], logged: readonly string[]): string[] {
  const all = members.map(({ values }) => values);
  const names = [...new Set(all.flatMap((values) => Object.keys(values)))].filter(
    (name) => !logged.includes(name),
  );
  const isShared = (name: string) => all.every((values) => values[name] !== undefined);
  const differ = (name: string) => {
    const values = all.map((each) => each[name]!);
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    return high - low > 1e-3 * Math.max(Math.abs(low), Math.abs(high), 1e-3);
  };
  const shared = names.filter(isShared);
  return [...shared.filter(differ), ...names.filter((name) => !isShared(name))];
}
