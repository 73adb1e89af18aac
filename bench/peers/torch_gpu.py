"""PyTorch's side of the GPU benchmark: every policy loss and KL estimator, eager and through torch.compile.

The formulas are in torch_losses.py. Nothing on the timed path reads a value back to the host.

Reads one JSON object a line and answers each with one, {"error": …} where it cannot, so that its runs can be
interleaved with another program's:

  {"op": "about"}                                                   versions, and whether torch.compile is there
  {"op": "evaluate", "family", "name", "args", "shape", "inputs"}   loss, metrics and gradient, in float64
  {"op": "prepare", "family", "name", "rows", "columns", "compiled"}    makes a contender ready, warmed up
  {"op": "time", "calls"}           milliseconds on the device of forward and backward, of each call
  {"op": "latency", "calls"}        milliseconds from the call until loss and metrics are in the host's memory
  {"op": "copy", "bytes"}           bytes per second within the device, each counted as read and as written
  {"op": "host_to_device", "bytes"} bytes per second from pinned memory

    torch_gpu.py [cuda:0|cpu]
"""

import sys
import time

import torch

from torch_losses import COLUMNS, FUNCTIONS, Batch
from torch_serve import serve

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda:0")


def evaluate(request):
    """In float64, to show that the formula is the same one, whatever float32 does to it."""
    torch.set_default_dtype(torch.float64)
    try:
        return evaluate_as_default(request)
    finally:
        torch.set_default_dtype(torch.float32)


def evaluate_as_default(request):
    rows, columns = request["shape"]
    inputs = request["inputs"]

    def column(name):
        # The digits name float32's values.
        values = torch.tensor(inputs[name], dtype=torch.float32) if name in inputs else None
        return None if values is None else values.double().reshape(rows, columns).to(device)

    def mask(name, *shape):
        return torch.tensor(inputs[name]).bool().reshape(*shape).to(device) if name in inputs else None

    batch = Batch(
        *(column(name) for name in COLUMNS),
        mask("action_mask", rows, columns),
        mask("expert_mask", rows),
        inputs.get("step", [0])[0],
    )
    batch.logprob.requires_grad_()
    absent = []
    if batch.expert is not None:
        absent = [kind for kind, there in (("usual/", ~batch.expert), ("expert/", batch.expert)) if not there.any()]
    loss, metrics = FUNCTIONS[request["family"]][request["name"]](batch, **request["args"])
    (grad,) = torch.autograd.grad(loss, batch.logprob)
    return {
        "loss": loss.item(),
        "metrics": {name: float(x) for name, x in metrics.items() if not name.startswith(tuple(absent))},
        "grad": grad.flatten().tolist(),
    }


def make_batch(rows, columns):
    """What the other side measures: one token in sixteen masked, every second row an expert's."""
    generator = torch.Generator(device).manual_seed(1)

    def uniform():
        return torch.rand((rows, columns), generator=generator, device=device)

    old = -3.0 * uniform()
    return Batch(
        logprob=(old + 0.4 * (uniform() - 0.5)).requires_grad_(),
        old_logprob=old,
        ref_logprob=old + 0.4 * (uniform() - 0.5),
        advantages=4.0 * uniform() - 2.0,
        mask=uniform() >= 1.0 / 16.0,
        expert=torch.arange(rows, device=device) % 2 == 1,
        step=1,
    )


def synchronize():
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_milliseconds(work):
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


class Contender:
    """One function over one batch; batches are kept from one contender to the next of the same shape."""

    batches = {}

    def __init__(self, family, name, rows, columns, compiled):
        if (rows, columns) not in self.batches:
            self.batches.clear()
            self.batches[rows, columns] = make_batch(rows, columns)
        batch = self.batches[rows, columns]
        function = FUNCTIONS[family][name]

        def tensors_of(*tensors):
            loss, metrics = function(Batch(*tensors, step=1))
            return loss, tuple(metrics.values())

        if compiled:
            torch._dynamo.reset()
            tensors_of = torch.compile(tensors_of, dynamic=False, fullgraph=True)
        inputs = [getattr(batch, column) for column in COLUMNS] + [batch.mask, batch.expert]
        self.forward = lambda: tensors_of(*inputs)
        self.logprob = batch.logprob
        for _ in range(3):
            self.values()
        synchronize()

    def run(self):
        loss, metrics = self.forward()
        torch.autograd.grad(loss, self.logprob)
        return loss, metrics

    def values(self):
        loss, metrics = self.run()
        return torch.stack([loss.detach(), *(metric.to(loss.dtype) for metric in metrics)]).tolist()

    def time(self, calls):
        self.run()
        synchronize()
        return [device_milliseconds(self.run) for _ in range(calls)]

    def latency(self, calls):
        synchronize()
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            self.values()
            times.append((time.perf_counter() - start) * 1e3)
        return times


def compile_problem():
    """Why torch.compile cannot be used; None where it can."""
    if not hasattr(torch, "compile"):
        return f"PyTorch {torch.__version__} has no torch.compile"
    try:
        torch.compile(lambda x: (x * 2.0).sum())(torch.ones(64, device=device))
    except Exception as error:
        return f"torch.compile failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return None


def copy_rate(source, target, bytes_moved):
    copies = 10
    target.copy_(source, non_blocking=True)
    synchronize()

    def copy_all():
        for _ in range(copies):
            target.copy_(source, non_blocking=True)

    return bytes_moved * copies / (device_milliseconds(copy_all) * 1e-3)


class Session:
    def __init__(self):
        self.contender = None
        self.buffers = {}

    def buffer(self, kind, size):
        """Kept, as pinning memory takes longer than copying it."""
        if (kind, size) not in self.buffers:
            on_host = kind == "pinned"
            self.buffers[kind, size] = torch.full(
                (size,),
                7,
                dtype=torch.uint8,
                device="cpu" if on_host else device,
                pin_memory=on_host and device.type == "cuda",
            )
        return self.buffers[kind, size]

    def answer(self, request):
        op = request["op"]
        if op == "about":
            return {
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
                "cuda": torch.version.cuda,
                "compileProblem": compile_problem(),
            }
        if op == "evaluate":
            return evaluate(request)
        if op == "prepare":
            self.contender = None
            self.contender = Contender(
                request["family"], request["name"], request["rows"], request["columns"], request["compiled"]
            )
            return {}
        if op == "time":
            return {"milliseconds": self.contender.time(request["calls"])}
        if op == "latency":
            return {"milliseconds": self.contender.latency(request["calls"])}
        size = request["bytes"]
        target = self.buffer("target", size)
        if op == "copy":
            return {"bytesPerSecond": copy_rate(self.buffer("source", size), target, 2 * size)}
        if op == "host_to_device":
            return {"bytesPerSecond": copy_rate(self.buffer("pinned", size), target, size)}
        raise ValueError(f"no op named {op}")


if __name__ == "__main__":
    serve(Session().answer)
