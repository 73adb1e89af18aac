/** The preference losses of other frameworks than TRL in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import { orNull } from '../frameworks/shared.js';
import {
  averaged,
  difference,
  hinge,
  isChosenRow,
  klEstimate,
  ktoLosses,
  labelled,
  lengths,
  lengthWeights,
  logOdds,
  logpsMetrics,
  marginLoss,
  meanOf,
  meanOverRows,
  nll,
  rewardMetrics,
  rowSums,
  running,
  type Sides,
  shorter,
  sidesOf,
  smoothed,
  squaredTo,
  times,
  wins,
} from './preference-terms.js';
import { classSums, DPO_TYPES, divergence, exo, robust, trlPreference, typesOf } from './preference-trl.js';

/** The mask of each pair, of which the batch may have one per pair or one per row. */
function pairMask(x: Tokens): Variable {
  const pairs = Math.floor(x.rows.length / 2);
  const mask = x.batch.sampleMask;
  return x.tape.leaf(
    Array.from({ length: pairs }, (_, pair) =>
      mask ? Number(mask[mask.length === pairs ? pair : 2 * pair]) : 1,
    ),
  );
}

function oat(x: Tokens, losses: Variable, rewards: Sides, broadcasts = false): Outcome {
  const mask = pairMask(x);
  const loss = broadcasts ? meanOf(losses).mul(meanOf(mask)) : meanOf(losses.mul(mask));
  return {
    loss,
    metrics: {
      loss_mean: loss,
      acc_mean: wins(rewards),
      chosen_reward: meanOf(rewards.chosen),
      rejected_reward: meanOf(rewards.rejected),
      reward_margin: meanOf(difference(rewards)),
    },
  };
}

const oatDpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const kind = option<string>(args, 'dap_algo', 'DPO');
  const sums = rowSums(x);
  const isMean = kind === 'IPO' || kind === 'LR_DPO';
  const z = sidesOf(x, isMean ? averaged(x, sums.z) : sums.z);
  const rewards = times(z, beta);
  if (kind === 'IPO') return oat(x, squaredTo(difference(z), 1 / (2 * beta)), rewards);
  if (kind === 'SLiC') return oat(x, hinge(difference(rewards)), rewards);
  const longer = difference(sidesOf(x, lengths(x))).mul(option<number>(args, 'len_reg_alpha', 0) / beta);
  const short = z.chosen
    .neg()
    .relu()
    .mul(option<number>(args, 'dpo_positive_lambda', 0));
  const q = difference(z).add(longer).sub(short).mul(beta);
  const policy = averaged(x, isMean ? averaged(x, sums.policy) : sums.policy);
  const sft = sidesOf(x, policy).chosen.mul(-option<number>(args, 'sft_weight', 0));
  return oat(x, smoothed(q, option<number>(args, 'label_smoothing', 0)).add(sft), rewards);
};

const oatSimpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const sides = sidesOf(x, averaged(x, x.rowSum(x.logprob)));
  const q = difference(sides).sub(option<number>(args, 'gamma_beta_ratio', 0.5));
  const losses = marginLoss(
    option<string>(args, 'loss_type', 'sigmoid'),
    q,
    beta,
    option<number>(args, 'label_smoothing', 0),
  );
  return oat(x, losses, times(sides, beta));
};

const oatBnf: Formula = (x) => {
  const { logprob, refLogprob } = x;
  const p = logprob.exp();
  const target = p.div(refLogprob.exp().add(1e-6)).min(1);
  const others = target
    .neg()
    .add(1 + 1e-6)
    .div(logprob.expm1().neg().add(1e-6));
  const perToken = target
    .detach()
    .mul(logprob)
    .add(others.detach().mul(x.column('entropyOther')));
  const smallest = Math.max(x.rows.length > 0 ? Math.min(...x.counts) : 0, 1);
  const sides = sidesOf(x, x.rowSum(perToken).div(smallest));
  return oat(x, sides.rejected.sub(sides.chosen), sidesOf(x, rowSums(x).z), true);
};

const openrlhfDpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const sums = rowSums(x);
  const rewards = times(sidesOf(x, sums.z), beta);
  const type = option(args, 'ipo_enable', false) ? 'ipo' : 'sigmoid';
  const coefficient = option<number>(args, 'nll_loss_coef', 0);
  const losses = marginLoss(
    type,
    difference(sidesOf(x, sums.z)),
    beta,
    option<number>(args, 'label_smoothing', 0),
  );
  const likelihood = meanOf(sidesOf(x, averaged(x, sums.policy)).chosen).neg();
  const loss = meanOf(losses);
  return {
    loss: coefficient === 0 ? loss : loss.add(likelihood.mul(coefficient)),
    metrics: {
      loss,
      acc: wins(rewards),
      chosen_reward: meanOf(rewards.chosen),
      reject_reward: meanOf(rewards.rejected),
      ...(coefficient !== 0 && { nll_loss: likelihood }),
    },
  };
};

const rollDpo: Formula = (x, args) => {
  const { ipo = false, ...others } = args;
  const { loss, metrics } = openrlhfDpo(x, { ...others, ipo_enable: ipo });
  return {
    loss,
    metrics: Object.fromEntries(Object.entries(metrics).map(([name, value]) => [`actor/${name}`, value])),
  };
};

const nemoDpo: Formula = (x, args) => {
  const sums = rowSums(x);
  const mask = x.tape.leaf(x.rows.map((row) => Number(x.batch.sampleMask?.[row] ?? 1)));
  const count = mask.value.reduce((sum, k) => sum + k, 0);
  const total = option(args, 'global_valid_seqs', count) / 2 + 1e-8;
  const masks = sidesOf(x, mask);
  const mean = (values: Variable, by: Variable) => values.mul(by).sum().per(total);
  const z = sidesOf(x, option(args, 'preference_average_log_probs', false) ? averaged(x, sums.z) : sums.z);
  const beta = option<number>(args, 'reference_policy_kl_penalty', 0.05);
  const preference = mean(smoothed(difference(z).mul(beta), 0), masks.chosen);
  const policy = option(args, 'sft_average_log_probs', false) ? averaged(x, sums.policy) : sums.policy;
  const weight = option<number>(args, 'sft_loss_weight', 0);
  const sft = mean(sidesOf(x, policy).chosen.neg(), masks.chosen).mul(weight === 0 ? 0 : 1);
  const loss = preference.mul(option<number>(args, 'preference_loss_weight', 1)).add(sft.mul(weight));
  return {
    loss,
    metrics: {
      loss,
      sft_loss: sft,
      preference_loss: preference,
      accuracy: mean(
        difference(z).test((d) => d > 0),
        masks.chosen,
      ),
      rewards_chosen_mean: mean(z.chosen, masks.chosen),
      rewards_rejected_mean: mean(z.rejected, masks.rejected),
      num_valid_samples: count / 2,
    },
  };
};

const arealDpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const type = option<string>(args, 'loss_type', 'sigmoid');
  const { z } = rowSums(x);
  const margin = difference(sidesOf(x, type === 'ipo' ? averaged(x, z) : z));
  const rewards = times(sidesOf(x, z), beta);
  const loss = meanOf(marginLoss(type, margin, beta, 0));
  return {
    loss,
    metrics: {
      loss,
      chosen_reward: meanOf(rewards.chosen),
      rejected_reward: meanOf(rewards.rejected),
      reward_accuracy: wins(rewards),
      reward_margin: meanOf(difference(rewards)),
    },
  };
};

const tinkerDpo: Formula = (x, args) => {
  const weights = x.batch.tokenWeights ? x.constant('tokenWeights') : undefined;
  const rewards = times(sidesOf(x, rowSums(x, weights).z), option<number>(args, 'dpo_beta', 0.1));
  const loss = meanOf(smoothed(difference(rewards), 0));
  return {
    loss,
    metrics: {
      dpo_loss: loss,
      accuracy: wins(rewards),
      margin: meanOf(difference(rewards)),
      chosen_reward: meanOf(rewards.chosen),
      rejected_reward: meanOf(rewards.rejected),
    },
  };
};

const openinstructDpo: Formula = (x, args) => {
  const type = option<string>(args, 'loss_type', 'dpo_norm');
  const beta = option<number>(args, 'beta', 5);
  const scale = (values: Variable) =>
    type === 'dpo_norm' || type === 'simpo' ? averaged(x, values) : values;
  const policy = sidesOf(x, scale(x.rowSum(x.logprob)));
  const values = type === 'simpo' ? policy : sidesOf(x, scale(rowSums(x).z));
  const margin = difference(values).sub(type === 'simpo' ? option<number>(args, 'gamma_beta_ratio', 0.3) : 0);
  const losses = smoothed(margin.mul(beta), option<number>(args, 'label_smoothing', 0));
  const loss = meanOf(type === 'wpo' ? losses.mul(policy.chosen.add(policy.rejected).exp().min(1)) : losses);
  const rewards = times(values, beta);
  return {
    loss,
    metrics: {
      train_loss: loss,
      ...logpsMetrics(policy),
      ...(type.startsWith('dpo') && {
        'rewards/chosen': meanOf(rewards.chosen),
        'rewards/rejected': meanOf(rewards.rejected),
        'rewards/average': meanOf(rewards.chosen.add(rewards.rejected)).div(2),
        'rewards/accuracy': wins(rewards),
        'rewards/margin': meanOf(difference(rewards)),
      }),
    },
  };
};

const openrlhfKto: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const { z } = rowSums(x);
  const estimate = klEstimate(x);
  const loss = meanOverRows(
    x,
    ktoLosses(
      x,
      z.sub(estimate).mul(beta),
      option<number>(args, 'desirable_weight', 1),
      option<number>(args, 'undesirable_weight', 1),
    ),
  );
  const reward = (label: 0 | 1) => meanOf(z.gather(labelled(x, label))).mul(beta);
  return {
    loss,
    metrics: { kto_loss: loss, chosen_reward: reward(1), reject_reward: reward(0), kl: estimate },
  };
};

const vanillaKto: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const { chosen, rejected } = sidesOf(x, rowSums(x).z);
  const [K, L] = [meanOf(chosen).relu(), meanOf(rejected).relu()];
  const right = chosen.sub(L).mul(beta).neg().sigmoid();
  const wrong = K.sub(rejected).mul(beta).neg().sigmoid();
  return {
    loss: meanOf(right).add(meanOf(wrong)).div(2),
    metrics: { chosen_reward: meanOf(chosen).mul(beta), reject_reward: meanOf(rejected).mul(beta) },
  };
};

/** LLaMA-Factory counts the positions from the first label, masked ones among them. */
function positionWeights(x: Tokens, alpha: number | null): Variable | undefined {
  if (alpha === null) return undefined;
  const limits = shorter(x);
  const firsts = new Map<number, number>();
  return x.tape.leaf(
    x.index.map((at, i) => {
      const row = x.rowOf[i]!;
      if (!firsts.has(row)) firsts.set(row, at);
      return at - firsts.get(row)! < limits[row]! ? 1 : alpha;
    }),
  );
}

/** The losses of both sides, shifted by a running mean of rewards that a call changes as one value. */
function shifted(x: Tokens, args: Args, reward: Variable) {
  const { next, state } = running(args, meanOverRows(x, reward), 1);
  const { chosen, rejected } = sidesOf(x, reward.sub(next));
  return { losses: chosen.logSigmoid().add(rejected.neg().logSigmoid()).neg(), state };
}

const llamafactoryDpo: Formula = (x, args) => {
  const beta = option<number>(args, 'pref_beta', 0.1);
  const type = option<string>(args, 'pref_loss', 'sigmoid');
  const weights = positionWeights(x, orNull(args, 'ld_alpha', null));
  const isMean = type !== 'sigmoid' && type !== 'hinge';
  const hasReference = type !== 'orpo' && type !== 'simpo';
  const scale = (values: Variable) => (isMean ? averaged(x, values) : values);
  const sum = x.rowSum(weights ? x.logprob.mul(weights) : x.logprob);
  const policy = scale(sum);
  const z = hasReference ? scale(sum.sub(x.rowSum(x.refLogprob))) : policy;
  const values = sidesOf(x, z);
  const sft = sidesOf(x, averaged(x, sum)).chosen.neg();
  const margin = difference(values);
  const preference = {
    sigmoid: () => smoothed(margin.mul(beta), option<number>(args, 'dpo_label_smoothing', 0)),
    hinge: () => hinge(margin.mul(beta)),
    ipo: () => squaredTo(margin, 1 / (2 * beta)),
    orpo: () =>
      sft.sub(
        difference(sidesOf(x, logOdds(policy)))
          .logSigmoid()
          .mul(beta),
      ),
    simpo: () => smoothed(margin.mul(beta).sub(option<number>(args, 'simpo_gamma', 0.5)), 0),
  }[type]!();
  const weight = option<number>(args, 'pref_bco_weight', 0);
  const bco = weight > 0 && hasReference ? shifted(x, args, z.mul(beta)) : undefined;
  const mixed = bco ? preference.add(bco.losses.mul(weight)).div(1 + weight) : preference;
  const losses = mixed.add(sft.mul(option<number>(args, 'pref_ftx', 0)));
  return {
    loss: meanOf(losses),
    metrics: {
      ...rewardMetrics(times(values, beta)),
      ...logpsMetrics(sidesOf(x, policy)),
      ...(type === 'orpo' && { sft_loss: meanOf(sft), odds_ratio_loss: meanOf(losses.sub(sft)).div(beta) }),
      ...bco?.state,
    },
  };
};

const llamafactoryKto: Formula = (x, args) => {
  const beta = option<number>(args, 'pref_beta', 0.1);
  const sums = rowSums(x);
  const estimate = klEstimate(x);
  const losses = ktoLosses(
    x,
    sums.z.sub(estimate).mul(beta),
    option<number>(args, 'kto_chosen_weight', 1),
    option<number>(args, 'kto_rejected_weight', 1),
  );
  const chosen = labelled(x, 1);
  const share = x.rows.length / (chosen.length || 1);
  const averages = averaged(x, sums.policy).gather(chosen.filter((row) => x.counts[row]! > 0));
  const sft = meanOf(averages).mul(-share);
  const coefficient = option<number>(args, 'pref_ftx', 0);
  const loss = meanOverRows(x, losses);
  return {
    loss: coefficient === 0 ? loss : loss.add(sft.mul(coefficient)),
    metrics: { ...classSums(x, sums.z.mul(beta), sums.policy), kl: estimate },
  };
};

const swiftDpo: Formula = (x, args) => {
  const beta = option<number>(args, 'beta', 0.1);
  const types = typesOf(args);
  const sums = { ...rowSums(x, lengthWeights(x, orNull(args, 'ld_alpha', null)), ONES(x)) };
  const given = option<string>(args, 'f_divergence_type', 'reverse_kl');
  const f = divergence(
    given === 'forward_kl' ? 'reverse_kl' : given,
    1 - option<number>(args, 'f_alpha_divergence_coef', 0.5),
  );
  const epsilon = option<number>(args, 'label_smoothing', 0) || (types.includes('exo_pair') ? 1e-3 : 0);
  const tau = option<number>(args, 'discopop_tau', 0.05);
  const free = option(args, 'reference_free', false) ? sums.policy : sums.z;
  const logits = (perRow: Variable) => {
    const { chosen, rejected } = sidesOf(x, perRow);
    return f(chosen).sub(f(rejected));
  };
  const full = sidesOf(x, sums.z);
  const bco = types.includes('bco_pair') ? shifted(x, args, sums.z.mul(beta)) : undefined;
  const of = (type: string, z: Sides) => DPO_TYPES[type]!({ x, sums, z, score: z, beta, epsilon, tau });
  const u = () => logits(free).mul(beta);
  const losses: Record<string, () => Variable> = {
    sigmoid: () => smoothed(u(), epsilon),
    hinge: () => hinge(u()),
    ipo: () => squaredTo(logits(averaged(x, free)), 1 / (2 * beta)),
    exo_pair: () => exo(u(), epsilon),
    robust: () => robust(u(), epsilon),
    bco_pair: () => bco!.losses,
    aot_pair: () => of('aot_unpaired', full),
    apo_zero: () => of('apo_zero', sidesOf(x, free)),
    apo_down: () => of('apo_down', sidesOf(x, free)),
  };
  const weights = orNull<number[]>(args, 'loss_weights', null);
  const total = types
    .map((type, i) => (losses[type]?.() ?? of(type, full)).mul(weights?.[i] ?? 1))
    .reduce((sum, each) => sum.add(each));
  const means = sidesOf(x, averaged(x, sums.z));
  const rewards = types
    .map((type, i) => times(type === 'ipo' ? means : full, beta * (weights?.[i] ?? 1)))
    .reduce((a, b) => ({ chosen: a.chosen.add(b.chosen), rejected: a.rejected.add(b.rejected) }));
  const alpha = orNull<number>(args, 'rpo_alpha', null);
  const likelihood = nll(x, isChosenRow);
  const policyMeans = sidesOf(x, averaged(x, sums.policy));
  return {
    loss: alpha === null ? meanOf(total) : meanOf(total).add(likelihood.mul(alpha)),
    metrics: {
      ...rewardMetrics(rewards),
      ...logpsMetrics(sidesOf(x, sums.policy)),
      ...(types.includes('ipo') && {
        'logps_mean/chosen': meanOf(policyMeans.chosen),
        'logps_mean/rejected': meanOf(policyMeans.rejected),
      }),
      ...((alpha !== null || types.includes('sft')) && { nll_loss: likelihood }),
      ...bco?.state,
    },
  };
};
const ONES = (x: Tokens): Variable => x.tape.leaf(x.index.map(() => 1));

export const preferenceFormulas: Record<string, Formula> = {
  ...trlPreference,
  'oat/dpo': oatDpo,
  'oat/simpo': oatSimpo,
  'oat/bnf': oatBnf,
  'openrlhf/dpo': openrlhfDpo,
  'openrlhf/kto': openrlhfKto,
  'openrlhf/vanilla_kto': vanillaKto,
  'roll/dpo': rollDpo,
  'nemo/dpo': nemoDpo,
  'areal/dpo': arealDpo,
  'tinker/dpo': tinkerDpo,
  'openinstruct/dpo': openinstructDpo,
  'llamafactory/dpo': llamafactoryDpo,
  'llamafactory/kto': llamafactoryKto,
  'swift/dpo': swiftDpo,
};
