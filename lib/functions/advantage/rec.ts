// REC's advantages.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';

/** The reward minus the group's mean; optionally normalised, and balanced by dropping surplus bad answers. */
export class RECGroupedAdvantage extends advantageClass(
  {
    name: 'rec',
    summary: 'R − mean of the group; surplus bad answers can be dropped',
    source: ['arXiv 2509.24203', 'Trinity-RFT'],
    reads: ['rewards', 'group_ids', 'action_mask'],
    perRow: true,
    options: {
      epsilon: {
        type: 'number',
        default: 1e-6,
        atLeast: 0,
        typical: [1e-6, 0.1],
        help: 'added to the standard deviation',
      },
      stdNormalize: {
        type: 'boolean',
        default: false,
        help: "divide by the population standard deviation of the group's rewards",
      },
      drop: {
        type: 'choice',
        choices: ['balance'],
        trinity: null,
        random: true,
        help: 'balance: if most answers are below the mean, draw the surplus at random and give it advantage 0',
      },
      seed: { type: 'integer', default: 0, listed: false, atLeast: 0, help: 'seed of the random draws' },
    },
    metrics: {
      'group_advantages/drop_balance/mean': { unit: 'fraction of rows, mean over groups' },
      'group_advantages/drop_balance/max': { unit: 'fraction of rows, max over groups' },
      'group_advantages/drop_balance/min': { unit: 'fraction of rows, min over groups' },
      ...groupMetrics('reward_mean', 'reward_std'),
    },
    numerics: {
      range: 'finite rewards',
      outside: 'not finite: ERR_INVALID_INPUT',
      variants: [{ std_normalize: true }],
    },
  },
  ({ epsilon, stdNormalize, drop = 'none', seed }) => ({
    options: { epsilon, std_normalize: stdNormalize, drop },
    seed,
  }),
) {
  static {
    ADVANTAGE_FN.register('rec', RECGroupedAdvantage);
  }
}

/** Options of {@link RECGroupedAdvantage}. */
export type RECAdvantageOptions = NonNullable<ConstructorParameters<typeof RECGroupedAdvantage>[0]>;
