"""TRL's policy losses in eager PyTorch, with TRL's default arguments. Advantages are those of tokens."""

import math

import torch

from torch_batch import aggregate, log_ratio_of, masked_mean, row_mean, row_sum, token_metrics


def ratio_of(b, level):
    """Returns the ratio of each token, or that of its row: the geometric mean over the row's tokens."""
    log_ratio = log_ratio_of(b)
    if level == "token":
        return log_ratio.exp()
    mean = row_mean(log_ratio, b.mask)[:, None]
    if level == "sequence":
        return mean.exp()
    # The value is that of the row, and the gradient that of the token.
    return (b.logprob - b.logprob.detach() + mean.detach()).exp()


def clip(b, ratio, epsilon=0.2, epsilon_high=None):
    """Returns the clipped surrogate per token, and where the ratio was below and above the range."""
    low, high = 1.0 - epsilon, 1.0 + (epsilon if epsilon_high is None else epsilon_high)
    losses = -torch.minimum(ratio * b.advantages, ratio.clamp(low, high) * b.advantages)
    return losses, (ratio < low) & (b.advantages < 0), (ratio > high) & (b.advantages > 0)


def clip_metrics(b, low, high, by_row=False):
    """Returns the fractions of clipped tokens, or their means over all rows if the ratio is that of a row."""
    low_of_rows, high_of_rows = row_mean(low, b.mask), row_mean(high, b.mask)
    filled = b.mask.sum(-1) > 0
    if by_row:
        means = [low_of_rows.mean(), high_of_rows.mean(), row_mean(low | high, b.mask).mean()]
    else:
        means = [masked_mean(flags, b.mask) for flags in (low, high, low | high)]
    return {
        "clip_ratio/low_mean": means[0],
        "clip_ratio/high_mean": means[1],
        "clip_ratio/region_mean": means[2],
        "clip_ratio/low_min": low_of_rows.min() if by_row else torch.where(filled, low_of_rows, math.inf).min(),
        "clip_ratio/high_max": high_of_rows.max(),
    }


def with_entropy(b, loss, metrics):
    """Adds the metric that all losses of TRL's GRPO trainer report."""
    return loss, {**metrics, **token_metrics(b, entropy=b.entropy)}


def clipped(mode, level="token"):
    """Makes a loss of the GRPO trainer that clips the ratio. The mode says how tokens are aggregated."""

    def loss_of(b, epsilon=0.2, importance_sampling_level=level):
        losses, low, high = clip(b, ratio_of(b, importance_sampling_level), epsilon)
        metrics = clip_metrics(b, low, high, by_row=importance_sampling_level == "sequence")
        return with_entropy(b, aggregate(losses, b.mask, mode), metrics)

    return loss_of


def dr_grpo(b, epsilon=0.2, max_completion_length=512):
    losses, low, high = clip(b, ratio_of(b, "token"), epsilon)
    loss = aggregate(losses, b.mask, "seq-mean-token-sum") / max_completion_length
    return with_entropy(b, loss, clip_metrics(b, low, high))


def cispo(b, epsilon_high=0.2):
    ratio = log_ratio_of(b).detach().exp()
    loss = masked_mean(-b.advantages * ratio.clamp(max=epsilon_high) * b.logprob, b.mask)
    bounded = (ratio > epsilon_high) & (b.advantages > 0)
    return with_entropy(b, loss, token_metrics(b, cispo_clip_ratio=bounded))


def sapo(b, temperature_pos=1.0, temperature_neg=1.05):
    ratio = log_ratio_of(b).exp()
    temperature = torch.where(b.advantages > 0, temperature_pos, temperature_neg).to(ratio.dtype)
    gate = torch.sigmoid(temperature * (ratio - 1.0)) * 4.0 / temperature
    return with_entropy(b, aggregate(-b.advantages * gate, b.mask, "seq-mean-token-mean"), {})


def vespo(b, k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0):
    log_ratio = row_sum(log_ratio_of(b).detach().clamp(-20.0, 20.0), b.mask).clamp(math.log(1e-8), 20.0)[:, None]
    weight_of = lambda k, rate: (rate + k * log_ratio - rate * log_ratio.exp()).exp()
    weight = torch.where(b.advantages >= 0, weight_of(k_pos, lambda_pos), weight_of(k_neg, lambda_neg))
    loss = masked_mean(-b.advantages * weight * b.logprob, b.mask)
    return with_entropy(b, loss, {"vespo/phi_seq_mean": masked_mean(weight, b.mask)})


def gmpo(b, epsilon=0.4):
    log_ratio = log_ratio_of(b)
    limited = torch.where(b.advantages > 0, log_ratio.clamp(max=epsilon), log_ratio.clamp(min=-epsilon))
    loss = (-row_mean(b.advantages, b.mask) * row_mean(limited, b.mask).exp()).mean()
    low = (log_ratio < -epsilon) & (b.advantages < 0)
    high = (log_ratio > epsilon) & (b.advantages > 0)
    return with_entropy(b, loss, clip_metrics(b, low, high))


def async_grpo(b, epsilon=0.2):
    log_ratio = log_ratio_of(b)
    ratio = log_ratio.exp()
    losses, low, high = clip(b, ratio, epsilon)
    fractions = token_metrics(b, low=low, high=high, region=low | high)
    metrics = {
        "clip_ratio/low_mean": fractions["low"],
        "clip_ratio/high_mean": fractions["high"],
        "clip_ratio/region_mean": fractions["region"],
        # TRL takes these over processes, of which there is one.
        "clip_ratio/low_min": fractions["low"],
        "clip_ratio/high_max": fractions["high"],
        **token_metrics(b, ratio=ratio, kl=ratio - 1.0 - log_ratio),
    }
    return with_entropy(b, masked_mean(losses, b.mask), metrics)


def rloo(b, epsilon=0.2):
    ratio = row_sum(log_ratio_of(b), b.mask).exp()
    advantages = row_mean(b.advantages, b.mask)
    losses = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * advantages)
    low = ((ratio < 1.0 - epsilon) & (advantages < 0)).to(ratio.dtype)
    high = ((ratio > 1.0 + epsilon) & (advantages > 0)).to(ratio.dtype)
    return losses.mean(), {
        "clip_ratio/low_mean": low.mean(),
        "clip_ratio/high_mean": high.mean(),
        "clip_ratio/region_mean": (low + high).mean(),
        "clip_ratio/low_min": low.min(),
        "clip_ratio/high_max": high.max(),
    }


def a2po(b, beta2=1e-3):
    implicit = beta2 * row_sum(b.logprob - b.ref_logprob, b.mask)
    advantage = b.rewards - b.v_star
    loss = (implicit - advantage).square().mean()
    return loss, {"implicit_reward": implicit.detach().mean(), "advantage": advantage.mean()}


def nash_md(b, beta=0.1):
    log_ratio = (b.logprob - b.ref_logprob).detach()
    preference = (b.probability - 0.5)[:, None]
    losses = (beta * log_ratio - preference) * b.logprob
    return aggregate(losses, b.mask, "seq-mean-token-sum"), {
        "loss/score": row_sum(preference * b.logprob.detach(), b.mask).mean(),
        "loss/kl": row_sum(log_ratio, b.mask).mean(),
    }


def sdpo_sampled_token(b, distillation_is_clip=2.0):
    log_ratio = log_ratio_of(b).detach().clamp(-20.0, 20.0)
    weight = log_ratio.exp().clamp(max=distillation_is_clip)
    losses = (b.logprob - b.teacher_logprob).detach() * weight * b.logprob
    loss = aggregate(losses, b.mask, "seq-mean-token-mean")
    return loss, {"self_distillation/distillation_loss": masked_mean(losses.detach(), b.mask)}


def iw_opd(b, gamma=0.5, epsilon=1e-8):
    advantages = b.teacher_logprob - b.rollout_logprob
    size = advantages.abs() * b.mask
    before = size.cumsum(-1) - size
    weight = 1.0 + gamma * (1.0 - before / size.sum(-1, keepdim=True).clamp(min=epsilon))
    loss = masked_mean(-weight * advantages * b.logprob, b.mask)
    return loss, {
        "iw_opd/mean_advantage": masked_mean(weight * advantages, b.mask),
        "iw_opd/mean_abs_advantage": masked_mean(size, b.mask),
        "iw_opd/mean_weight": masked_mean(weight, b.mask),
        "iw_opd/min_weight": torch.where(b.mask > 0, weight, math.inf).min(),
        "iw_opd/max_weight": torch.where(b.mask > 0, weight, -math.inf).max(),
    }


FURTHER = (dr_grpo, cispo, sapo, vespo, gmpo, async_grpo, rloo, a2po, nash_md, sdpo_sampled_token, iw_opd)
TRL = {
    "trl/grpo": clipped("seq-mean-token-mean"),
    "trl/bnpo": clipped("token-mean"),
    "trl/dapo": clipped("token-mean"),
    "trl/luspo": clipped("seq-mean-token-sum", level="sequence"),
    "trl/gspo_token": clipped("seq-mean-token-mean"),
    **{f"trl/{function.__name__}": function for function in FURTHER},
}
