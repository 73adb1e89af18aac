"""Preference losses in eager PyTorch, with the frameworks' default arguments.

Rows alternate: chosen, rejected, chosen, …. The losses of KTO and BCO read single rows and their labels instead. Like the
frameworks, this file computes a row's log-ratio as the difference of two sums.
"""

import torch
import torch.nn.functional as F

from torch_batch import row_sum


def per_token(sums, mask):
    return sums / mask.sum(-1).clamp(min=1)


def pair(values):
    return values[0::2], values[1::2]


def rows_of(b):
    """Returns the log-probabilities of rows, and their log-ratios to the reference."""
    policy = row_sum(b.logprob, b.mask)
    return policy, policy - row_sum(b.ref_logprob, b.mask)


def sigmoid_loss(margin, label_smoothing=0.0):
    losses = -F.logsigmoid(margin) * (1.0 - label_smoothing)
    return losses if label_smoothing == 0.0 else losses - F.logsigmoid(-margin) * label_smoothing


def metrics_of(values, names, **others):
    """Returns some metrics of both sides' values. The keys of `names` are the names that a loss gives them."""
    chosen, rejected = pair(values.detach())
    metrics = {
        "chosen": chosen.mean,
        "rejected": rejected.mean,
        "accuracy": lambda: (chosen > rejected).to(chosen.dtype).mean(),
        "margin": lambda: (chosen - rejected).mean(),
    }
    return {**{name: metrics[what]() for name, what in names.items()}, **others}


REWARDS = {
    "rewards/chosen": "chosen",
    "rewards/rejected": "rejected",
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
}
LOGPS = {"logps/chosen": "chosen", "logps/rejected": "rejected"}


def trl_metrics(values, policy, beta, **others):
    """Returns the metrics of TRL's losses of pairs."""
    return {**metrics_of(beta * values, REWARDS), **metrics_of(policy, LOGPS), **others}


def trl_dpo(b, beta=0.1):
    """The loss of TRL, of ms-swift and of LLaMA-Factory."""
    policy, log_ratio = rows_of(b)
    chosen, rejected = pair(log_ratio)
    return sigmoid_loss(beta * (chosen - rejected)).mean(), trl_metrics(log_ratio, policy, beta)


def nll_of_chosen(logprob, mask):
    """Returns the mean of −logprob over the chosen rows' tokens."""
    mask = mask[0::2]
    return (-logprob[0::2] * mask).sum() / mask.sum().clamp(min=1)


def cpo(b, beta=0.1, cpo_alpha=1.0):
    policy = row_sum(b.logprob, b.mask)
    chosen, rejected = pair(policy)
    nll = nll_of_chosen(b.logprob, b.mask)
    loss = sigmoid_loss(beta * (chosen - rejected)).mean() + cpo_alpha * nll
    return loss, trl_metrics(policy, policy, beta, nll_loss=nll.detach())


def orpo(b, beta=0.1):
    mean = per_token(row_sum(b.logprob, b.mask), b.mask)
    chosen, rejected = pair(mean)
    log_odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    ratio = F.logsigmoid(log_odds)
    nll = nll_of_chosen(b.logprob, b.attention_mask)
    return nll - beta * ratio.mean(), trl_metrics(
        mean,
        mean,
        beta,
        nll_loss=nll.detach(),
        log_odds_ratio=ratio.detach().mean(),
        log_odds_chosen=log_odds.detach().mean(),
    )


def online_dpo(b, beta=0.1):
    policy, log_ratio = rows_of(b)
    first, second = pair(b.rewards)
    swap = (first < second).repeat_interleave(2)

    def ordered(values):
        return torch.where(swap, values.reshape(-1, 2).flip(-1).flatten(), values)

    log_ratio, scores = ordered(log_ratio), ordered(b.rewards)
    chosen, rejected = pair(log_ratio)
    better, worse = pair(scores)
    metrics = trl_metrics(log_ratio, ordered(policy), beta)
    return sigmoid_loss(beta * (chosen - rejected)).mean(), {
        **metrics,
        "objective/scores": b.rewards.mean(),
        "objective/scores_margin": (better - worse).mean(),
    }


def tpo(b, beta=0.01, tpo_alpha=1.0):
    """The loss of batches without reference answers, which need tpo_alpha = 0."""
    if tpo_alpha != 0:
        raise ValueError("tpo_alpha: expected 0")
    policy = row_sum(b.logprob, b.mask)
    chosen, rejected = pair(policy)
    return sigmoid_loss(beta * (chosen - rejected)).mean(), trl_metrics(policy, policy, beta)


def xpo(b, beta=0.1, alpha=1e-5):
    policy, log_ratio = rows_of(b)
    own, reference = pair(log_ratio)
    chosen = b.chosen > 0
    dpo = sigmoid_loss(beta * torch.where(chosen, own - reference, reference - own)).mean()
    optimism = alpha * policy[1::2].mean()
    return dpo + optimism, {"loss/dpo": dpo.detach(), "loss/xpo": optimism.detach()}


def kto_losses(b, log_ratio, beta, desirable_weight=1.0, undesirable_weight=1.0):
    """Returns the loss of each row."""
    ahead = beta * (log_ratio - b.kl_estimate)
    return torch.where(
        b.label > 0,
        desirable_weight * (1.0 - torch.sigmoid(ahead)),
        undesirable_weight * (1.0 - torch.sigmoid(-ahead)),
    )


def sums_by_label(values, label):
    """Returns the sum over the desirable rows, and the sum over the others."""
    values, desirable = values.detach(), label > 0
    return (values * desirable).sum(), (values * ~desirable).sum()


def trl_kto(b, beta=0.1):
    policy, log_ratio = rows_of(b)
    desirable, others = sums_by_label(torch.ones_like(policy), b.label)
    chosen, rejected = sums_by_label(beta * log_ratio, b.label)
    chosen_logps, rejected_logps = sums_by_label(policy, b.label)
    return kto_losses(b, log_ratio, beta).mean(), {
        "kl": b.kl_estimate.mean(),
        "rewards/chosen": chosen / desirable,
        "logps/chosen": chosen_logps / desirable,
        "rewards/rejected": rejected / others,
        "logps/rejected": rejected_logps / others,
        "rewards/margins": chosen / desirable - rejected / others,
    }


def sum_metrics(b, policy, rewards):
    sums = {"rewards/{}_sum": rewards, "logps/{}_sum": policy, "count/{}": torch.ones_like(policy)}
    return {
        name.format(side): total
        for name, values in sums.items()
        for side, total in zip(("chosen", "rejected"), sums_by_label(values, b.label))
    }


def bco(b, beta=0.1):
    policy, log_ratio = rows_of(b)
    rewards = beta * log_ratio
    # In the first call, the running mean is the mean of its rows.
    delta = rewards.detach().mean()
    losses = torch.where(b.label > 0, -F.logsigmoid(rewards - delta), -F.logsigmoid(delta - rewards))
    return losses.mean(), {"delta": delta, **sum_metrics(b, policy, rewards)}


def llamafactory_kto(b, pref_beta=0.1):
    policy, log_ratio = rows_of(b)
    loss = kto_losses(b, log_ratio, pref_beta).mean()
    return loss, {**sum_metrics(b, policy, pref_beta * log_ratio), "kl": b.kl_estimate.mean()}


def openrlhf_kto(b, beta=0.1):
    _, log_ratio = rows_of(b)
    loss = kto_losses(b, log_ratio, beta).mean()
    desirable, others = sums_by_label(torch.ones_like(log_ratio), b.label)
    chosen, rejected = sums_by_label(beta * log_ratio, b.label)
    return loss, {
        "kto_loss": loss.detach(),
        "chosen_reward": chosen / desirable.clamp(min=1),
        "reject_reward": rejected / others.clamp(min=1),
        "kl": b.kl_estimate.mean(),
    }


def vanilla_kto(b, beta=0.1):
    _, log_ratio = rows_of(b)
    chosen, rejected = pair(log_ratio)
    kl_of_chosen, kl_of_rejected = chosen.mean().clamp(min=0), rejected.mean().clamp(min=0)
    ahead = torch.cat((chosen - kl_of_rejected, kl_of_chosen - rejected))
    names = {"chosen_reward": "chosen", "reject_reward": "rejected"}
    return (1.0 - torch.sigmoid(beta * ahead)).mean(), metrics_of(beta * log_ratio, names)


OAT = {
    "acc_mean": "accuracy",
    "chosen_reward": "chosen",
    "rejected_reward": "rejected",
    "reward_margin": "margin",
}


def oat_dpo(b, beta=0.1, label_smoothing=0.0):
    _, log_ratio = rows_of(b)
    chosen, rejected = pair(log_ratio)
    loss = (sigmoid_loss(beta * (chosen - rejected), label_smoothing) * b.sample_mask[0::2]).mean()
    return loss, metrics_of(beta * log_ratio, OAT, loss_mean=loss.detach())


def oat_simpo(b, beta=0.1, gamma_beta_ratio=0.5):
    mean = per_token(row_sum(b.logprob, b.mask), b.mask)
    chosen, rejected = pair(mean)
    loss = (sigmoid_loss(beta * (chosen - rejected - gamma_beta_ratio)) * b.sample_mask[0::2]).mean()
    return loss, metrics_of(beta * mean, OAT, loss_mean=loss.detach())


def oat_bnf(b):
    probability = b.logprob.detach().exp()
    target = (probability / (b.ref_logprob.exp() + 1e-6)).clamp(max=1.0)
    others = (1.0 - target + 1e-6) / (1.0 - probability + 1e-6)
    length = b.mask.sum(-1).min().clamp(min=1)
    chosen, rejected = pair(row_sum(target * b.logprob + others * b.entropy_other, b.mask) / length)
    loss = ((rejected - chosen) * b.sample_mask[0::2].to(chosen.dtype).mean()).mean()
    _, log_ratio = rows_of(b)
    return loss, metrics_of(log_ratio, OAT, loss_mean=loss.detach())


def nemo_dpo(b, reference_policy_kl_penalty=0.05):
    _, log_ratio = rows_of(b)
    mask = b.sample_mask.to(log_ratio.dtype)
    valid = mask.sum() / 2
    over = lambda values, mask: (values * mask).sum() / (valid + 1e-8)
    chosen, rejected = pair(log_ratio)
    loss = over(sigmoid_loss(reference_policy_kl_penalty * (chosen - rejected)), mask[0::2])
    chosen, rejected = chosen.detach(), rejected.detach()
    return loss, {
        "loss": loss.detach(),
        "sft_loss": torch.zeros_like(valid),
        "preference_loss": loss.detach(),
        "accuracy": over(chosen > rejected, mask[0::2]),
        "rewards_chosen_mean": over(chosen, mask[0::2]),
        "rewards_rejected_mean": over(rejected, mask[1::2]),
        "num_valid_samples": valid,
    }


def plain_dpo(names, loss_name):
    """Makes a DPO loss that has no sample mask and no further terms."""

    def dpo(b, beta=0.1, label_smoothing=0.0):
        _, log_ratio = rows_of(b)
        chosen, rejected = pair(log_ratio)
        loss = sigmoid_loss(beta * (chosen - rejected), label_smoothing).mean()
        return loss, {loss_name: loss.detach(), **metrics_of(beta * log_ratio, names)}

    return dpo


def openinstruct_dpo(b, beta=5.0):
    sums, log_ratio = rows_of(b)
    policy, log_ratio = per_token(sums, b.mask), per_token(log_ratio, b.mask)
    chosen, rejected = pair(log_ratio)
    loss = sigmoid_loss(beta * (chosen - rejected)).mean()
    return loss, {
        "train_loss": loss.detach(),
        **metrics_of(policy, LOGPS),
        **metrics_of(beta * log_ratio, OPENINSTRUCT),
        "rewards/average": beta * (chosen + rejected).detach().mean() / 2,
    }


OPENINSTRUCT = {f"rewards/{name}": name for name in ("chosen", "rejected", "accuracy", "margin")}
SHORT = {"acc": "accuracy", "chosen_reward": "chosen", "reject_reward": "rejected"}
TINKER = {"chosen_reward": "chosen", "rejected_reward": "rejected", "accuracy": "accuracy", "margin": "margin"}
AREAL = {
    "chosen_reward": "chosen",
    "rejected_reward": "rejected",
    "reward_accuracy": "accuracy",
    "reward_margin": "margin",
}

PREFERENCE = {
    "trl/dpo": trl_dpo,
    "trl/cpo": cpo,
    "trl/orpo": orpo,
    "trl/tpo": tpo,
    "trl/online_dpo": online_dpo,
    "trl/xpo": xpo,
    "trl/kto": trl_kto,
    "trl/bco": bco,
    "oat/dpo": oat_dpo,
    "oat/simpo": oat_simpo,
    "oat/bnf": oat_bnf,
    "nemo/dpo": nemo_dpo,
    "areal/dpo": plain_dpo(AREAL, "loss"),
    "tinker/dpo": plain_dpo(TINKER, "dpo_loss"),
    "openinstruct/dpo": openinstruct_dpo,
    "openrlhf/dpo": plain_dpo(SHORT, "loss"),
    "roll/dpo": plain_dpo({f"actor/{name}": what for name, what in SHORT.items()}, "actor/loss"),
    "openrlhf/kto": openrlhf_kto,
    "openrlhf/vanilla_kto": vanilla_kto,
    "llamafactory/dpo": trl_dpo,
    "llamafactory/kto": llamafactory_kto,
    "swift/dpo": trl_dpo,
}
