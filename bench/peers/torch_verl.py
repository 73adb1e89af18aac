"""verl's policy losses in eager PyTorch, with verl's default arguments and without a rollout correction.

clip_cov and kl_cov read the number of tokens back to the host, and gvpo the number of groups.
"""

import math

import torch
import torch.nn.functional as F

from torch_batch import (
    aggregate,
    log_ratio_of,
    masked_mean,
    row_mean,
    row_sum,
    sum_by_group,
    surrogate,
    token_metrics,
)
from torch_losses import ppo


def bounded(log_ratio):
    return log_ratio.clamp(-20.0, 20.0)


def outcome(loss, metrics):
    """Returns the loss and its metrics. verl's worker adds the loss to the metrics."""
    return loss, {**metrics, "pg_loss": loss.detach()}


def mean_of_rows(losses, mask):
    """Averages over each row's tokens, and then over the rows that have tokens."""
    return aggregate(losses, mask, "seq-mean-token-mean", rows=(mask.sum(-1) > 0).sum())


def vanilla(b, clip_ratio=0.2, clip_ratio_c=3.0):
    return ppo(b, clip_range=clip_ratio, clip_ratio_c=clip_ratio_c)


def dppo(b, kept, clip_ratio_c):
    log_ratio = bounded(log_ratio_of(b)).detach()
    ratio = log_ratio.exp()
    weight = ratio.clamp(max=clip_ratio_c) * kept
    metrics = token_metrics(
        b, pg_clipfrac=~kept, pg_clipfrac_lower=(ratio > clip_ratio_c) & kept, ppo_kl=-log_ratio
    )
    return outcome(masked_mean(-b.advantages * weight * b.logprob, b.mask), metrics)


def dppo_tv(b, clip_ratio=0.2, clip_ratio_c=3.0):
    rise = b.logprob.detach().exp() - b.old_logprob.exp()
    return dppo(b, torch.where(b.advantages > 0, rise <= clip_ratio, rise >= -clip_ratio), clip_ratio_c)


def dppo_kl(b, clip_ratio=0.2, clip_ratio_c=3.0):
    logprob, old = b.logprob.detach(), b.old_logprob
    p, q = logprob.exp(), old.exp()
    kl = q * (old - logprob) + (1.0 - q) * ((1.0 - q + 1e-8) / (1.0 - p + 1e-8)).log()
    closer = torch.where(b.advantages > 0, p <= q, p >= q)
    return dppo(b, (kl <= clip_ratio) | closer, clip_ratio_c)


def gpg(b):
    return outcome(masked_mean(-b.advantages * b.logprob, b.mask), {})


def dro(b, dro_beta):
    log_ratio = log_ratio_of(b)
    losses = -b.advantages * b.logprob + dro_beta / 2.0 * log_ratio.square()
    return outcome(masked_mean(losses, b.mask), token_metrics(b, ppo_kl=-log_ratio))


def covariance(b):
    """Returns how much each token adds to the covariance of the advantages and the log-probabilities."""
    logprob = b.logprob.detach()
    return (b.advantages - masked_mean(b.advantages, b.mask)) * (logprob - masked_mean(logprob, b.mask))


def share_of_tokens(b, share):
    return max(int(share * float(b.mask.sum())), 1)


def marked(like, tokens):
    """Returns 1 at these positions among all tokens, and 0 elsewhere."""
    return like.new_zeros(like.numel()).index_fill(0, tokens, 1.0).reshape(like.shape)


def clip_cov(b, clip_ratio=0.2, clip_cov_ratio=2e-4, clip_cov_lb=1.0, clip_cov_ub=5.0):
    log_ratio = log_ratio_of(b)
    losses, clipped = surrogate(b.advantages, log_ratio.exp(), 1.0 - clip_ratio, 1.0 + clip_ratio)
    cov = covariance(b)
    candidates = ((b.mask > 0) & ~clipped & (cov > clip_cov_lb) & (cov < clip_cov_ub)).flatten().nonzero()[:, 0]
    # verl takes the first ones of a random permutation. Random keys give the same choice as in this package.
    order = b.clip_cov_keys.flatten()[candidates].argsort()
    chosen = marked(cov, candidates[order[: share_of_tokens(b, clip_cov_ratio)]])
    loss = masked_mean(losses * (1.0 - chosen), b.mask)
    return outcome(loss, token_metrics(b, pg_clipfrac=chosen, ppo_kl=-log_ratio))


def kl_cov(b, kl_cov_ratio=2e-4, ppo_kl_coef=0.1):
    log_ratio = log_ratio_of(b)
    distance = log_ratio.abs()
    cov = torch.where(b.mask > 0, covariance(b), -math.inf)
    largest = marked(cov, cov.flatten().topk(share_of_tokens(b, kl_cov_ratio)).indices)
    losses = -b.advantages * log_ratio.exp() + ppo_kl_coef * largest * distance
    return outcome(masked_mean(losses, b.mask), token_metrics(b, ppo_kl=distance))


def geo_mean(b, clip_ratio=0.2):
    log_ratio = log_ratio_of(b)
    sign = b.advantages.sign()
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-clip_ratio, clip_ratio))
    loss = (-row_mean(b.advantages, b.mask) * row_mean(pessimistic, b.mask).exp()).mean()
    outside = log_ratio.abs() > clip_ratio
    metrics = token_metrics(
        b,
        pg_clipfrac=outside & (b.advantages > 0),
        pg_clipfrac_lower=outside & (b.advantages < 0),
        ppo_kl=-log_ratio,
    )
    return outcome(loss, metrics)


def gspo(b, clip_ratio=0.2):
    log_ratio = log_ratio_of(b)
    mean = row_mean(log_ratio, b.mask).detach()
    ratio = (b.logprob - b.logprob.detach() + mean[:, None]).clamp(max=10.0).exp()
    losses, clipped = surrogate(b.advantages, ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
    loss = mean_of_rows(losses, b.mask)
    metrics = token_metrics(b, pg_clipfrac=clipped, ppo_kl=-log_ratio)
    return outcome(loss, {**metrics, "pg_clipfrac_lower": torch.zeros_like(loss)})


def sapo(b, tau_pos=1.0, tau_neg=1.05):
    log_ratio = bounded(log_ratio_of(b))
    tau = torch.where(b.advantages > 0, tau_pos, tau_neg).to(log_ratio.dtype)
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * 4.0 / tau
    loss = mean_of_rows(-b.advantages * gate, b.mask)
    none = torch.zeros_like(loss)
    metrics = token_metrics(b, ppo_kl=-log_ratio)
    return outcome(loss, {**metrics, "pg_clipfrac": none, "pg_clipfrac_lower": none})


def cispo(b, clip_ratio=0.2):
    log_ratio = bounded(log_ratio_of(b)).detach()
    ratio = log_ratio.exp()
    weight = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    loss = masked_mean(-b.advantages * weight * b.logprob, b.mask)
    metrics = token_metrics(b, pg_clipfrac=weight != ratio, ppo_kl=-log_ratio)
    return outcome(loss, {**metrics, "pg_clipfrac_lower": torch.zeros_like(loss)})


def bypass_mode(b, clip_ratio=0.2, clip_ratio_c=3.0):
    loss, metrics = ppo(b, clip_range=clip_ratio, clip_ratio_c=clip_ratio_c)
    return loss, {**metrics, **off_policy_metrics(b.logprob.detach(), b.old_logprob, b.mask)}


def off_policy_metrics(training, rollout, mask):
    """Compares the policy that is trained with the one that the inference engine reported."""
    log_ratio = training - rollout
    training_log, rollout_log = -row_mean(training, mask), -row_mean(rollout, mask)
    difference = training_log - rollout_log
    metrics = {
        "kl": masked_mean(-log_ratio, mask),
        "k3_kl": masked_mean(log_ratio.exp() - log_ratio - 1.0, mask),
        "chi2_token": masked_mean((2.0 * bounded(log_ratio)).exp(), mask) - 1.0,
        "chi2_seq": (2.0 * bounded(row_sum(log_ratio, mask))).exp().mean() - 1.0,
        "training_ppl": training_log.exp().mean(),
        "training_log_ppl": training_log.mean(),
        "rollout_ppl": rollout_log.exp().mean(),
        "rollout_log_ppl": rollout_log.mean(),
        "ppl_ratio": difference.exp().mean(),
        "log_ppl_diff": difference.mean(),
        "log_ppl_abs_diff": difference.abs().mean(),
        "log_ppl_diff_max": difference.max(),
        "log_ppl_diff_min": difference.min(),
    }
    return {f"rollout_corr/{name}": value for name, value in metrics.items()}


def distillation(b, loss_max_clamp=10.0):
    delta = bounded(b.teacher_logprob - b.logprob)
    estimate = (delta.exp() - 1.0 - delta).clamp(-10.0, 10.0)
    loss = masked_mean(estimate.clamp(-loss_max_clamp, loss_max_clamp), b.mask)
    values = estimate.detach()
    return loss, {
        "distillation/abs_loss": masked_mean(values.abs(), b.mask),
        "distillation/loss_min": torch.where(b.mask > 0, values, math.inf).min(),
        "distillation/loss_max": torch.where(b.mask > 0, values, -math.inf).max(),
        "distillation/loss": loss.detach(),
    }


def flowrl(b, flowrl_beta_coef=15.0):
    log_ratio = log_ratio_of(b)
    reward = flowrl_beta_coef * row_mean(b.advantages, b.mask)
    error = b.log_z + row_mean(b.logprob, b.mask) - reward - row_mean(b.ref_logprob, b.mask)
    weight = row_sum(log_ratio, b.mask).detach().exp().clamp(max=10.0)
    loss = (weight * error.square()).mean()
    metrics = token_metrics(
        b,
        log_prob=b.logprob,
        old_log_prob=b.old_logprob,
        ref_log_prob=b.ref_logprob,
        log_reward=b.advantages,
        ppo_kl=-log_ratio,
        ref_kl=b.ref_logprob - b.logprob,
    )
    of_rows = {"log_z": b.log_z.mean(), "importance_weight": weight.mean(), "final_loss": loss.detach()}
    return loss, {**metrics, **of_rows}


def self_play_sppo(b, sppo_eta=1.0):
    log_ratio = row_sum(log_ratio_of(b), b.mask)
    preference = sppo_eta * b.rewards
    filled = b.mask.sum(-1) > 0
    loss = ((log_ratio - preference).square() * filled).sum() / (filled.sum() + 1e-8)
    return outcome(loss, {"log_ratio_mean": log_ratio.detach().mean(), "preference_mean": preference.mean()})


def gvpo(b, n, gvpo_beta=0.1):
    reward = gvpo_beta * row_sum(log_ratio_of(b), b.mask)
    groups, group = b.group_ids.unique(return_inverse=True)
    mean = sum_by_group(reward.detach(), group, len(groups)) / n
    error = reward - mean[group] - row_mean(b.advantages, b.mask)
    return outcome(error.square().sum() / 2.0 / (n - 1), {})


def online_dpo(b, beta=0.1, label_smoothing=0.0):
    scores = row_sum(b.logprob - b.ref_logprob, b.mask)
    margin = beta * (scores[0::2] - scores[1::2])
    losses = -F.logsigmoid(margin) * (1.0 - label_smoothing) - F.logsigmoid(-margin) * label_smoothing
    loss = losses.mean()
    return loss, {"dpo_loss": loss.detach()}


VERL = {
    f"verl/{function.__name__}": function
    for function in (
        *(vanilla, dppo_tv, dppo_kl, gpg, dro, clip_cov, kl_cov, geo_mean, gspo, sapo, cispo, bypass_mode),
        *(distillation, flowrl, self_play_sppo, gvpo, online_dpo),
    )
}
