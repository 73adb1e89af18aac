// REC: advantages relative to the group's mean reward.
import { ADVANTAGE_FN, advantageClass, groupMetrics } from './advantage-fn.js';
import { EPSILON, SEED } from './options.js';

/**
 * REC's advantage of a row: its reward minus the mean reward of its group. One option divides it by the standard
 * deviation of the group's rewards. Another balances a group in which most answers are bad (below the mean): the
 * surplus of them, drawn at random, gets the advantage 0.
 */
export class RECGroupedAdvantage extends advantageClass(
  {
    name: 'rec',
    summary: 'R − mean of the group; surplus bad answers can be dropped',
    source: ['arXiv 2509.24203', 'Trinity-RFT'],
    reads: ['rewards', 'group_ids', 'action_mask'],
    perRow: true,
    options: {
      epsilon: EPSILON,
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
      seed: SEED,
    },
    metrics: {
      ...groupMetrics('fraction of rows', 'drop_balance'),
      ...groupMetrics('reward', 'reward_mean', 'reward_std'),
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

/** The options of {@link RECGroupedAdvantage}. */
export type RECAdvantageOptions = NonNullable<ConstructorParameters<typeof RECGroupedAdvantage>[0]>;
