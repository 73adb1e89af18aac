/** The losses of reward models in float64, by name. Even rows are chosen, and the row after each is rejected. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';

function pairs(x: Tokens) {
  const count = x.batch.rows / 2;
  const places = Array.from({ length: count }, (_, pair) => 2 * pair);
  const rewards = x.leaf('rewards');
  const [chosen, rejected] = [rewards.gather(places), rewards.gather(places.map((row) => row + 1))];
  // One value per pair, or one per row.
  const ofPairs = (values: ArrayLike<number> | undefined, absent: number): number[] =>
    places.map((row) => (values ? values[values.length === count ? row / 2 : row]! : absent));
  return {
    rewards,
    chosen,
    rejected,
    difference: chosen.sub(rejected),
    margin: x.tape.leaf(ofPairs(x.batch.margin, 0)),
    mask: x.tape.leaf(ofPairs(x.batch.sampleMask, 1)),
    maskOfRows: (offset: 0 | 1) =>
      x.tape.leaf(places.map((row) => (x.batch.sampleMask ? x.batch.sampleMask[row + offset]! : 1))),
    mean: (values: Variable) => values.sum().per(count || 1),
    wins: (difference: Variable) => difference.test((d) => d > 0),
  };
}

const bradleyTerry = (difference: Variable): Variable => difference.logSigmoid().neg();

const numbers = (values: Variable) => (values.length > 0 ? [...values.value] : [0]);

/** Makes a loss that is a mean over all pairs, with these names of its metrics. */
const mean =
  (names: Record<string, string>, hasMargin = false): Formula =>
  (x) => {
    const of = pairs(x);
    const loss = of.mean(bradleyTerry(hasMargin ? of.difference.sub(of.margin) : of.difference));
    const all: Outcome['metrics'] = {
      loss,
      accuracy: of.mean(of.wins(of.difference)),
      chosen: of.mean(of.chosen),
      rejected: of.mean(of.rejected),
      difference: of.mean(of.difference),
    };
    return {
      loss,
      metrics: Object.fromEntries(Object.entries(names).map(([name, what]) => [name, all[what]!])),
    };
  };

/** The loss of TRL and ms-swift: with a margin, and a term that keeps rewards near 0. */
function centred(x: Tokens, args: Args) {
  const of = pairs(x);
  const coefficient = option<number | null>(args, 'center_rewards_coefficient', null);
  const term = of.mean(of.chosen.add(of.rejected).square()).mul(coefficient ?? 0);
  const loss = of.mean(bradleyTerry(of.difference.sub(of.margin)));
  return {
    of,
    term: coefficient === null ? undefined : term,
    loss: coefficient === null ? loss : loss.add(term),
  };
}

const trl: Formula = (x, args) => {
  const { of, loss } = centred(x, args);
  return {
    loss,
    metrics: {
      min_reward: Math.min(...numbers(of.rewards)),
      mean_reward: of.rewards.sum().per(x.batch.rows || 1),
      max_reward: Math.max(...numbers(of.rewards)),
      accuracy: of.mean(of.wins(of.difference)),
      margin: of.mean(of.difference),
    },
  };
};

const swift: Formula = (x, args) => {
  const { of, term, loss } = centred(x, args);
  return {
    loss,
    metrics: {
      ...(term && { center_rewards_loss: term }),
      'rewards/chosen': of.mean(of.chosen),
      'rewards/rejected': of.mean(of.rejected),
      'rewards/accuracies': of.mean(of.wins(of.difference)),
      'rewards/margins': of.mean(of.difference),
    },
  };
};

const nemo: Formula = (x, args) => {
  const of = pairs(x);
  const [mask, ofRejected] = [of.maskOfRows(0), of.maskOfRows(1)];
  const count = [...mask.value, ...ofRejected.value].reduce((sum, k) => sum + k, 0);
  const total = option(args, 'global_valid_seqs', count) / 2 + 1e-8;
  const mean = (values: Variable, by: Variable) => values.mul(by).sum().per(total);
  const loss = mean(bradleyTerry(of.difference), mask);
  return {
    loss,
    metrics: {
      loss,
      accuracy: mean(of.wins(of.difference), mask),
      rewards_chosen_mean: mean(of.chosen, mask),
      rewards_rejected_mean: mean(of.rejected, ofRejected),
      num_valid_samples: count / 2,
    },
  };
};

const areal: Formula = (x) => {
  const of = pairs(x);
  const counts = of.maskOfRows(0).mul(of.maskOfRows(1));
  const total = [...counts.value].reduce((sum, k) => sum + k, 0) || 1;
  const mean = (values: Variable) => values.mul(counts).sum().per(total);
  const loss = mean(bradleyTerry(of.difference));
  return {
    loss,
    metrics: {
      correct_ratio: mean(of.wins(of.difference)),
      pos_score: mean(of.chosen),
      neg_score: mean(of.rejected),
      loss,
    },
  };
};

const oat: Formula = (x, args) => {
  const of = pairs(x);
  const perPair = bradleyTerry(of.difference.sub(of.margin));
  const loss = option(args, 'broadcast_masks', false)
    ? of.mean(perPair).mul(of.mean(of.mask))
    : of.mean(perPair.mul(of.mask));
  return {
    loss,
    metrics: {
      'train/rm/loss_rew': loss,
      'train/rm/chosen_rewards': of.mean(of.chosen),
      'train/rm/rejected_rewards': of.mean(of.rejected),
    },
  };
};

const OPENRLHF = { loss: 'loss', acc: 'accuracy', chosen_reward: 'chosen', reject_reward: 'rejected' };

export const rewardFormulas: Record<string, Formula> = {
  'trl/reward': trl,
  'swift/reward': swift,
  'openrlhf/reward': mean(OPENRLHF, true),
  'openrlhf/reward_logexp': mean(OPENRLHF),
  'nemo/reward': nemo,
  'llamafactory/reward': mean({ accuracy: 'accuracy' }),
  'areal/reward': areal,
  'openinstruct/reward': mean({
    'train/rm/accuracy': 'accuracy',
    'train/rm/loss': 'loss',
    'train/rm/chosen_rewards': 'chosen',
    'train/rm/rejected_rewards': 'rejected',
    'train/rm/reward_margin': 'difference',
  }),
  'oat/reward': oat,
};
