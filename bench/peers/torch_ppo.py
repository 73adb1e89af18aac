"""Eager PyTorch's time for PPO's loss, metrics and gradient, for the benchmark to stand beside.

Reads one JSON object a line, {"rows", "columns", "threads"}, and answers each with the seconds that one forward and
backward pass took, so that its runs can be interleaved with ours.
"""

import json
import sys
import time

import torch


def masked_mean(values, mask, total):
    return (values * mask).sum() / total


def ppo(logprob, old_logprob, advantages, mask, low=0.2, high=0.2, dual=3.0):
    log_ratio = torch.clamp(logprob - old_logprob, -20.0, 20.0)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    upper = torch.maximum(unclipped, clipped)
    lower = -advantages * dual
    negative = advantages < 0
    losses = torch.where(negative, torch.minimum(lower, upper), upper)
    total = mask.sum() + 1e-8
    loss = masked_mean(losses, mask, total)
    with torch.no_grad():
        metrics = [
            masked_mean((clipped > unclipped).float(), mask, total),
            masked_mean(((upper > lower) & negative).float(), mask, total),
            masked_mean(-log_ratio, mask, total),
        ]
    return loss, metrics


def main():
    inputs = {}
    for line in sys.stdin:
        request = json.loads(line)
        torch.set_num_threads(request["threads"])
        shape = (request["rows"], request["columns"])
        if shape not in inputs:
            generator = torch.Generator().manual_seed(1)
            old = -3 * torch.rand(shape, generator=generator)
            logprob = old + 0.2 * torch.randn(shape, generator=generator)
            advantages = torch.randn((shape[0], 1), generator=generator).expand(shape).contiguous()
            mask = torch.ones(shape)
            inputs[shape] = (logprob.requires_grad_(), old, advantages, mask)
        logprob, *rest = inputs[shape]
        logprob.grad = None
        start = time.perf_counter()
        loss, metrics = ppo(logprob, *rest)
        loss.backward()
        _ = [float(metric) for metric in metrics]
        print(time.perf_counter() - start, flush=True)


main()
