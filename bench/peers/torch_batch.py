"""The batch that PyTorch's losses read, and helpers that they share."""

import torch


class Batch:
    """The inputs of a loss: columns [B, T] and numbers per row [B], as attributes under Trinity-RFT's names.

    `mask` is [B, T], bool or float 0 and 1; `expert` is [B], bool; `step` is the trainer's step, an int.
    """

    def __init__(self, mask, expert, step, **columns):
        self.mask = mask
        self.expert = expert
        self.step = step
        self.columns = columns
        for name, column in columns.items():
            setattr(self, name, column)

    def under(self, mask):
        return Batch(mask, self.expert, self.step, **self.columns)


class WatchedBatch:
    """A batch that notes which of its inputs a loss reads."""

    def __init__(self, batch, read):
        self.batch = batch
        self.read = read

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.batch, name)

    def under(self, mask):
        return WatchedBatch(self.batch.under(mask), self.read)


def masked_mean(values, mask):
    return (values * mask).sum() / (mask.sum() + 1e-8)


def row_sum(values, mask):
    return (values * mask).sum(-1)


def row_mean(values, mask):
    return row_sum(values, mask) / (mask.sum(-1) + 1e-8)


def aggregate(values, mask, mode, rows=None):
    """Aggregates per-token values. Pass the number of rows that count as rows if the mask excludes whole rows."""
    if mode == "token-mean":
        return masked_mean(values, mask)
    sums = row_sum(values, mask)
    if mode == "seq-mean-token-sum-norm":
        return sums.sum() / (values.shape[-1] + 1e-8)
    if mode == "seq-mean-token-mean":
        sums = sums / (mask.sum(-1) + 1e-8)
    elif mode != "seq-mean-token-sum":
        raise ValueError(f"no aggregation named {mode}")
    return sums.mean() if rows is None else sums.sum() / rows.clamp(min=1)


def log_ratio_of(b):
    return b.logprob - b.old_logprob


def token_metrics(b, **values):
    """Averages each metric's per-token values over the unmasked tokens."""
    return {name: masked_mean(value.detach(), b.mask) for name, value in values.items()}


def surrogate(advantages, ratio, low, high):
    """Returns PPO's clipped surrogate per token, and where clipping raised it. The bounds are on the ratio."""
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(low, high)
    return torch.maximum(unclipped, clipped), clipped.detach() > unclipped.detach()


def sum_by_group(values, group, groups):
    """Sums values [B] over the rows of each group. `group` has the index of each row's group."""
    return values.new_zeros(groups).index_add(0, group, values)
