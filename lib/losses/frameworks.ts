// Says which framework each function follows, or `papers` if it belongs to none, so that lists can group the functions.
import type { FunctionDeclaration } from '../base/declaration.js';

const TRINITY = 'Trinity-RFT';
const PAPERS = 'papers';
const OWN = 'your own';

/** The frameworks by the prefixes of their functions' names. */
const BY_PREFIX: Readonly<Record<string, string>> = {
  verl: 'verl',
  trl: 'TRL',
  openrlhf: 'OpenRLHF',
  nemo: 'NeMo-RL',
  skyrl: 'SkyRL',
  slime: 'slime',
  miles: 'Miles',
  areal: 'AReaL',
  roll: 'ROLL',
  rlinf: 'RLinf',
  easyr1: 'EasyR1',
  swift: 'ms-swift',
  llamafactory: 'LLaMA-Factory',
  openinstruct: 'open-instruct',
  oat: 'oat',
  tinker: 'Tinker',
  liger: 'Liger Kernel',
  axolotl: 'axolotl',
  hf: 'transformers',
  prime: 'prime-rl',
};

/** The groups of functions, in the order of lists. */
export const FRAMEWORKS: readonly string[] = [TRINITY, ...Object.values(BY_PREFIX), PAPERS, OWN];

/**
 * Returns the framework whose arithmetic a function has: one of FRAMEWORKS. A function without a source is a user's own,
 * because all functions of this package have one.
 */
export function frameworkOf({ name, source }: Pick<FunctionDeclaration, 'name' | 'source'>): string {
  if (source.length === 0) return OWN;
  const [prefix] = name.split('/', name.includes('/') ? 1 : 0);
  return BY_PREFIX[prefix ?? ''] ?? (source.includes(TRINITY) ? TRINITY : PAPERS);
}

/** Groups functions by framework, and leaves out frameworks without functions. */
export function byFramework<T>(
  functions: readonly T[],
  framework: (fn: T) => string,
): { framework: string; functions: T[] }[] {
  return FRAMEWORKS.map((each) => ({
    framework: each,
    functions: functions.filter((fn) => framework(fn) === each),
  })).filter((group) => group.functions.length > 0);
}

/** Returns ' of <framework>' for titles, or nothing for Trinity-RFT, whose functions have plain names. */
export function ofFramework(framework: string): string {
  return framework === TRINITY ? '' : ` of ${framework}`;
}
