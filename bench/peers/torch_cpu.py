"""Eager PyTorch's side of the CPU benchmark: every loss forward alone, and forward and backward, on all cores.

The formulas are in torch_losses.py. Masks are float32, 0 and 1: PyTorch is slower where it must convert them in each
product. Inputs lie in memory as tensors before anything is timed, and metrics are read as numbers, as a trainer does.

Reads one JSON object a line and answers each with one, {"error": …} where it cannot, so that its runs can be
interleaved with another program's:

  {"op": "about", "threads"}                                       the version, and the threads it will use
  {"op": "load", "shape", "columns", "step"}                       reads the batch's columns, each from a file
  {"op": "prepare", "family", "name", "args", "gradient", "wrt"}   what to compute, and by which columns to differentiate
  {"op": "evaluate", "files"}                                      loss and metrics; gradients go to files, in wrt's order
  {"op": "time", "calls"}                                          milliseconds of each of so many calls
"""

import time

import torch

from torch_losses import FUNCTIONS, Batch
from torch_serve import serve

MASKS = ("action_mask", "expert_mask")


def load(shape, columns, step):
    rows, length = shape
    tensors = {}
    for name, path in columns.items():
        mask = name in MASKS
        size = rows if name == "expert_mask" else rows * length
        dtype = torch.uint8 if mask else torch.float32
        tensors[name] = torch.from_file(path, shared=False, size=size, dtype=dtype).clone()
    expert = tensors.pop("expert_mask").bool()
    mask = tensors.pop("action_mask").float().reshape(shape)
    return Batch(
        **{name: values.reshape(shape) for name, values in tensors.items()}, mask=mask, expert=expert, step=step
    )


class Contender:
    def __init__(self, batch, family, name, args, gradient, wrt):
        self.batch = batch
        self.function = FUNCTIONS[family][name]
        self.args = args
        self.wrt = [getattr(batch, column) for column in wrt] if gradient else []
        for column in ("logprob", "entropy"):
            getattr(batch, column).requires_grad_(gradient and column in wrt)

    def run(self):
        if not self.wrt:
            with torch.no_grad():
                loss, metrics = self.function(self.batch, **self.args)
            gradients = []
        else:
            loss, metrics = self.function(self.batch, **self.args)
            gradients = torch.autograd.grad(loss, self.wrt)
        return loss.item(), {name: float(value) for name, value in metrics.items()}, gradients

    def evaluate(self, files):
        loss, metrics, gradients = self.run()
        for gradient, path in zip(gradients, files):
            torch.from_file(path, shared=True, size=gradient.numel()).copy_(gradient.flatten())
        return {"loss": loss, "metrics": metrics}

    def time(self, calls):
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            self.run()
            times.append((time.perf_counter() - start) * 1e3)
        return times


class Session:
    def __init__(self):
        self.batch = None
        self.contender = None

    def answer(self, request):
        op = request.pop("op")
        if op == "about":
            torch.set_num_threads(request["threads"])
            return {"version": torch.__version__, "threads": torch.get_num_threads()}
        if op == "load":
            self.batch = self.contender = None
            self.batch = load(**request)
            return {}
        if op == "prepare":
            self.contender = Contender(self.batch, **request)
            return {}
        if op == "evaluate":
            return self.contender.evaluate(**request)
        if op == "time":
            return {"milliseconds": self.contender.time(**request)}
        raise ValueError(f"no op named {op}")


if __name__ == "__main__":
    serve(Session().answer)
