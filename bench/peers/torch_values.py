"""The losses of values and of reward models in eager PyTorch, with the frameworks' default arguments.

The metrics that the frameworks compute for several micro-batches together are computed for the batch.
"""

import torch
import torch.nn.functional as F

from torch_batch import masked_mean, row_mean, row_sum, sum_by_group


def clipped(b, limit, loss=torch.square):
    """Returns the loss of each token, and where clipping raised it."""
    plain = loss(b.values - b.returns)
    if limit is None:
        return plain, torch.zeros_like(plain)
    near = torch.clamp(b.values, b.old_values - limit, b.old_values + limit)
    bounded = loss(near - b.returns)
    return torch.maximum(plain, bounded), bounded.detach() > plain.detach()


def mean(values, mask):
    return (values * mask).sum() / mask.sum().clamp(min=1)


def explained_by_samples(b, mask):
    def variance(x):
        spread = (x - (x * mask).sum() / mask.sum()).square()
        return (spread * mask).sum() / (mask.sum() - 1)

    return 1.0 - variance(b.returns - b.old_values) / (variance(b.returns) + 1e-5)


def verl(b, cliprange_value=0.5):
    losses, raised = clipped(b, cliprange_value)
    loss = 0.5 * (losses * b.mask).sum() / b.mask.sum()
    return loss, {
        "critic/vf_loss": loss.detach(),
        "critic/vf_clipfrac": masked_mean(raised, b.mask),
        "critic/vpred_mean": masked_mean(b.values.detach(), b.mask),
        "critic/vf_explained_var": explained_by_samples(b, b.mask),
    }


def trl(b, cliprange_value=0.2):
    losses, raised = clipped(b, cliprange_value)
    loss = 0.5 * mean(losses, b.mask)
    return loss, {"loss/value_avg": loss.detach(), "val/clipfrac_avg": mean(raised, b.mask)}


def openrlhf(b, value_clip=0.5):
    loss = 0.5 * mean(clipped(b, value_clip)[0], b.mask)
    return loss, {"critic_loss": loss.detach(), "values": mean(b.values.detach(), b.mask)}


def nemo(b):
    mask = b.mask * b.sample_mask[:, None]
    total = mask.sum() + 1e-8
    losses, raised = clipped(b, None)
    loss = 0.5 * (losses * mask).sum() / total
    values, residual = b.values.detach(), b.returns - b.values.detach()
    over = lambda x: (x * mask).sum() / total
    spread = lambda x: over(x.square()) - over(x).square()
    return loss, {
        "loss": loss.detach(),
        "vf_clipfrac": over(raised),
        "returns_mean": over(b.returns),
        "values_mean": over(values),
        "values_min": values.masked_fill(mask == 0, float("inf")).min(),
        "values_max": values.masked_fill(mask == 0, float("-inf")).max(),
        "returns_sq_mean": over(b.returns.square()),
        "residual_sq_mean": over(residual.square()),
        "num_valid_samples": torch.full_like(total, b.mask.shape[0]),
        "critic/explained_var": 1.0 - spread(residual) / spread(b.returns).clamp(min=1e-8),
    }


def mean_over_rows(values, mask):
    return (row_sum(values, mask) / mask.sum(-1).clamp(min=1)).mean()


def skyrl(b, value_clip=0.2):
    losses, raised = clipped(b, value_clip)
    loss = 0.5 * mean_over_rows(losses, b.mask)
    return loss, {
        "critic_loss": loss.detach(),
        "values_mean": mean(b.values.detach(), b.mask),
        "values_clipfrac": mean(raised, b.mask),
    }


def megatron(b, value_clip=0.2):
    """The loss of slime and of Miles."""
    losses, _ = clipped(b, value_clip)
    group = b.rollout_ids.long()
    tokens = sum_by_group(b.mask.sum(-1).to(losses.dtype), group, b.mask.shape[0])[group].clamp(min=1)
    over = lambda x: (row_sum(x, b.mask) / tokens).sum() / b.mask.shape[0]
    loss = over(losses)
    far = (b.values.detach() - b.old_values).abs() > value_clip
    return loss, {"value_loss": loss.detach(), "value_clipfrac": over(far)}


def areal(b, eps_clip=0.5):
    losses, raised = clipped(b, eps_clip)
    loss = 0.5 * mean(losses, b.mask)
    return loss, {
        "new_value": mean(b.values.detach(), b.mask),
        "old_value": mean(b.old_values, b.mask),
        "target_value": mean(b.returns, b.mask),
        "critic_loss": loss.detach(),
        "clip_ratio": mean(raised, b.mask),
    }


def roll(b):
    over = lambda x: row_mean(x, b.mask).mean()
    squares = over(clipped(b, None)[0])
    loss = 0.5 * squares
    return loss, {
        "critic/loss": loss.detach(),
        "critic/value": over(b.old_values),
        "critic/vpred": over(b.values.detach()),
        "critic/clipfrac": squares.detach(),
        "critic/error": squares.detach(),
    }


def huber(error, delta=10.0):
    size = error.abs()
    return torch.where(size < delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def rlinf(b, value_clip=0.2):
    loss = mean(clipped(b, value_clip, huber)[0], b.mask)
    spread = lambda x: ((x - mean(x, b.mask)).square() * b.mask).sum()
    return loss, {
        "critic/value_loss": loss.detach(),
        "critic/value_clip_ratio": torch.zeros_like(loss.detach()),
        "critic/explained_variance": 1.0 - spread(b.returns - b.values.detach()) / spread(b.returns),
    }


def easyr1(b, cliprange_value=0.5):
    losses, raised = clipped(b, cliprange_value)
    loss = 0.5 * masked_mean(losses, b.mask)
    return loss, {
        "critic/vf_loss": loss.detach(),
        "critic/vf_clipfrac": masked_mean(raised, b.mask),
        "critic/vpred_mean": masked_mean(b.values.detach(), b.mask),
        "critic/vf_explained_var": explained_by_samples(b, b.attention_mask.to(losses.dtype)),
    }


VALUE = {
    "verl/value": verl,
    "trl/value": trl,
    "openrlhf/value": openrlhf,
    "nemo/value": nemo,
    "skyrl/value": skyrl,
    "slime/value": megatron,
    "miles/value": megatron,
    "areal/value": areal,
    "roll/value": roll,
    "rlinf/value": rlinf,
    "easyr1/value": easyr1,
}


# Losses of reward models. Even rows are chosen, and the row after each is rejected.


def averaged(b, names, margin=None):
    """Returns the mean Bradley-Terry loss, with these names of its metrics."""
    chosen, rejected = b.rewards[0::2], b.rewards[1::2]
    difference = chosen - rejected
    loss = -F.logsigmoid(difference if margin is None else difference - margin).mean()
    chosen, rejected, difference = chosen.detach(), rejected.detach(), difference.detach()
    metrics = {
        "loss": lambda: loss.detach(),
        "accuracy": lambda: (difference > 0).float().mean(),
        "chosen": chosen.mean,
        "rejected": rejected.mean,
        "difference": difference.mean,
        "least": b.rewards.detach().min,
        "mean": b.rewards.detach().mean,
        "most": b.rewards.detach().max,
    }
    return loss, {name: metrics[what]() for name, what in names.items()}


def trl_reward(b):
    names = {
        "min_reward": "least",
        "mean_reward": "mean",
        "max_reward": "most",
        "accuracy": "accuracy",
        "margin": "difference",
    }
    return averaged(b, names, b.margin[0::2])


def swift_reward(b):
    names = {"chosen": "chosen", "rejected": "rejected", "accuracies": "accuracy", "margins": "difference"}
    return averaged(b, {f"rewards/{name}": what for name, what in names.items()}, b.margin[0::2])


OPENRLHF = {"loss": "loss", "acc": "accuracy", "chosen_reward": "chosen", "reject_reward": "rejected"}


def openrlhf_reward(b):
    return averaged(b, OPENRLHF, b.margin[0::2])


def openrlhf_logexp(b):
    difference = b.rewards[0::2] - b.rewards[1::2]
    return torch.log(1.0 + torch.exp(-difference)).mean(), averaged(b, OPENRLHF)[1]


def masked_pairs(b, mask, of_rejected, total):
    chosen, rejected = b.rewards[0::2], b.rewards[1::2]
    loss = (-F.logsigmoid(chosen - rejected) * mask).sum() / total
    chosen, rejected = chosen.detach(), rejected.detach()
    return loss, {
        "loss": loss.detach(),
        "accuracy": ((chosen > rejected) * mask).sum() / total,
        "chosen": (chosen * mask).sum() / total,
        "rejected": (rejected * of_rejected).sum() / total,
    }


def nemo_reward(b):
    mask = b.sample_mask.to(b.rewards.dtype)
    valid = mask.sum() / 2
    loss, metrics = masked_pairs(b, mask[0::2], mask[1::2], valid + 1e-8)
    return loss, {
        "loss": metrics["loss"],
        "accuracy": metrics["accuracy"],
        "rewards_chosen_mean": metrics["chosen"],
        "rewards_rejected_mean": metrics["rejected"],
        "num_valid_samples": valid,
    }


def areal_reward(b):
    mask = (b.sample_mask[0::2] * b.sample_mask[1::2]).to(b.rewards.dtype)
    loss, metrics = masked_pairs(b, mask, mask, mask.sum().clamp(min=1))
    return loss, {
        "correct_ratio": metrics["accuracy"],
        "pos_score": metrics["chosen"],
        "neg_score": metrics["rejected"],
        "loss": metrics["loss"],
    }


def llamafactory_reward(b):
    return averaged(b, {"accuracy": "accuracy"})


def openinstruct_reward(b):
    names = {
        "accuracy": "accuracy",
        "loss": "loss",
        "chosen_rewards": "chosen",
        "rejected_rewards": "rejected",
        "reward_margin": "difference",
    }
    return averaged(b, {f"train/rm/{name}": what for name, what in names.items()})


def oat_reward(b):
    chosen, rejected = b.rewards[0::2], b.rewards[1::2]
    loss = (-F.logsigmoid(chosen - rejected - b.margin[0::2]) * b.sample_mask[0::2]).mean()
    return loss, {
        "train/rm/loss_rew": loss.detach(),
        "train/rm/chosen_rewards": chosen.detach().mean(),
        "train/rm/rejected_rewards": rejected.detach().mean(),
    }


REWARD = {
    "trl/reward": trl_reward,
    "swift/reward": swift_reward,
    "openrlhf/reward": openrlhf_reward,
    "openrlhf/reward_logexp": openrlhf_logexp,
    "nemo/reward": nemo_reward,
    "llamafactory/reward": llamafactory_reward,
    "areal/reward": areal_reward,
    "openinstruct/reward": openinstruct_reward,
    "oat/reward": oat_reward,
}
