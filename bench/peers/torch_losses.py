"""PyTorch versions of Trinity-RFT's functions (policy losses, KL estimators, entropy losses and GRPO's objective), of PPO
from logits, and of the expressions that the benchmarks time.

They are written in PyTorch's usual style: the mask multiplies, autograd differentiates, and metrics reuse what the loss
has computed. Nothing here reads a value back to the host.
"""

import math

import torch
import torch.nn.functional as F

from torch_batch import aggregate, log_ratio_of, masked_mean, row_mean, row_sum, surrogate


# Policy losses. Each takes a Batch and Trinity-RFT's arguments, and returns the loss and its metrics.


def ppo(
    b,
    clip_range=0.2,
    clip_range_low=None,
    clip_range_high=None,
    clip_ratio_c=3.0,
    loss_agg_mode="token-mean",
    enable_sequence_masking=False,
    delta_sequence_masking=0.1,
    fallback_to_policy_gradient=False,
    rows=None,
):
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high
    old = b.logprob.detach() if fallback_to_policy_gradient else b.old_logprob
    log_ratio = (b.logprob - old).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    unclipped = -b.advantages * ratio
    clipped = -b.advantages * ratio.clamp(1.0 - low, 1.0 + high)
    upper = torch.maximum(unclipped, clipped)
    lower = -b.advantages * clip_ratio_c
    negative = b.advantages < 0
    losses = torch.where(negative, torch.minimum(lower, upper), upper)
    metrics = {
        "pg_clipfrac": masked_mean(clipped.detach() > unclipped.detach(), b.mask),
        "pg_clipfrac_lower": masked_mean((upper.detach() > lower) & negative, b.mask),
        "ppo_kl": masked_mean(-log_ratio.detach(), b.mask),
    }
    if enable_sequence_masking:
        kl = (-log_ratio.detach() * b.mask).sum(-1) / (b.mask.sum(-1) + 1e-10)
        dropped = negative & (kl > delta_sequence_masking)[:, None]
        losses = torch.where(dropped, 0.0, losses)
        metrics["seq_mask/masked_tokens"] = dropped.sum() / (b.mask.sum() + 1e-10)
        metrics["seq_mask/mean_sequence_kl"] = kl.mean()
    loss = aggregate(losses, b.mask, loss_agg_mode, rows)
    metrics["pg_loss"] = loss.detach()
    return loss, metrics


def gspo(b, clip_range_low=0.0003, clip_range_high=0.0004, loss_agg_mode="seq-mean-token-mean"):
    log_ratio = b.logprob - b.old_logprob
    mean = row_mean(log_ratio, b.mask).detach()
    # For every token, the value is the ratio of the whole sequence, but the derivative is with respect to the token's
    # own logprob.
    ratio = (b.logprob - b.logprob.detach() + mean[:, None]).exp()
    unclipped = -b.advantages * ratio
    clipped = -b.advantages * ratio.clamp(1.0 - clip_range_low, 1.0 + clip_range_high)
    loss = aggregate(torch.maximum(unclipped, clipped), b.mask, loss_agg_mode)
    return loss, {
        "pg_clipfrac": masked_mean(clipped.detach() > unclipped.detach(), b.mask),
        "ppo_kl": masked_mean(-log_ratio.detach(), b.mask),
        "ppo_kl_seq": (-mean).mean(),
        "pg_loss": loss.detach(),
    }


def cispo(
    b,
    clip_range_low=1.0,
    clip_range_high=0.28,
    enable_mask_clip=False,
    mask_clip_range_low=1.0,
    mask_clip_range_high=0.28,
    loss_agg_mode="token-mean",
):
    log_ratio = (b.logprob - b.old_logprob).detach()
    ratio = log_ratio.exp()
    kept = torch.ones_like(ratio)
    if enable_mask_clip:
        above = (ratio > 1.0 + mask_clip_range_high) & (b.advantages > 0)
        below = (ratio < 1.0 - mask_clip_range_low) & (b.advantages < 0)
        kept = (~(above | below)).to(ratio.dtype)
    weight = ratio.clamp(1.0 - clip_range_low, 1.0 + clip_range_high) * kept
    loss = aggregate(-b.advantages * weight * b.logprob, b.mask, loss_agg_mode)
    return loss, {
        "cispo_loss": loss.detach(),
        "ppo_kl": masked_mean(-log_ratio, b.mask),
        "unmasked_frac": masked_mean(kept, b.mask),
    }


def topr(b, advantage_threshold=0.0, loss_agg_mode="token-mean"):
    ratio = (b.logprob - b.old_logprob).detach().exp()
    alpha = torch.where(b.advantages <= advantage_threshold, ratio.clamp(0.0, 1.0), 1.0)
    loss = aggregate(-alpha * b.advantages * b.logprob, b.mask, loss_agg_mode)
    return loss, {
        "topr_loss": loss.detach(),
        "avg_alpha": masked_mean(alpha, b.mask),
        "avg_ratio": masked_mean(ratio, b.mask),
    }


def sapo(b, tau_pos=1.0, tau_neg=1.05, differentiate_gate=False, loss_agg_mode="token-mean"):
    log_ratio = b.logprob - b.old_logprob
    ratio = log_ratio.exp()
    positive = b.advantages > 0
    tau = torch.where(positive, tau_pos, tau_neg).to(ratio.dtype)
    gate = torch.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau
    through = gate if differentiate_gate else gate.detach() * b.logprob
    loss = aggregate(-b.advantages * through, b.mask, loss_agg_mode)
    return loss, {
        "sapo_loss": loss.detach(),
        "ppo_kl": masked_mean(-log_ratio.detach(), b.mask),
        "avg_soft_gate": masked_mean(gate.detach(), b.mask),
        "avg_ratio": masked_mean(ratio.detach(), b.mask),
        "pos_adv_frac": masked_mean(positive, b.mask),
    }


def sppo(b, epsilon=0.3, loss_agg_mode="token-mean"):
    log_ratio = b.logprob - b.old_logprob
    ratio = log_ratio.detach().exp()
    inside = (ratio >= 1.0 / (1.0 + epsilon)) & (ratio <= 1.0 + epsilon)
    loss = aggregate(-b.advantages * log_ratio * inside, b.mask, loss_agg_mode)
    return loss, {"pg_clipfrac": masked_mean(~inside, b.mask), "pg_loss": loss.detach()}


def rec(
    b,
    epsilon_low=0.2,
    epsilon_high=0.2,
    epsilon_low_prime=0.6,
    epsilon_high_prime=2.0,
    clip_mode="none",
    weight="none",
    regularizer="none",
    regularizer_coef=0.0,
    temp=1.0,
):
    log_ratio = b.logprob - b.old_logprob
    ratio = log_ratio.detach().exp()
    by_row = clip_mode == "gspo-one-side"
    row_ratio = row_mean(log_ratio.detach(), b.mask).exp()[:, None].expand_as(ratio) if by_row else None
    judged = row_ratio if by_row else ratio
    above, below = judged <= 1.0 + epsilon_high, judged >= 1.0 - epsilon_low
    up, down = b.advantages >= 0, b.advantages <= 0
    if clip_mode == "none":
        kept = torch.ones_like(b.mask, dtype=torch.bool)
    elif clip_mode in ("one-side", "gspo-one-side"):
        kept = (above & up) | (below & down)
    else:
        kept = above & below
        if clip_mode == "ring":
            kept = kept | (up & (ratio <= 1.0 - epsilon_low_prime)) | (down & (ratio >= 1.0 + epsilon_high_prime))
    advantages = b.advantages
    if weight == "importance_sampling":
        advantages = advantages * ratio
    elif weight == "gspo_importance_sampling":
        advantages = advantages * row_ratio
    elif weight == "advantage":
        advantages = advantages * (advantages / temp).exp()
    losses = -advantages * b.logprob * kept
    if regularizer == "k2":
        losses = losses + regularizer_coef * log_ratio.square()
    elif regularizer == "forward-kl":
        losses = losses - regularizer_coef * b.logprob
    loss = aggregate(losses, b.mask, "seq-mean-token-mean" if by_row else "token-mean")
    return loss, {"pg_clipfrac": masked_mean(~kept, b.mask), "pg_loss": loss.detach()}


def importance_sampling(b, loss_agg_mode="token-mean"):
    log_ratio = (b.logprob - b.old_logprob).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    loss = aggregate(-b.advantages * ratio, b.mask, loss_agg_mode)
    return loss, {
        "pg_loss": loss.detach(),
        "ratio/mean": masked_mean(ratio.detach(), b.mask),
        "approx_kl": masked_mean(-log_ratio.detach(), b.mask),
    }


def opmd(b, tau=1.0, loss_agg_mode="token-mean"):
    loss = aggregate(-b.advantages * b.logprob / (1.0 + tau), b.mask, loss_agg_mode)
    return loss, {"opmd_loss": loss.detach()}


def sft(b, loss_agg_mode="token-mean", rows=None):
    loss = aggregate(-b.logprob, b.mask, loss_agg_mode, rows)
    return loss, {"sft_loss": loss.detach()}


def sft_is(b, loss_agg_mode="token-mean"):
    loss = aggregate(-b.logprob * b.logprob.detach().exp(), b.mask, loss_agg_mode)
    return loss, {"sft_is_loss": loss.detach()}


def sft_phi(b, cutoff_prob=1.0, loss_agg_mode="token-mean", rows=None):
    p = b.logprob.detach().exp()
    logprob = b.logprob.clamp(max=math.log(cutoff_prob)) if cutoff_prob < 1.0 else b.logprob
    loss = aggregate(-logprob * p * (1.0 - p), b.mask, loss_agg_mode, rows)
    return loss, {"sft_phi_loss": loss.detach()}


def dpo(b, beta=0.1, label_smoothing=0.0, pairwise=True):
    sums = ((b.logprob - b.ref_logprob) * b.mask).sum(-1)
    chosen, rejected = sums[0::2], sums[1::2]
    if not pairwise:
        chosen, rejected = chosen.sum(), rejected.sum()
    margin = beta * (chosen - rejected)
    losses = -F.logsigmoid(margin) * (1.0 - label_smoothing) - F.logsigmoid(-margin) * label_smoothing
    loss = losses.mean()
    return loss, {
        "chosen_reward": beta * chosen.detach().mean(),
        "rejected_reward": beta * rejected.detach().mean(),
        "accuracy_mean": (chosen > rejected).to(sums.dtype).mean(),
        "dpo_loss": loss.detach(),
    }


def mix(
    b,
    mu=0.1,
    clip_range=0.2,
    clip_range_low=None,
    clip_range_high=None,
    use_dynamic_bsz=False,
    ppo_mini_batch_size=1,
    ppo_micro_batch_size_per_gpu=1,
    ngpus_trainer=1,
    train_batch_size_usual=1,
    train_batch_size_expert=1,
    loss_agg_mode="token-mean",
    sft_loss_agg_mode=None,
    grpo_loss_agg_mode=None,
    expert_loss=sft,
):
    # Selects the usual rows and the expert's rows by masks, so that all shapes stay fixed. With indexing, the shapes
    # would depend on the data.
    usual, expert = b.under(b.mask * ~b.expert[:, None]), b.under(b.mask * b.expert[:, None])
    usual_rows, expert_rows = (~b.expert).sum(), b.expert.sum()
    per_gpu = ppo_mini_batch_size // ngpus_trainer
    weight = per_gpu / b.mask.shape[0] if use_dynamic_bsz else ppo_mini_batch_size // ppo_micro_batch_size_per_gpu
    usual_scale = usual_rows * weight / (train_batch_size_usual // ngpus_trainer)
    expert_scale = expert_rows * weight / (train_batch_size_expert // ngpus_trainer)
    usual_loss, usual_metrics = ppo(
        usual,
        clip_range=clip_range,
        clip_range_low=clip_range_low,
        clip_range_high=clip_range_high,
        loss_agg_mode=grpo_loss_agg_mode or loss_agg_mode,
        rows=usual_rows,
    )
    expert_value, expert_metrics = expert_loss(
        expert, loss_agg_mode=sft_loss_agg_mode or loss_agg_mode, rows=expert_rows
    )
    loss = (1.0 - mu) * usual_loss * usual_scale + mu * expert_value * expert_scale
    metrics = {f"usual/{name}": value * usual_scale for name, value in usual_metrics.items()}
    metrics.update({f"expert/{name}": value * expert_scale for name, value in expert_metrics.items()})
    metrics["loss"] = loss.detach()
    return loss, metrics


def mix_chord(
    b, mu_warmup_steps=0, mu_decay_steps=0, mu_peak=0.1, mu_valley=0.1, enable_phi_function=True, **shared
):
    if b.step < mu_warmup_steps:
        mu = b.step / mu_warmup_steps * mu_peak
    elif b.step >= mu_warmup_steps + mu_decay_steps:
        mu = mu_valley
    else:
        along = (b.step - mu_warmup_steps) / mu_decay_steps
        mu = (mu_peak - mu_valley) * 0.5 * (1.0 + math.cos(math.pi * along)) + mu_valley
    loss, metrics = mix(b, mu=mu, expert_loss=sft_phi if enable_phi_function else sft, **shared)
    metrics["mu"] = torch.full_like(loss, mu).detach()
    return loss, metrics


# KL estimators. Each returns one value per token.


def k1(b):
    return b.logprob - b.ref_logprob


def k2(b):
    return 0.5 * (b.ref_logprob - b.logprob).square()


def k3(b):
    delta = b.ref_logprob - b.logprob
    return delta.exp() - 1.0 - delta


def low_var_kl(b):
    delta = (b.ref_logprob - b.logprob).clamp(-20.0, 20.0)
    return (delta.exp() - 1.0 - delta).clamp(-10.0, 10.0)


def absolute(b):
    return (b.ref_logprob - b.logprob).abs()


def corrected_k3(b):
    return (b.logprob - b.old_logprob).exp().clamp(0.0, 2.0) * k3(b)


def bias_corrected_k3(b):
    return (b.logprob - b.old_logprob).exp() * k3(b)


def straight_through(estimator):
    """Makes an estimator with the value of the given one, and the gradient of k2."""
    return lambda b: k2(b) - k2(b).detach() + estimator(b).detach()


def kl_loss(estimator):
    def loss_of(b, kl_coef=0.001, loss_agg_mode="token-mean"):
        kl = aggregate(estimator(b), b.mask, loss_agg_mode)
        return kl_coef * kl, {"kl_loss": kl.detach(), "kl_coef": torch.full_like(kl, kl_coef).detach()}

    return loss_of


# Entropy losses. Their gradients are with respect to the entropies.


def entropy(b, entropy_coef=0.0, loss_agg_mode="token-mean"):
    value = aggregate(b.entropy, b.mask, loss_agg_mode)
    return entropy_coef * value, {"entropy_loss": value.detach()}


def usual_entropy(b, entropy_coef=0.0, loss_agg_mode="token-mean"):
    return entropy(b.under(b.mask * ~b.expert[:, None]), entropy_coef, loss_agg_mode)


# Whole objectives. Each is policy loss − entropy loss + KL loss.


def grpo(b, entropy_coef=0.0, kl_coef=0.001):
    policy, metrics = ppo(b)
    entropy_loss, entropy_metrics = entropy(b, entropy_coef)
    kl, kl_metrics = kl_loss(k2)(b, kl_coef)
    return policy - entropy_loss + kl, {**metrics, **entropy_metrics, **kl_metrics}


# From the logits of each token [N, vocabulary].


def ppo_from_logits(b, entropy_coef):
    return ppo_of_logits(b, b.logits.float(), entropy_coef)


# From the hidden states [N, size] and the weight of the output head [vocabulary, size].


def ppo_from_hidden(b, entropy_coef):
    return ppo_of_logits(b, b.hidden @ b.weight.T, entropy_coef)


def ppo_of_logits(b, logits, entropy_coef):
    logprobs = torch.log_softmax(logits, -1)
    logprob = logprobs.gather(-1, b.targets[:, None].long())[:, 0]
    ratio = (logprob - b.old_logprob).exp()
    losses, _ = surrogate(b.advantages, ratio, 0.8, 1.2)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return losses.mean() - entropy_coef * entropies.mean(), {}


# Losses of the benchmark's expressions, under their texts. Each takes a Batch and the names in the text, and returns
# one value per token.


def clipped_ratio(b, low, high):
    ratio = log_ratio_of(b).exp()
    return torch.maximum(-b.advantages * ratio, -b.advantages * ratio.clamp(1.0 - low, 1.0 + high))


def limited_weight(b, hi):
    return -log_ratio_of(b).exp().clamp(0.0, hi).detach() * b.advantages * b.logprob


def truncated_weight(b):
    weight = log_ratio_of(b).exp().clamp(max=1.0).detach()
    return torch.where(b.advantages > 0, -b.advantages * b.logprob, -weight * b.advantages * b.logprob)


def geometric_mean(b):
    return -b.advantages * row_mean(log_ratio_of(b), b.mask).exp()[:, None]


def one_sided_mean(b, eps):
    log_ratio = log_ratio_of(b)
    limited = torch.where(b.advantages > 0, log_ratio.clamp(max=eps), log_ratio.clamp(min=-eps))
    return -b.advantages * row_mean(limited, b.mask).exp()[:, None]


def log_odds(b, beta):
    # The same value for all tokens of a row.
    return -F.logsigmoid(beta * row_sum(b.logprob - b.ref_logprob, b.mask))[:, None].expand_as(b.logprob)


def relative_to_largest(b):
    ratio = log_ratio_of(b).exp()
    largest = torch.where(b.mask > 0, ratio, -math.inf).amax(-1, keepdim=True).detach()
    return -b.advantages * ratio / largest


def gated(b, e):
    log_ratio = log_ratio_of(b)
    ratio = log_ratio.exp()
    inside = (ratio >= 1.0 / (1.0 + e)) & (ratio <= 1.0 + e)
    return -b.advantages * log_ratio * inside


def signed(b):
    return (b.logprob - b.ref_logprob).abs() + b.advantages.sign() * b.logprob


def clipped_by_sign(batch, a, b):
    ratio = log_ratio_of(batch).exp()
    positive = batch.advantages > 0
    low, high = torch.where(positive, a, b).to(ratio.dtype), torch.where(positive, b, a).to(ratio.dtype)
    return -batch.advantages * ratio.clamp(1.0 - low, 1.0 + high)


def bounded_row_weight(b, lo, hi):
    weight = row_sum(b.old_logprob - b.rollout_logprob, b.mask).exp().clamp(lo, hi)
    return -weight[:, None] * b.advantages * log_ratio_of(b).exp()


def expression_loss(per_token):
    def loss_of(batch, **options):
        return masked_mean(per_token(batch, **options), batch.mask), {}

    return loss_of


POLICY = {
    function.__name__: function
    for function in (
        *(ppo, gspo, cispo, topr, sapo, sppo, rec, opmd),
        *(importance_sampling, dpo, sft, sft_is, sft_phi, mix, mix_chord),
    )
}
KL = {
    name: kl_loss(estimator)
    for name, estimator in {
        "k1": k1,
        "k2": k2,
        "k3": k3,
        "low_var_kl": low_var_kl,
        "abs": absolute,
        "corrected_k3": corrected_k3,
        "bias_corrected_k3": bias_corrected_k3,
        "k1+": straight_through(k1),
        "k2+": straight_through(k2),
        "k3+": straight_through(low_var_kl),
        "low_var_kl+": straight_through(low_var_kl),
        "abs+": straight_through(absolute),
    }.items()
}
ENTROPY = {"default": entropy, "mix": usual_entropy}
OBJECTIVE = {"grpo": grpo}
LOGITS = {"ppo": ppo_from_logits}
HIDDEN = {"ppo": ppo_from_hidden}
EXPRESSION = {
    text: expression_loss(per_token)
    for text, per_token in {
        "-A*r": lambda b: -b.advantages * log_ratio_of(b).exp(),
        "max(-A*r, -A*clip(r, 1-low, 1+high))": clipped_ratio,
        "-sg(clip(r, 0, hi))*A*lp": limited_weight,
        "A > 0 ? -A*lp : -sg(min(r, 1))*A*lp": truncated_weight,
        "-A*exp(row_mean(lp-old))": geometric_mean,
        "-A*exp(row_mean(A > 0 ? min(d, eps) : max(d, -eps)))": one_sided_mean,
        "-sg(clip(exp(row_sum(old-rollout)), lo, hi))*A*r": bounded_row_weight,
        "-logsigmoid(beta*row_sum(lp-ref))": log_odds,
        "-A*r/sg(row_max(r))": relative_to_largest,
        "-A*d*sg(r >= 1/(1+e) && r <= 1+e ? 1 : 0)": gated,
        "abs(lp-ref) + sign(A)*lp": signed,
        "-A*clip(r, 1-(A > 0 ? a : b), 1+(A > 0 ? b : a))": clipped_by_sign,
    }.items()
}
