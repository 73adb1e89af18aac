// The published declarations give every function the options, metrics and name that its source gives it. This compiles only
// if they do. declaration-types.test.ts compiles it.
import type * as published from '../../dist/types/lib/losses/index.js';
import type * as source from '../../lib/losses/index.js';
import type { MetricsOf, OptionsOf } from '../../lib/losses/index.js';

type Declared = { readonly declaration: { readonly name: string } };
type Names = {
  [K in keyof typeof source]: (typeof source)[K] extends Declared & (new (...args: never) => unknown)
    ? K
    : never;
}[keyof typeof source];

// Options of all losses, whose types are the same but for the modules that they come from.
type Own<O> = O extends unknown ? Omit<O, 'correction' | 'masks'> : never;
type Same<A, B> = [A, keyof A] extends [B, keyof B]
  ? [B, keyof B] extends [A, keyof A]
    ? true
    : false
  : false;
type Compared<A extends Declared, B extends Declared> = {
  options: Same<Own<OptionsOf<A>>, Own<OptionsOf<B>>>;
  metrics: Same<MetricsOf<A>, MetricsOf<B>>;
  name: Same<A['declaration']['name'], B['declaration']['name']>;
  required: Same<undefined extends FirstOf<A> ? 'no' : 'yes', undefined extends FirstOf<B> ? 'no' : 'yes'>;
};
type FirstOf<C> = C extends new (...args: infer A) => unknown ? A[0] : never;

type Found = { [K in Names]: Compared<(typeof source)[K], (typeof published)[K]> };
type Wanted = { [K in Names]: { options: true; metrics: true; name: true; required: true } };
export const compare = (found: Found): Wanted => found;

// There is something to compare.
export const name: Names = 'PPOPolicyLossFn';
export const options: (keyof OptionsOf<typeof source.PPOPolicyLossFn>)[] = ['clipRange', 'clipRatioC'];
