"""The PyTorch side of the benchmarks: evaluates and times the losses of torch_functions.py on a CPU or a GPU.

    torch_peer.py cpu|cuda:0

Reads one JSON object per line and answers each with one line, so that the caller can alternate its own work with
PyTorch's. Where PyTorch raises an error, the answer is {"error": …}.

  {"op": "about", "threads"}                   versions, and the names of the losses by family
  {"op": "compile_problem"}                    why torch.compile cannot be used; null if it can
  {"op": "load", "files", "step"}              reads the inputs of the batch, each from a file
  {"op": "prepare", "form", "family", "name", "args", "gradient", "wrt"}
                                               prepares a loss and the columns to differentiate it by
  {"op": "evaluate", "form", "files"}          loss and metrics; the gradients go to files, in the order of wrt
  {"op": "time", "form", "calls", "until"}     milliseconds of each call
  {"op": "release", "form"}                    drops what was prepared
  {"op": "logits", "shape", "dtype", "calls"}  milliseconds of PPO from logits drawn at random, and of its gradient
  {"op": "copy", "source", "bytes", "calls"}   milliseconds of copying bytes to the device's memory

"form" is "eager" or "compiled". "until" is "host" to time a call until its loss and metrics are numbers on the host, or
"device" to time the device alone, without reading anything back. "source" is "device" or "pinned" (host memory).
"""

import json
import math
import sys
import time

import torch

from torch_batch import Batch
from torch_functions import FUNCTIONS


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def host_milliseconds(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def device_milliseconds(device, work):
    if device.type != "cuda":
        return host_milliseconds(work)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def load(device, files, step):
    """Reads a batch. For each input, `files` has the path, the dtype and the shape.

    Masks are float32 on a CPU, where a bool mask is slower because every product converts it. On a GPU they are bool,
    which is a quarter of the bytes. Numbers per row are converted to float32.
    """
    inputs = {name: read(**file).to(device) for name, file in files.items()}
    mask, expert = inputs.pop("action_mask"), inputs.pop("expert_mask")
    mask = mask.bool() if device.type == "cuda" else mask.float()
    return Batch(mask=mask, expert=expert.bool(), step=step, **inputs)


def read(path, dtype, shape):
    values = torch.from_file(path, shared=False, size=math.prod(shape), dtype=getattr(torch, dtype))
    return values.clone().reshape(shape).to(torch.float32 if dtype == "float64" else values.dtype)


class Contender:
    """A loss on a batch, ready to be evaluated and timed."""

    def __init__(self, device, batch, compiled, family, name, args, gradient, wrt):
        function = FUNCTIONS[family][name]
        step, names = batch.step, list(batch.columns)

        # Takes each tensor as a separate parameter, so that torch.compile can trace this function.
        def of_tensors(mask, expert, *columns):
            loss, metrics = function(Batch(mask, expert, step, **dict(zip(names, columns))), **args)
            return (loss, *metrics.values())

        self.device = device
        self.inputs = [batch.mask, batch.expert, *batch.columns.values()]
        self.wrt = [getattr(batch, column) for column in wrt] if gradient else []
        with torch.no_grad():
            self.metric_names = list(function(batch, **args)[1])
        for column in ("logprob", "entropy"):
            getattr(batch, column).requires_grad_(gradient and column in wrt)
        self.forward = of_tensors
        if compiled:
            torch._dynamo.reset()
            self.forward = torch.compile(of_tensors, dynamic=False, fullgraph=True)
            for _ in range(3):
                self.run()
        synchronize(device)

    def run(self):
        """Returns the loss and metrics as a list, and the gradients as a tuple."""
        if not self.wrt:
            with torch.no_grad():
                return list(self.forward(*self.inputs)), ()
        values = list(self.forward(*self.inputs))
        return values, torch.autograd.grad(values[0], self.wrt)

    def numbers(self, values):
        """Reads values back as Python numbers, on a GPU in one transfer."""
        if self.device.type != "cuda":
            return [float(value) for value in values]
        return torch.stack([value.detach().to(values[0].dtype) for value in values]).tolist()

    def evaluate(self, files):
        values, gradients = self.run()
        for gradient, path in zip(gradients, files):
            torch.from_file(path, shared=True, size=gradient.numel()).copy_(gradient.flatten())
        loss, *metrics = self.numbers(values)
        return {"loss": loss, "metrics": dict(zip(self.metric_names, metrics))}

    def time(self, calls, until):
        synchronize(self.device)
        if until == "device":
            return [device_milliseconds(self.device, self.run) for _ in range(calls)]
        return [host_milliseconds(lambda: self.numbers(self.run()[0])) for _ in range(calls)]


class FromLogits:
    """PPO with an entropy bonus from logits, and its gradient with respect to them."""

    def __init__(self, device, shape, dtype):
        generator = torch.Generator(device).manual_seed(1)
        rows, vocabulary = shape
        draw = lambda *size: torch.randn(*size, device=device, generator=generator)
        self.logits = (3 * draw(rows, vocabulary)).to(getattr(torch, dtype)).requires_grad_()
        self.targets = torch.randint(vocabulary, (rows, 1), device=device, generator=generator)
        self.advantages = draw(rows)
        with torch.no_grad():
            chosen = self.logits.float().gather(-1, self.targets)[:, 0]
            self.old_logprob = chosen - self.logits.float().logsumexp(-1) + 0.1 * draw(rows)

    def run(self):
        logprobs = torch.log_softmax(self.logits.float(), -1)
        logprob = logprobs.gather(-1, self.targets)[:, 0]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        ratio = (logprob - self.old_logprob).exp()
        unclipped = -self.advantages * ratio
        clipped = -self.advantages * ratio.clamp(0.8, 1.2)
        loss = torch.maximum(unclipped, clipped).mean() - 0.01 * entropy.mean()
        return torch.autograd.grad(loss, [self.logits])


class Session:
    """Answers requests; each public method is an "op"."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.batch = None
        self.contenders = {}
        self.buffers = {}
        self.from_logits = self.from_logits_key = None

    def about(self, threads=None):
        if threads is not None:
            torch.set_num_threads(threads)
        cuda = self.device.type == "cuda"
        return {
            "version": torch.__version__,
            "device": torch.cuda.get_device_name(self.device) if cuda else "cpu",
            "cuda": torch.version.cuda,
            "functions": {family: list(functions) for family, functions in FUNCTIONS.items()},
        }

    def compile_problem(self):
        if not hasattr(torch, "compile"):
            return {"problem": f"PyTorch {torch.__version__} has no torch.compile"}
        try:
            torch.compile(lambda x: (x * 2.0).sum())(torch.ones(64, device=self.device))
        except Exception as error:
            return {"problem": f"torch.compile failed: {first_line(error)}"}
        return {"problem": None}

    def load(self, files, step):
        # Frees the previous batch first, because the device may not have room for both.
        self.batch = None
        self.contenders.clear()
        self.batch = load(self.device, files, step)
        return {}

    def prepare(self, form, **request):
        self.contenders[form] = Contender(self.device, self.batch, form == "compiled", **request)
        return {}

    def evaluate(self, form, files):
        return self.contenders[form].evaluate(files)

    def time(self, form, calls, until):
        return {"milliseconds": self.contenders[form].time(calls, until)}

    def release(self, form):
        self.contenders.pop(form, None)
        return {}

    def logits(self, shape, dtype, calls):
        """The logits stay until other ones are asked for."""
        key = (*shape, dtype)
        if self.from_logits_key != key:
            self.from_logits = None
            self.from_logits, self.from_logits_key = FromLogits(self.device, shape, dtype), key
        synchronize(self.device)
        return {"milliseconds": [device_milliseconds(self.device, self.from_logits.run) for _ in range(calls)]}

    def copy(self, source, bytes, calls):
        origin, target = self.buffer(source, bytes), self.buffer("target", bytes)
        copy = lambda: target.copy_(origin, non_blocking=True)
        synchronize(self.device)
        return {"milliseconds": [device_milliseconds(self.device, copy) for _ in range(calls)]}

    def buffer(self, kind, size):
        """Returns a cached buffer. It is cached because pinning memory takes longer than copying it."""
        if (kind, size) not in self.buffers:
            cuda, pinned = self.device.type == "cuda", kind == "pinned"
            self.buffers[kind, size] = torch.full(
                (size,), 7, dtype=torch.uint8, device="cpu" if pinned else self.device, pin_memory=cuda and pinned
            )
        return self.buffers[kind, size]


OPS = ("about", "compile_problem", "load", "prepare", "evaluate", "time", "release", "logits", "copy")


def first_line(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def serve(session):
    # Only answers may go to standard output. What libraries print there goes to standard error instead.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        op = request.pop("op")
        try:
            if op not in OPS:
                raise ValueError(f"op: expected one of {', '.join(OPS)}, got {op}")
            answer = getattr(session, op)(**request)
        except Exception as error:
            answer = {"error": first_line(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(Session(sys.argv[1]))
