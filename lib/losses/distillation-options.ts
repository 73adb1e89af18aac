// What the statements of the distillation losses share.

/** The numerics of the divergences. */
export const NUMERICS = {
  range: 'any logits; a logit of −Infinity has probability 0',
  outside: 'a divergence is infinite where only the other distribution is 0',
};
/** The range and the help of the options that choose a divergence. */
export const BETA = {
  atLeast: 0,
  atMost: 1,
  typical: [0, 1],
  help: 'β: 0 is the forward KL divergence KL(q‖p) from the teacher q, and 1 the reverse one KL(p‖q)',
} as const;
/** The range and the help of the options that are a temperature of both logits. */
export const TEMPERATURE = {
  above: 0,
  typical: [0.5, 2],
  help: 'both logits are divided by this',
} as const;
/** The generalized Jensen-Shannon divergence in words. */
export const JSD = 'β·KL(q‖M) + (1−β)·KL(p‖M), M = (1−β)·p + β·q';
/** The inputs of a loss over the teacher's list. */
export const LIST = ['teacher_topk_ids', 'teacher_topk_logprobs', 'action_mask'] as const;
/** The help of the options that ask for a tail bucket. */
export const TAIL = 'whether all other tokens are one bucket; otherwise both are renormalized over the list';
