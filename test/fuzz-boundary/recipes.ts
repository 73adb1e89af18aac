/** Draws random recipes with fast-check. A recipe describes how to make a hostile value; see values.ts. */
import fc from 'fast-check';
import { ODD } from './odd-values.js';
import {
  ACCESSES,
  type Access,
  ARRAY_TWISTS,
  MEMORIES,
  PROXY_MODES,
  type ProxyMode,
  type Recipe,
  TWISTS,
  TYPES,
} from './values.js';

// Names and numbers that functions accept, and some that are almost right.
const WORDS = [
  '',
  'ppo',
  'grpo',
  'verl',
  'tinker',
  'none',
  'k2',
  'default',
  'token-mean',
  'seq-mean-token-sum',
  'float16',
  'bfloat16',
  'float32',
  'float8',
  'cpu',
  'cuda',
  'cuda:0',
  'cuda:99999999999',
  '__proto__',
  'constructor',
  'toString',
  'length',
  'two-side',
  'balance',
  'batch',
  'train',
  'both',
  'algorithm_type: grpo',
  ': : :',
  '\u0000',
];
const NUMBERS = [
  0,
  1,
  2,
  3,
  6,
  -1,
  0.5,
  1.5,
  2 ** 31,
  2 ** 31 - 1,
  -(2 ** 31),
  2 ** 32,
  2 ** 53,
  2 ** 53 - 1,
  5e-324,
  1e-300,
  1e308,
  -1e308,
  3.4e38,
  16_777_217,
];

const { recipe: recipeOf } = fc.letrec<{ recipe: Recipe; leaf: Recipe }>((tie) => ({
  leaf: fc.oneof(
    fc
      .constantFrom(...WORDS, ...NUMBERS, null, true, false)
      .map((value) => ({ kind: 'plain' as const, value })),
    {
      arbitrary: fc.constantFrom(...Object.keys(ODD)).map((name) => ({ kind: 'odd' as const, name })),
      weight: 3,
    },
    {
      arbitrary: fc.record({
        kind: fc.constant('typed' as const),
        type: fc.constantFrom(...TYPES),
        length: fc.constantFrom(0, 1, 2, 3, 5, 6, 6, 6, 7),
        memory: fc.constantFrom(...MEMORIES),
        twist: fc.oneof({ arbitrary: fc.constant('none' as const), weight: 6 }, fc.constantFrom(...TWISTS)),
      }),
      weight: 3,
    },
  ),
  recipe: fc.oneof(
    { withCrossShrink: true, maxDepth: 2 },
    { arbitrary: tie('leaf'), weight: 6 },
    fc.record({
      kind: fc.constant('array' as const),
      items: fc.array(tie('recipe'), { maxLength: 6 }),
      twist: fc.constantFrom(...ARRAY_TWISTS),
    }),
    fc.record({ kind: fc.constant('half' as const), data: tie('recipe'), dtype: tie('leaf') }),
    fc.record({
      kind: fc.constant('object' as const),
      entries: fc.array(
        fc.record({
          key: fc.constantFrom(
            'shape',
            'data',
            'dtype',
            'length',
            'tokens',
            'rows',
            'expert',
            'backend',
            'algorithm',
            'clip_range',
            '0',
          ),
          value: tie('recipe'),
          access: fc.constantFrom(...ACCESSES),
        }),
        { maxLength: 3 },
      ),
    }),
    fc.record({
      kind: fc.constant('proxy' as const),
      of: tie('recipe'),
      mode: fc.constantFrom(...PROXY_MODES),
      after: fc.integer({ min: 0, max: 12 }),
    }),
  ),
}));

/** Draws a recipe of any kind. */
export const recipe: fc.Arbitrary<Recipe> = recipeOf;
export const access: fc.Arbitrary<Access> = fc.constantFrom(...ACCESSES);
export const proxyMode: fc.Arbitrary<ProxyMode> = fc.constantFrom(...PROXY_MODES);
