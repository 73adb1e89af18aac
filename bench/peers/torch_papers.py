"""Policy losses of papers in eager PyTorch, with their default arguments.

bapo and m2po_clip read sums of the batch back to the host, as their authors' code does. m2po, m2po_clip and real have
tensors whose shapes depend on the data.
"""

import math

import torch
import torch.nn.functional as F

from torch_batch import (
    log_ratio_of,
    masked_mean,
    row_mean,
    sum_by_group,
    surrogate,
    token_metrics,
)


def outcome(b, losses, metrics):
    """Averages the losses over all tokens, and adds the result to the metrics."""
    loss = masked_mean(losses, b.mask)
    return loss, {**metrics, "pg_loss": loss.detach()}


def limited(losses, advantages, cap):
    """Applies the dual clip: limits the losses of tokens with A < 0 to -A times `cap`. Returns also where it did so."""
    limit = -advantages * cap
    cut = (advantages < 0) & (losses.detach() > limit)
    return torch.where(cut, limit, losses), cut


def unit_ratio(logprob):
    """Returns 1, with the gradient of the log-probability."""
    return (logprob - logprob.detach()).exp()


def k3(log_ratio):
    return log_ratio.exp() - 1.0 - log_ratio


def corrected_ppo(b, clip_range_low=0.2, clip_range_high=0.28):
    log_ratio = log_ratio_of(b)
    losses, clipped = surrogate(b.advantages, log_ratio.exp(), 1.0 - clip_range_low, 1.0 + clip_range_high)
    metrics = token_metrics(b, pg_clipfrac=clipped, ppo_kl=-log_ratio)
    return outcome(b, losses, {**metrics, "reject_fraction": torch.zeros_like(metrics["ppo_kl"])})


def clipped_pg(b, ratio_clip=0.2, kl_penalty=0.01, kl_input_clamp=20.0, kl_output_clamp=10.0):
    ratio = log_ratio_of(b).exp()
    clipped = ratio.clamp(1.0 - ratio_clip, 1.0 + ratio_clip)
    losses = torch.maximum(-b.advantages * ratio, -b.advantages * clipped)
    estimate = k3((b.ref_logprob - b.logprob).clamp(-kl_input_clamp, kl_input_clamp))
    kl = masked_mean((unit_ratio(b.logprob) * estimate).clamp(-kl_output_clamp, kl_output_clamp), b.mask)
    loss = masked_mean(losses, b.mask) + kl_penalty * kl
    ends = lambda values: (
        torch.where(b.mask > 0, values.detach(), math.inf).min(),
        torch.where(b.mask > 0, values.detach(), -math.inf).max(),
    )
    (least, most), (clamped_least, clamped_most) = ends(ratio), ends(clipped)
    return loss, {
        "pg_loss": loss.detach(),
        "kl_penalty": kl.detach(),
        "probs_ratio_min": least,
        "probs_ratio_max": most,
        "probs_ratio_clamped_min": clamped_least,
        "probs_ratio_clamped_max": clamped_most,
        "positive_nll_loss": torch.zeros_like(kl),
        **token_metrics(b, probs_ratio=ratio, probs_ratio_clamped=clipped, **mismatch(b)),
    }


def mismatch(b):
    """Returns values per token that compare the policy, the old policy and the sampler."""
    old, rollout, logprob = b.old_logprob, b.rollout_logprob, b.logprob.detach()
    log_ratio = old - rollout
    middle = torch.logaddexp(old, rollout) - math.log(2.0)
    return {
        "token_mult_prob_error": log_ratio.abs().exp(),
        "gen_kl_error": k3(log_ratio),
        "policy_kl_error": k3(-log_ratio),
        "js_divergence_error": 0.5 * (k3(old - middle) + k3(rollout - middle)),
        "approx_entropy": -(logprob - rollout).exp() * logprob,
        "sampling_importance_ratio": torch.nan_to_num(log_ratio.exp(), nan=0.0, posinf=0.0, neginf=0.0),
    }


def decoupled_ppo(b, clip_range=0.2):
    log_ratio = b.logprob - b.prox_logprob
    ratio = log_ratio.exp()
    losses, clipped = surrogate(b.advantages, ratio, 1.0 - clip_range, 1.0 + clip_range)
    metrics = token_metrics(b, importance_weight=ratio, approx_kl=log_ratio, clip_ratio=clipped)
    return outcome(b, losses, {**metrics, "dual_clip_ratio": torch.zeros_like(metrics["approx_kl"])})


def m2po(b, clip_range=0.2, m2_threshold=0.04):
    squares = (b.old_logprob - b.prox_logprob).square()
    ordered = squares[b.mask > 0].sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    count = (means < m2_threshold).sum().clamp(min=1)
    kept = (squares <= ordered[count - 1]) * b.mask
    log_ratio = b.logprob - b.prox_logprob
    ratio = log_ratio.exp()
    losses, clipped = surrogate(b.advantages, ratio, 1.0 - clip_range, 1.0 + clip_range)
    loss = masked_mean(losses, kept)
    return loss, {
        "pg_loss": loss.detach(),
        "importance_weight": masked_mean(ratio.detach(), kept),
        "approx_kl": masked_mean(log_ratio.detach(), kept),
        "clip_ratio": masked_mean(clipped, kept),
        "dual_clip_ratio": torch.zeros_like(loss),
        "m2_masked_fraction": 1.0 - masked_mean(kept, b.mask),
    }


def m2po_clip(b, m2_budget=0.04, miniclip_low=0.3, miniclip_high=0.5):
    log_ratio = log_ratio_of(b)
    moved = (b.mask > 0) & (b.advantages * log_ratio.detach() > 0)
    squares = log_ratio.detach()[moved].square().sort().values
    low, high, before, after = within_budget(squares, m2_budget, miniclip_low, miniclip_high)
    losses, clipped = surrogate(b.advantages, log_ratio.exp(), 1.0 - low, 1.0 + high)
    of_batch = {"clip_low": low, "clip_high": high, "m2": before, "m2_after": after}
    return outcome(
        b,
        losses,
        {
            **token_metrics(b, pg_clipfrac=clipped, ppo_kl=-log_ratio),
            **{name: log_ratio.new_tensor(value) for name, value in of_batch.items()},
        },
    )


def within_budget(squares, budget, least_low, least_high):
    """Returns the ranges below and above 1, and the second moment before and after the clip.

    The squares are in ascending order. Those above a threshold are cut down to it, so that the mean is the budget.
    """
    count = len(squares)
    before = float(squares.mean()) if count else 0.0
    if before <= budget:
        return 1.0, 99999.0, before, before
    sums = squares.cumsum(0)
    larger = torch.arange(count - 1, -1, -1, device=squares.device)
    first = int((squares * larger + sums < budget * count).sum())
    if first == 0:
        return least_low, least_high, before, before
    square, total = float(squares[first - 1]), float(sums[first - 1])
    reach = math.sqrt(square)
    after = (square * (count - first) + total) / count
    return max(1.0 - math.exp(-reach), least_low), max(math.exp(reach) - 1.0, least_high), before, after


def rollout_is(b, clip_range_low=0.2, clip_range_high=0.28):
    ratio = (b.logprob - b.rollout_logprob).detach().clamp(-20.0, 20.0).exp()
    inside = (ratio > 1.0 - clip_range_low) & (ratio < 1.0 + clip_range_high)
    return outcome(b, -(ratio * inside) * b.advantages * b.logprob, token_metrics(b, pg_clipfrac=~inside))


def run_mean(values, mask):
    """Averages values over each run of adjacent unmasked tokens in a row."""
    kept = mask > 0
    starts = kept.clone()
    starts[:, 1:] &= ~kept[:, :-1]
    runs = starts.flatten().cumsum(0)
    sum_of_runs = lambda x: x.new_zeros(x.numel() + 1).scatter_add(0, runs, x.flatten())
    means = sum_of_runs(values * mask) / (sum_of_runs(mask.to(values.dtype)) + 1e-8)
    return means.gather(0, runs).reshape(values.shape)


def segment_ppo(b, clip_range_low=0.2, clip_range_high=0.2):
    ratio = run_mean(log_ratio_of(b), b.mask).exp()
    low, high = 1.0 - clip_range_low, 1.0 + clip_range_high
    losses, _ = surrogate(b.advantages, ratio, low, high)
    return outcome(b, losses, token_metrics(b, ratio_high_clipfrac=ratio > high, ratio_low_clipfrac=ratio < low))


def mean_of_rows(values, flags):
    """Averages values over each row's flagged tokens, and then over all rows. A row without such tokens counts as 0."""
    return ((values * flags).sum(-1) / flags.sum(-1).clamp(min=1)).mean()


def trust_region(b, advantages, dropped, kl_tau):
    """Returns the losses of tokens and the metrics that prime-rl's losses have in common."""
    log_ratio = log_ratio_of(b)
    losses = -advantages * log_ratio.exp() * ~dropped + kl_tau * log_ratio.square()
    divergence = k3(log_ratio.detach())
    return losses, {
        "masked_mismatch_kl": mean_of_rows(divergence, dropped * b.mask),
        "unmasked_mismatch_kl": mean_of_rows(divergence, ~dropped * b.mask),
        "is_masked": row_mean(dropped, b.mask).mean(),
    }


def probability_change(b):
    return b.logprob.detach().exp() - b.old_logprob.exp()


def prime_rl(b, mask_low=0.2, mask_high=0.2, adv_tau=1.0, kl_tau=1e-3):
    change = probability_change(b)
    positive, negative = b.advantages > 0, b.advantages < 0
    too_low, too_high = change < -mask_low, change > mask_high
    dropped = torch.where(positive, too_high, too_low)
    losses, metrics = trust_region(b, adv_tau * b.advantages, dropped, kl_tau)
    further = {
        "is_masked_low": row_mean(negative & too_low, b.mask).mean(),
        "is_masked_high": row_mean(positive & too_high, b.mask).mean(),
        "masked_advantage_positive": mean_of_rows(positive, dropped * b.mask),
        "masked_advantage_negative": mean_of_rows(negative, dropped * b.mask),
    }
    return outcome(b, losses, {**metrics, **further})


def prime_rl_ipo(b, ipo_threshold=0.1, adv_tau=1.0, kl_tau=1e-3):
    dropped = probability_change(b).abs() > ipo_threshold
    return outcome(b, *trust_region(b, adv_tau * b.advantages, dropped, kl_tau))


def ref_kl(b, mask_low=0.2, kl_tau=1e-3, coef=1.0):
    distance = (b.ref_logprob - b.logprob).detach()
    losses, metrics = trust_region(b, coef * distance, probability_change(b) < -mask_low, kl_tau)
    return outcome(b, losses, {**metrics, "ref_kl": row_mean(distance, b.mask).mean()})


def ce_gppo(b, clip_range=0.2, beta1=0.75, beta2=1.0, clip_ratio_c=10.0):
    log_ratio = log_ratio_of(b)
    ratio = log_ratio.exp()
    low, high = 1.0 - clip_range, 1.0 + clip_range
    below = (b.advantages < 0) & (ratio < low)
    above = (b.advantages > 0) & (ratio > high)
    unit = ratio / ratio.detach()
    kept = torch.where(below, beta1 * low * unit, torch.where(above, beta2 * high * unit, ratio))
    losses, cut = limited(-b.advantages * kept, b.advantages, clip_ratio_c)
    metrics = token_metrics(b, pg_clipfrac=below | above, pg_clipfrac_lower=cut, ppo_kl=-log_ratio)
    return outcome(b, losses, metrics)


def bapo(b, target=1.0, low=0.6, low_max=0.8, high=1.2, high_max=2.0, step=0.05, eps=1e-8, clip_ratio_c=3.0):
    log_ratio = log_ratio_of(b).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    balance_of = lambda low, high: balance(b.advantages * b.mask, ratio.detach(), low, high, eps)
    while balance_of(low, high) < target and low < low_max:
        low = min(low + step, low_max)
    while balance_of(low, high) < target and high < high_max:
        high = min(high + step, high_max)
    losses, clipped = surrogate(b.advantages, ratio, low, high)
    losses, cut = limited(losses, b.advantages, clip_ratio_c)
    of_batch = {"clip_low": low, "clip_high": high, "pos_neg_ratio": balance_of(low, high)}
    return outcome(
        b,
        losses,
        {
            **token_metrics(b, pg_clipfrac=clipped, pg_clipfrac_lower=cut, ppo_kl=-log_ratio),
            **{name: ratio.new_tensor(value) for name, value in of_batch.items()},
        },
    )


def balance(advantages, ratio, low, high, eps):
    """Returns the sum of the clipped A·r over positive tokens, divided by that over negative tokens."""
    terms = advantages * torch.where(advantages >= 0, ratio.clamp(max=high), ratio.clamp(min=low))
    return float(terms.clamp(min=0.0).sum() / ((-terms).clamp(min=0.0).sum() + eps))


def aspo(b, entropy_quantile=0.8, low_entropy_range=0.2, high_entropy_range=0.4, clip_ratio_c=3.0):
    ratio = log_ratio_of(b).clamp(-20.0, 20.0).exp()
    quantile = torch.where(b.mask > 0, b.entropy, math.nan).nanquantile(entropy_quantile, dim=-1, keepdim=True)
    reach = torch.where(b.entropy <= quantile, low_entropy_range, high_entropy_range).to(ratio.dtype)
    negative, positive = b.advantages < 0, b.advantages > 0
    bounded = torch.where(negative, torch.maximum(ratio, 1.0 - reach), torch.minimum(ratio, 1.0 + reach))
    # The weight of the other tokens is 1 / bounded, with the sign of the ratio's own derivative.
    weight = torch.where(negative, bounded, bounded / bounded.detach().square())
    cut = weight.detach() > clip_ratio_c
    losses = -b.advantages * torch.where(cut, clip_ratio_c * b.logprob, weight)
    metrics = token_metrics(b, pg_clipfrac_upper=ratio > bounded, pg_clipfrac_lower=ratio < bounded)
    shares = {
        "negative_clipfrac_dual": masked_mean(cut, negative * b.mask),
        "positive_clipfrac_dual": masked_mean(cut, positive * b.mask),
    }
    return outcome(b, losses, {**metrics, **shares})


def erc(b, clip_range_low=0.2, clip_range_high=0.28, clip_ratio_c=10.0, entropy_low=0.95, entropy_high=1.05):
    log_ratio = log_ratio_of(b).clamp(-20.0, 20.0)
    losses, clipped = surrogate(b.advantages, log_ratio.exp(), 1.0 - clip_range_low, 1.0 + clip_range_high)
    losses, _ = limited(losses, b.advantages, clip_ratio_c)
    entropy_ratio = (b.entropy + 1e-8) / (b.old_entropy + 1e-8)
    near = (entropy_ratio > entropy_low) & (entropy_ratio < entropy_high)
    metrics = token_metrics(b, pg_clipfrac=clipped, ppo_kl=-log_ratio, entropy_kept_fraction=near)
    return outcome(b, torch.where(near, losses, losses.detach()), metrics)


def up(b, clip_range=0.2):
    log_ratio = log_ratio_of(b)
    ratio = log_ratio.exp()
    losses, _ = surrogate(b.advantages, ratio, 1.0 - clip_range, 1.0 + clip_range)
    losses = torch.where(b.advantages > 0, -b.advantages * unit_ratio(b.logprob), losses)
    below = (b.advantages < 0) & (ratio < 1.0 - clip_range)
    metrics = token_metrics(b, pg_clipfrac=below, ppo_kl=-log_ratio)
    return outcome(b, losses, {**metrics, "pg_clipfrac_lower": torch.zeros_like(metrics["ppo_kl"])})


def discounted_future(values, decay):
    """Sums the values from each token to the end of its row, discounted by the distance.

    After each step, the sums reach twice as far, so that their number is the logarithm of the row's length.
    """
    reach = 1
    while reach < values.shape[-1]:
        values = values + decay**reach * F.pad(values[:, reach:], (0, reach))
        reach *= 2
    return values


def fipo(b, clip_range_low=0.2, clip_range_high=0.28, decay_rate=32.0, influence_clip=0.2, safety_threshold=4.0):
    log_ratio = log_ratio_of(b)
    ratio = log_ratio.exp()
    low, high = 1.0 - clip_range_low, 1.0 + clip_range_high
    future = discounted_future(log_ratio.detach() * b.mask, 2.0 ** (-1.0 / decay_rate)) * b.mask
    influence = future.exp().clamp(1.0, 1.0 + influence_clip)
    unsafe = (b.advantages < 0) & (ratio > safety_threshold)
    weight = torch.where(unsafe, influence.clamp(0.8, 1.0), influence)
    losses, _ = surrogate(b.advantages, ratio, low, high)
    metrics = token_metrics(
        b,
        future_kl_mean=future,
        influence_weight_mean=weight,
        safety_keep_ratio=~unsafe,
        low_clip=(b.advantages < 0) & (ratio < low),
        high_clip=(b.advantages > 0) & (ratio > high),
    )
    return outcome(b, losses * weight, metrics)


def real(b, tau=0.5):
    score = row_mean(log_ratio_of(b), b.mask) / tau
    positive = row_mean(b.advantages, b.mask) > 0
    groups, group = b.group_ids.unique(return_inverse=True)
    of_groups = lambda values: sum_by_group(values, group, len(groups))
    negatives, positives = of_groups(score.exp() * ~positive), of_groups((-score).exp() * positive)
    mixed = (negatives.detach() > 0) & (positives.detach() > 0)
    loss = ((negatives.log1p() + positives.log1p()) * mixed).sum() / len(groups)
    return loss, {"pg_loss": loss.detach()}


PAPERS = {
    function.__name__: function
    for function in (
        *(corrected_ppo, clipped_pg, decoupled_ppo, m2po, m2po_clip, rollout_is, segment_ppo, prime_rl, prime_rl_ipo),
        *(ref_kl, ce_gppo, bapo, aspo, erc, up, fipo, real),
    )
}
