/** The float64 reference of all advantage functions, by registry name. */
import { type Advantage, tokenRewards, trinityAdvantages } from './advantage.js';
import { opdAdvantages } from './families/opd.js';
import { advantages as verlAdvantages } from './frameworks/verl-advantages.js';

/** verl's functions read rewards per token. A batch with one reward per row has it at the last unmasked token. */
const ofVerl = Object.entries(verlAdvantages).map(([name, fn]): [string, Advantage] => [
  `verl/${name}`,
  (args, batch) => fn(args, { ...batch, tokenLevelRewards: tokenRewards(batch) }),
]);

export const referenceAdvantages: Record<string, Advantage> = {
  ...trinityAdvantages,
  ...Object.fromEntries(ofVerl),
  ...opdAdvantages,
};
