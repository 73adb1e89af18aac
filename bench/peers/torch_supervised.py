"""Losses of fine-tuning and distillation in eager PyTorch, with the frameworks' default arguments. All weights are 1."""

import torch

from torch_batch import row_sum, token_metrics


def tinker_cross_entropy(b):
    loss = (-b.logprob * b.mask).sum()
    return loss, {"train_mean_nll": loss.detach() / b.mask.sum().clamp(min=1)}


def prime_ce(b):
    counts = b.mask.sum(-1)
    loss = (-b.logprob * b.mask).sum() / counts.sum().clamp(min=1)
    of_rows = row_sum(-b.logprob.detach(), b.mask) / counts.clamp(min=1)
    return loss, {"nll": of_rows.sum() / (counts > 0).sum().clamp(min=1)}


def sdar(b, sdar_loss_coef=0.1, sdar_gate_beta=5.0):
    gap = b.teacher_logprob - b.logprob
    gate = torch.sigmoid(sdar_gate_beta * gap.detach())
    loss = (gate * gap * b.mask).sum() / b.mask.sum().clamp(min=1)
    metrics = token_metrics(b, gate_mean=gate, gate_active_ratio=gap > 0, teacher_gap_mean=gap)
    return sdar_loss_coef * loss, {f"sdar/{name}": value for name, value in {**metrics, "loss": loss.detach()}.items()}


def distill_topk(b, log_prob_min_clamp=-10.0, loss_max_clamp=10.0):
    """The loss of verl from the teacher's list. Rows of logits [N, V] are tokens, and none is masked."""
    logits, ids = b.logits.float(), b.teacher_topk_ids.long()
    student, teacher = torch.log_softmax(logits, -1).gather(-1, ids), b.teacher_topk_logprobs
    masses = {"student": student.detach().exp().sum(-1), "teacher": teacher.exp().sum(-1)}
    student, teacher = student.clamp(min=log_prob_min_clamp), teacher.clamp(min=log_prob_min_clamp)
    terms = teacher.exp() * (teacher - student)
    divergence = terms.sum(-1).clamp(min=0)
    loss = divergence.clamp(max=loss_max_clamp).mean()

    terms, divergence = terms.detach(), divergence.detach()
    top = logits.detach().topk(ids.shape[-1], sorted=False).indices
    is_shared = (ids[:, :, None] == top[:, None, :]).any(-1)
    shared = is_shared.sum(-1)
    advantages = -(terms * is_shared).sum(-1) / shared.clamp(min=1)
    metrics = {
        "loss": loss.detach(),
        "loss_min": divergence.min(),
        "loss_max": divergence.max(),
        "overlap_ratio": shared.float().mean() / ids.shape[-1],
        "overlap_token_advantage": advantages.sum() / (shared > 0).sum().clamp(min=1),
    }
    for side, mass in masses.items():
        metrics |= {f"{side}_mass": mass.mean(), f"{side}_mass_min": mass.min(), f"{side}_mass_max": mass.max()}
    return loss, {f"distillation/{name}": value for name, value in metrics.items()}


SUPERVISED = {"tinker/cross_entropy": tinker_cross_entropy, "prime/ce": prime_ce, "swift/sdar": sdar}
DISTILLATION = {"verl/distill_topk": distill_topk}
