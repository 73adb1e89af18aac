"""The PyTorch side of the benchmarks: evaluates and times the losses of torch_functions.py on a CPU or a GPU.

    torch_peer.py cpu|cuda:0

Reads one JSON object per line and answers each with one line, so that the caller can alternate its own work with
PyTorch's. Where PyTorch raises an error, the answer is {"error": …}.

  {"op": "about"}                            versions, and the names of the losses by family
  {"op": "load", "files", "step", "threads"} reads the inputs of the batch, each from a file, for so many threads
  {"op": "prepare", "form", "family", "name", "args", "wrt"}
                                             prepares a loss and the columns to differentiate it by
  {"op": "evaluate", "form", "files"}        loss and metrics; the gradients go to files, in the order of wrt
  {"op": "time", "form", "calls", "until"}   milliseconds of each call
  {"op": "release"}                          drops all that was prepared
  {"op": "copy", "source", "bytes", "calls"} milliseconds of copying bytes to the device's memory

"form" is "eager", "compiled" (torch.compile of the loss; autograd differentiates) or "grad_and_value" (torch.compile of
loss and gradient together). "until" is "host" to time a call until its loss and metrics are numbers on the host, or
"device" to time the device alone, without reading anything back. "source" is "device" or "pinned" (host memory).
"""

import json
import math
import sys
import time

import torch

from torch_batch import Batch, WatchedBatch
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
    as_mask = lambda values: values.bool() if device.type == "cuda" else values.float()
    if "attention_mask" in inputs:
        inputs["attention_mask"] = as_mask(inputs["attention_mask"])
    return Batch(mask=as_mask(mask), expert=expert.bool(), step=step, **inputs)


def read(path, dtype, shape):
    values = torch.from_file(path, shared=False, size=math.prod(shape), dtype=getattr(torch, dtype))
    return values.clone().reshape(shape).to(torch.float32 if dtype == "float64" else values.dtype)


class Contender:
    """A loss on a batch, ready to be evaluated and timed."""

    def __init__(self, device, batch, form, family, name, args, wrt):
        function = FUNCTIONS[family][name]
        step, read = batch.step, set()
        with torch.no_grad():
            self.metric_names = list(function(WatchedBatch(batch, read), **args)[1])
        # The other inputs are left out, because in each call torch.compile checks every tensor that it is given.
        names = [name for name in batch.columns if name in read]

        # Takes each tensor as a separate parameter, so that torch.compile can trace this function.
        def of_tensors(mask, expert, *columns):
            loss, metrics = function(Batch(mask, expert, step, **dict(zip(names, columns))), **args)
            return loss, tuple(metrics.values())

        # Detached tensors share the memory, but not whether they require a gradient.
        inputs = [tensor.detach() for tensor in (batch.mask, batch.expert, *map(batch.columns.get, names))]
        places = tuple(2 + names.index(column) for column in wrt)

        if form == "grad_and_value":
            both = compiled(torch.func.grad_and_value(of_tensors, argnums=places, has_aux=True))

            def run():
                gradients, (loss, metrics) = both(*inputs)
                return [loss, *metrics], gradients

        else:
            forward = compiled(of_tensors) if form == "compiled" else of_tensors
            variables = [inputs[place].requires_grad_() for place in places]

            def run():
                loss, metrics = forward(*inputs)
                return [loss, *metrics], torch.autograd.grad(loss, variables)

        self.device = device
        self.run = run
        for _ in range(3):
            self.run()
        synchronize(device)

    def numbers(self, values):
        """Reads values back as Python numbers, on a GPU in one transfer."""
        if self.device.type != "cuda":
            return [float(value) for value in values]
        return torch.stack([value.detach().to(values[0].dtype) for value in values]).tolist()

    def evaluate(self, files):
        values, gradients = self.run()
        for gradient, path in zip(gradients, files):
            torch.from_file(path, shared=True, size=gradient.numel()).copy_(gradient.flatten())
        loss, *metrics = self.numbers([value.detach() for value in values])
        return {"loss": loss, "metrics": dict(zip(self.metric_names, metrics))}

    def time(self, calls, until):
        synchronize(self.device)
        if until == "device":
            return [device_milliseconds(self.device, self.run) for _ in range(calls)]
        return [host_milliseconds(lambda: self.numbers(self.run()[0])) for _ in range(calls)]


def compiled(function):
    return torch.compile(function, dynamic=False)


class Session:
    """Answers requests; each public method is an "op"."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.batch = None
        self.contenders = {}
        self.buffers = {}

    def about(self):
        cuda = self.device.type == "cuda"
        return {
            "version": torch.__version__,
            "device": torch.cuda.get_device_name(self.device) if cuda else "cpu",
            "functions": {family: list(functions) for family, functions in FUNCTIONS.items()},
        }

    def load(self, files, step, threads=None):
        if threads is not None:
            torch.set_num_threads(threads)
        # Frees the previous batch first, because the device may not have room for both.
        self.batch = None
        self.release()
        self.batch = load(self.device, files, step)
        return {}

    def prepare(self, form, **request):
        self.contenders[form] = Contender(self.device, self.batch, form, **request)
        return {}

    def evaluate(self, form, files):
        return self.contenders[form].evaluate(files)

    def time(self, form, calls, until):
        return {"milliseconds": self.contenders[form].time(calls, until)}

    def release(self):
        self.contenders.clear()
        # Otherwise the number of compiled losses would reach a limit of torch.compile.
        torch._dynamo.reset()
        return {}

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


OPS = ("about", "load", "prepare", "evaluate", "time", "release", "copy")


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
