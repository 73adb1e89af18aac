// The arguments of TRL's DPO trainer: those with an effect on the loss, and the functions that they choose.
import type { ConfigKey, Framework } from './framework.js';

const KEYS: readonly ConfigKey[] = [
  {
    path: 'loss_type',
    shared: true,
    neutral: ['sigmoid', ['sigmoid']],
    effect: 'another loss of pairs than sigmoid',
  },
  { path: 'beta', default: 0.1, loss: 'beta', shared: true },
  {
    path: 'label_smoothing',
    neutral: [0],
    effect: 'label smoothing: TRL 0.24 smooths the labels of sigmoid, and TRL 1.10 does not',
    hint: "For smoothed labels, create the policy loss 'dpo' with label_smoothing",
  },
  { path: 'loss_weights', neutral: [null, [1]], effect: 'weights of losses' },
  { path: 'ld_alpha', neutral: [null, 1], effect: 'LD-DPO' },
  { path: 'f_divergence_type', neutral: ['reverse_kl'], effect: 'other divergences' },
  { path: 'use_weighting', neutral: [false], effect: 'WPO' },
  { path: 'rpo_alpha', neutral: [null], effect: 'the likelihood of chosen answers in the loss' },
  { path: 'reference_free', neutral: [false], effect: 'DPO without a reference policy' },
];

/** TRL's DPO trainer. */
export const TRL_DPO: Framework = {
  name: 'trl/dpo',
  title: "TRL's DPO trainer",
  release: '1.10.0.dev (commit f2cd577, July 2026)',
  keys: KEYS,
  closed: [],
  marks: ['precompute_ref_log_probs', 'f_alpha_divergence_coef', 'discopop_tau'],
  lossTypes: [
    'sigmoid',
    'hinge',
    'ipo',
    'exo_pair',
    'nca_pair',
    'robust',
    'bco_pair',
    'sppo_hard',
    'aot',
    'aot_unpaired',
    'aot_pair',
    'apo_zero',
    'apo_down',
    'discopop',
    'sft',
    'sigmoid_norm',
  ],
  bases: [],
  plan: () => ({ policyLoss: 'dpo' }),
};
