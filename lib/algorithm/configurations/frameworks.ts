// Tells which framework a configuration is for, by its keys.
import { closest, distance } from 'fastest-levenshtein';
import { LossError } from '../../base/errors.js';
import { toCamelCase } from '../../base/options.js';
import { OBJECTIVE_KEYS, TRAINER_KEYS } from '../config.js';
import type { Framework } from './framework.js';
import { NEMO_RL } from './nemo-rl.js';
import type { ConfigObject } from './text.js';
import { TRL_DPO } from './trl-dpo.js';
import { TRL_GRPO } from './trl-grpo.js';
import { describeSetting, find } from './values.js';
import { VERL } from './verl.js';

/** The frameworks that are described by tables: all but Trinity-RFT. */
export const FRAMEWORKS: readonly Framework[] = [VERL, TRL_GRPO, TRL_DPO, NEMO_RL];

/** All names by which a framework can be chosen. */
export const FRAMEWORK_NAMES = ['trinity', 'verl', 'trl', 'trl/grpo', 'trl/dpo', 'nemo-rl'] as const;
/** The frameworks whose configurations fromConfig() reads. `trl` is either of TRL's trainers. */
export type ConfigFramework = (typeof FRAMEWORK_NAMES)[number];

/**
 * Returns the framework of a configuration, which is undefined for Trinity-RFT, and the configuration itself. A section
 * of NeMo-RL that stands alone is put into its place.
 * @param wanted the framework that the caller names.
 * @throws LossError `ERR_INVALID_OPTION` if the keys are of no framework or of several, and if they are of another one
 * than the caller names.
 */
export function frameworkOf(
  root: ConfigObject,
  wanted: ConfigFramework | undefined,
): { framework: Framework | undefined; root: ConfigObject } {
  const candidates = [undefined, ...FRAMEWORKS].map((framework) => {
    const completed = framework === NEMO_RL ? inSection(root) : root;
    return { framework, root: completed, marks: marksOf(framework, completed) };
  });
  const isWanted = ({ framework }: { framework: Framework | undefined }) => {
    const name = framework?.name ?? 'trinity';
    return wanted === undefined || name === wanted || name.startsWith(`${wanted}/`);
  };
  const marked = candidates.filter(({ marks }) => marks.length > 0);
  const found = marked.filter(isWanted);
  const others = candidates.filter(isWanted);
  // A configuration without a key of any framework is for the one that the caller names, with all of its defaults.
  const [one] =
    found.length === 1
      ? found
      : found.length === 0 && marked.length === 0 && others.length === 1
        ? others
        : [];
  if (!one) throw undecided(root, marked, wanted);
  checkBases(one.framework, root);
  return one;
}

function undecided(
  root: ConfigObject,
  marked: readonly { framework: Framework | undefined; marks: readonly string[] }[],
  wanted: ConfigFramework | undefined,
): LossError {
  const shown = marked.map(
    ({ framework, marks }) => `${marks.slice(0, 3).join(', ')} (${framework?.title ?? 'Trinity-RFT'})`,
  );
  const unknown = marked.length > 0 ? [] : pathsOf(root);
  return new LossError('ERR_INVALID_OPTION', {
    at: 'configuration',
    expected: `keys of ${wanted === undefined ? 'one framework' : 'the framework'} (${wanted ?? FRAMEWORK_NAMES.join(', ')})`,
    received:
      shown.join(' and ') || (unknown.length === 0 ? 'no keys' : `only the unknown ${unknown.join(', ')}`),
    hint: hintOf(root, unknown, wanted === undefined && marked.length > 1),
  });
}

function hintOf(root: ConfigObject, unknown: readonly string[], isOfSeveral: boolean): string | undefined {
  for (const path of unknown) {
    const nearest = closest(path, KNOWN_PATHS);
    if (distance(path, nearest) <= MAX_TYPOS) return `Did you mean '${nearest}'?`;
  }
  if (isOfSeveral) return 'Say which framework it is for';
  return Object.hasOwn(root, 'defaults') ? NOT_READ : undefined;
}

const NOT_READ = 'Files that defaults names are not read: print the composed configuration, and use that';
// The largest number of wrong letters in a key for which an error suggests another key.
const MAX_TYPOS = 2;
// The largest number of unknown keys that an error shows.
const MAX_SHOWN = 5;

/** Returns the first keys of a configuration, and the first keys of its sections. */
function pathsOf(root: ConfigObject): string[] {
  const paths: string[] = [];
  for (const [name, value] of Object.entries(root)) {
    const isSection = value !== null && typeof value === 'object' && !Array.isArray(value);
    paths.push(...(isSection ? Object.keys(value).map((key) => `${name}.${key}`) : [name]));
    if (paths.length >= MAX_SHOWN) break;
  }
  return paths.slice(0, MAX_SHOWN).map((path) => path.slice(0, MAX_PATH));
}
// The length to which an error shortens unknown keys.
const MAX_PATH = 100;

const TRINITY_KEYS = ['algorithm_type', ...TRAINER_KEYS, ...OBJECTIVE_KEYS].flatMap((key) => [
  key,
  toCamelCase(key),
]);
const TRINITY_SECTIONS = ['buffer', 'explorer', 'synchronizer'];

const KNOWN_PATHS = [
  ...TRINITY_KEYS.map((key) => `algorithm.${key}`),
  ...FRAMEWORKS.flatMap(({ keys }) => keys.map(({ path }) => path)),
];

/** Returns the paths in a configuration that only this framework has. */
function marksOf(framework: Framework | undefined, root: ConfigObject): string[] {
  if (framework === undefined) {
    const ofSection = TRINITY_KEYS.filter((key) => key !== 'optimizer');
    const paths = [...TRINITY_KEYS.map((key) => `algorithm.${key}`), ...ofSection, ...TRINITY_SECTIONS];
    return paths.filter((path) => find(root, path) !== undefined);
  }
  const own = framework.keys.filter(({ shared }) => !shared).map(({ path }) => path);
  const paths = [...framework.marks, ...own].filter((path) => find(root, path) !== undefined);
  return paths.length > 0 ? paths : markOfLossType(framework, root);
}

// The trainers of TRL share the key loss_type, but not its values.
function markOfLossType({ lossTypes }: Framework, root: ConfigObject): string[] {
  const type = find(root, 'loss_type')?.value;
  const types = Array.isArray(type) ? type : [type];
  const isOwn =
    lossTypes !== undefined && types.length > 0 && types.every((each) => lossTypes.includes(each));
  return isOwn ? ['loss_type'] : [];
}

function inSection(root: ConfigObject): ConfigObject {
  const names = NEMO_RL.keys.flatMap(({ path }) =>
    path.startsWith('loss_fn.') ? path.slice('loss_fn.'.length) : [],
  );
  return names.some((name) => Object.hasOwn(root, name)) ? { loss_fn: root } : root;
}

/**
 * Checks that a configuration does not build on files other than the framework's own one, because these are not read.
 * @throws LossError `ERR_INVALID_OPTION`
 */
function checkBases(framework: Framework | undefined, root: ConfigObject): void {
  if (framework === undefined) return;
  const value = find(root, 'defaults')?.value ?? null;
  const bases = value === null ? [] : Array.isArray(value) ? value : [value];
  const known = framework.bases.map(stemOf);
  // Groups of Hydra are objects: { group: file }.
  const stranger = bases.find((base) => typeof base !== 'object' && !known.includes(stemOf(String(base))));
  const section = sectionsOf(framework).find((path) => typeof find(root, path)?.value === 'string');
  if (section !== undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      at: `configuration of ${framework.title}`,
      option: section,
      expected: 'keys, because no other file is read',
      received: describeSetting(find(root, section)!.value),
    });
  if (stranger === undefined) return;
  throw new LossError('ERR_INVALID_OPTION', {
    at: `configuration of ${framework.title}`,
    option: 'defaults',
    expected: framework.bases.length > 0 ? `only ${framework.bases.join(', ')}` : 'no other files',
    received: describeSetting(stranger),
    hint: NOT_READ,
  });
}

/** Returns the name of a file without its folders and its extension. */
function stemOf(file: string): string {
  return file.replace(/^.*\//, '').replace(/\.ya?ml$/, '');
}

/** Returns the sections that hold keys with an effect. A command line may name a file for one: `algorithm=mine`. */
function sectionsOf({ keys }: Framework): string[] {
  const sections = keys.flatMap(({ path }) =>
    path.split('.').map((_, i, names) => names.slice(0, i).join('.')),
  );
  return [...new Set(sections)].filter((path) => path !== '');
}
