/** Lists the functions that the matrix tests, with arguments. */
import fc from 'fast-check';
import { KL_FN } from '../../lib/index.js';
import { ADVANTAGE_ARGUMENTS, requiredArgs } from '../support/draw-arguments.js';
import { everyFunction } from '../support/functions.js';
import { correctedLosses, drawnExpressions, objectives, weightedLosses } from './composed.js';
import { golden } from './golden.js';
import {
  divisible,
  REGISTRIES,
  type Tested,
  tested,
  testedAdvantage,
  testedCorrection,
  testedKlValues,
} from './tested.js';

/** Returns all functions, with arguments. Losses come with all aggregations. */
export function everyTested(): Tested[] {
  return [
    ...everyFunction(1).map(({ family, name, args, title }) =>
      tested(family, name, divisible(name, args), title),
    ),
    // The KL function `none` computes nothing.
    ...KL_FN.names().flatMap((name) => (name === 'none' ? [] : [testedKlValues(name)])),
    ...Object.entries(ADVANTAGE_ARGUMENTS).flatMap(([name, drawn]) =>
      [{}, ...fc.sample(drawn, { seed: 7, numRuns: 2 })].flatMap((args, i) =>
        (['token', 'row'] as const).map((per) =>
          testedAdvantage(name, args, per === 'token', `advantage ${name} of rewards per ${per} #${i}`),
        ),
      ),
    ),
    ...REGISTRIES.correction
      .names()
      .map((name) => testedCorrection(name, requiredArgs(REGISTRIES.correction.get(name).declaration))),
    ...golden
      .filter(({ family }) => family === 'correction')
      .map(({ name, args, id }) => testedCorrection(name, args, `correction ${id}`)),
    ...correctedLosses(),
    ...weightedLosses(),
    ...objectives(),
    ...drawnExpressions(20),
  ];
}

/** Returns every function once. */
export function everyName(): Tested[] {
  const seen = new Set<string>();
  return everyTested().filter(({ family, name }) => {
    const isFirst = !seen.has(`${family} ${name}`);
    seen.add(`${family} ${name}`);
    return isFirst;
  });
}
