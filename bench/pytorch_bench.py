#!/usr/bin/env python3
"""What ravenstore.offload() costs and gives, on one GPU, beside what people use today.

    bench/pytorch_bench.py [--part costs,moving,check,curve] [--device cuda|cpu] [--size SIZE]

Needs a Python with PyTorch and the package with its native part. Each measurement is a process of
its own, since PyTorch's allocator and the budget stay for a process's life; within one the plain
steps run first and those under test after them, on the same machine and in the same minute. Prints
one JSON object a line, as bench/report does, and a table on stderr.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import time

import figures

figures.use_package()

from ravenstore._demo_model import Gpt, Shape  # noqa: E402

SIZES = {
    "medium": Shape(24, 1024, 16, length=1024, batch=16, vocabulary=50257),
    "small": Shape(6, 512, 8, length=512, batch=8, vocabulary=8192),
    "tiny": Shape(4, 256, 4, length=256, batch=16, vocabulary=512),
}
GIB = 1 << 30


class Trainer:
    """One model, its optimizer and its batch on the device."""

    def __init__(self, torch, options):
        self.torch, self.device, self.size = torch, options["device"], options["size"]
        torch.manual_seed(0)
        shape = SIZES[self.size]
        self.model = Gpt(shape).to(self.device)
        fused = {"fused": True} if self.device == "cuda" else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **fused)
        size = (shape.batch, shape.length)
        self.tokens = torch.randint(0, shape.vocabulary, size, device=self.device)
        if options.get("compiled"):
            for block in self.model.blocks:
                block.compile()

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def step(self, scope=contextlib.nullcontext):
        """(seconds, seconds of the forward pass, loss)"""
        torch = self.torch
        self.synchronize()
        begun = time.perf_counter()
        with (
            # On a CPU bfloat16 is slower by far.
            torch.autocast("cuda", torch.bfloat16, self.device == "cuda", cache_enabled=False),
            scope(),
        ):
            logits = self.model.logits(self.tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
            del logits
        self.synchronize() if self.split else None
        middle = time.perf_counter()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.synchronize()
        return time.perf_counter() - begun, middle - begun, loss.item()

    split = False

    def times(self, count, scope=contextlib.nullcontext):
        return [self.step(scope)[0] for _ in range(count)]


def link_rate(torch, device):
    """Bytes a second of one pinned copy to the device; 0 on the CPU."""
    if device != "cuda":
        return 0.0
    size = 256 << 20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(size / (time.perf_counter() - begun))
    return statistics.median(rates)


def pack_unpack_us(torch, ravenstore, device):
    """Microseconds of one pack and one unpack of a resident tensor, the hooks' own part."""
    from ravenstore.offload import MIN_BLOCK_BYTES, _here

    tensors = [torch.empty(1 << 20, dtype=torch.float32, device=device) for _ in range(64)]
    with ravenstore.offload():
        scope = _here().scopes[MIN_BLOCK_BYTES]
        packs, unpacks = [], []
        for _ in range(40):
            begun = time.perf_counter()
            saved = [scope.pack(tensor) for tensor in tensors]
            packs.append((time.perf_counter() - begun) / len(tensors))
            begun = time.perf_counter()
            views = [scope.unpack(one) for one in saved]
            unpacks.append((time.perf_counter() - begun) / len(tensors))
            del views, saved
    return (statistics.median(packs) + statistics.median(unpacks)) * 1e6


def worker(options):
    """One process's measurement; the result as a dictionary."""
    import torch

    if options.get("threads"):
        torch.set_num_threads(options["threads"])
    if options.get("deterministic"):
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    import ravenstore

    trainer = Trainer(torch, options)
    count = options["steps"]
    result = {}
    trainer.times(options["warmup"])
    trainer.split = True
    result["forward"] = statistics.median(trainer.step()[1] for _ in range(3))
    trainer.split = False
    if trainer.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    result["plain"] = statistics.median(trainer.times(count))
    if trainer.device == "cuda":
        result["plain_peak"] = torch.cuda.max_memory_allocated()
        result["base"] = torch.cuda.memory_allocated()
    result["link"] = link_rate(torch, trainer.device)
    if options.get("rival"):
        return {**result, **rival(torch, trainer, options)}
    if options.get("deterministic"):
        trainer = Trainer(torch, options)
        result["losses_plain"] = [trainer.step()[2] for _ in range(count)]
        trainer = Trainer(torch, options)
    if trainer.device == "cuda":
        torch.cuda.empty_cache()

    def scope():
        return ravenstore.offload(
            options["budget"], embedded=True, host_budget=options.get("host_budget")
        )

    result.update(offloaded(torch, ravenstore, trainer, scope, options))
    return result


def offloaded(torch, ravenstore, trainer, scope, options):
    """Steps under the allocator alone, if asked for, and under the scope."""
    result, count = {}, options["steps"]
    with scope():
        pass
    native = sys.modules["ravenstore._torch"]
    if options.get("allocator_only"):
        trainer.times(options["warmup"])
        native.reset_peaks(0)
        result["allocator"] = statistics.median(trainer.times(count))
        blocks = native.block_stats(0)
        result["waste"] = blocks["held_peak"] / max(1, blocks["used_peak"])
        result["pack_unpack_us"] = pack_unpack_us(torch, ravenstore, trainer.device)
    if options.get("deterministic"):
        result["losses"] = [trainer.step(scope)[2] for _ in range(count)]
    else:
        trainer.times(options["warmup"], scope)
    native.reset_peaks(0)
    if trainer.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = native.store_stats()
    result["all"] = trainer.times(count, scope)
    after = native.store_stats()
    result["offloaded"] = statistics.median(result["all"])
    blocks = native.block_stats(0)
    explained = ravenstore.explain()
    if trainer.device == "cuda":
        result["peak"] = torch.cuda.max_memory_allocated()
    result.update(
        bytes_out=(after["bytes_out"] - before["bytes_out"]) / count,
        bytes_in=(after["bytes_in"] - before["bytes_in"]) / count,
        misses=(after["misses"] - before["misses"]) / count,
        gets=(after["gets"] - before["gets"]) / count,
        saved=explained.live_bytes_peak,
        used_peak=blocks["used_peak"],
        held_peak=blocks["held_peak"],
        needed_peak=blocks["needed_peak"],
        created=blocks["created"],
        allocations=blocks["allocations"],
        explain=str(explained),
    )
    return result


def rival(torch, trainer, options):
    """Step and peak of what PyTorch brings itself."""
    if options["rival"] == "save_on_cpu":

        def scope():
            return torch.autograd.graph.save_on_cpu(pin_memory=trainer.device == "cuda")

    else:
        scope = contextlib.nullcontext
    if options["rival"] == "checkpoint":
        for block in trainer.model.blocks:
            block.forward = functools.partial(
                torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False
            )
    trainer.times(options["warmup"], scope)
    if trainer.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(trainer.times(options["steps"], scope))
    peak = torch.cuda.max_memory_allocated() if trainer.device == "cuda" else 0
    return {"offloaded": seconds, "peak": peak}


class Bench:
    """Starts the workers and prints what they find."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.machine = machine(arguments.device)
        self.base = {
            "device": arguments.device,
            "size": arguments.size,
            "steps": arguments.steps,
            "warmup": arguments.warmup,
            "threads": 0 if arguments.device == "cuda" else 1,
        }

    def run(self, **options):
        command = [sys.executable, __file__, "--worker", json.dumps({**self.base, **options})]
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        try:
            ended = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                timeout=self.arguments.limit,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{options}: took more than {self.arguments.limit} s", file=sys.stderr)
            return None
        if ended.returncode != 0:
            print(f"{options}: ended with {ended.returncode}", file=sys.stderr)
            return None
        result = json.loads(ended.stdout.strip().splitlines()[-1])
        shown = {
            name: round(value / GIB, 3) if isinstance(value, int) and value > 1 << 20 else value
            for name, value in result.items()
            if name not in ("explain", "all")
        }
        print(f"{options}: {shown}", file=sys.stderr)
        print(result.get("explain", ""), file=sys.stderr)
        return result

    def say(self, name, value, unit, target, ok, bound=None, **more):
        figures.tell(
            f"pytorch.{name}", value, unit, target, self.machine, bound=bound, ok=ok, **more
        )

    def ratio(self, name, value, most, bound=None):
        if value is None:
            return self.say(name, None, "ratio", f"<= {most}", False, bound)
        return self.say(name, round(value, 4), "ratio", f"<= {most}", value <= most, bound)

    def costs(self):
        for compiled in (False, True) if self.arguments.device == "cuda" else (False,):
            kind = "compiled" if compiled else "eager"
            found = self.run(budget=self.arguments.ample, compiled=compiled, allocator_only=True)
            if found is None:
                self.ratio(f"allocator_slowdown.{kind}", None, 1.01)
                continue
            self.ratio(f"allocator_slowdown.{kind}", found["allocator"] / found["plain"], 1.01)
            self.ratio(f"declined_slowdown.{kind}", found["offloaded"] / found["plain"], 1.01)
            self.ratio(f"allocator_waste.{kind}", found["waste"], 1.08)
            if not compiled:
                value = found["pack_unpack_us"]
                self.say("pack_unpack_us", round(value, 2), "us", "<= 5", value <= 5)

    def moving(self):
        ample = self.run(budget=self.arguments.ample, steps=2, warmup=1)
        if ample is None:
            return
        for percent in self.arguments.budgets:
            moved = ample["saved"] * (100 - percent) // 100
            found = self.run(budget=int(ample["needed_peak"] - moved))
            name = f"moving_vs_bound.{percent}"
            if found is None:
                self.ratio(name, None, 1.05)
                continue
            bound = found["plain"]
            if found["link"]:
                seconds = moved / found["link"]
                bound += max(0, seconds - found["forward"])
                bound += max(0, seconds - (found["plain"] - found["forward"]))
            self.ratio(name, found["offloaded"] / bound, 1.05, round(bound, 4))

    def check(self):
        ample = self.run(budget=self.arguments.ample, steps=2, warmup=1)
        for percent in self.arguments.budgets if ample else ():
            budget = int(ample["needed_peak"] - ample["saved"] * (100 - percent) // 100)
            found = self.run(budget=budget, deterministic=True, steps=5, warmup=1)
            equal = found is not None and found["losses"] == found["losses_plain"]
            self.say(f"losses_equal.{percent}", int(equal), "0 or 1", "1", equal)

    def curve(self):
        for name in ("checkpoint", "save_on_cpu"):
            found = self.run(rival=name)
            if found is not None:
                self.say(
                    f"curve.{name}_step_ms", round(found["offloaded"] * 1e3, 1), "ms", "", True
                )
                self.say(f"curve.{name}_peak_gib", round(found["peak"] / GIB, 2), "GiB", "", True)


def machine(device):
    if device != "cuda":
        return figures.machine("host backend")
    import torch

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--part", default="costs,moving,check")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--limit", type=float, default=200, help="seconds of one process")
    parser.add_argument("--budgets", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--ample", type=int, help="a budget in bytes in which everything stays")
    arguments = parser.parse_args()
    if arguments.worker:
        result = worker(json.loads(arguments.worker))
        print(json.dumps(result))
        return
    if arguments.device == "cpu":
        arguments.size = arguments.size or "tiny"
    arguments.size = arguments.size or "medium"
    arguments.budgets = arguments.budgets or [90, 75, 50, 25]
    arguments.ample = arguments.ample or (64 << 30 if arguments.device == "cuda" else 1 << 30)
    bench = Bench(arguments)
    if arguments.device == "cpu":
        # Times and peaks of a host backend say nothing of a GPU; whether losses are equal does.
        for name in (
            "allocator_slowdown",
            "declined_slowdown",
            "allocator_waste",
            "pack_unpack_us",
        ):
            bench.say(name, None, "", "", None, skipped="needs a GPU")
        bench.say("moving_vs_bound", None, "", "", None, skipped="needs a GPU")
        arguments.part = "check"
    for part in arguments.part.split(","):
        getattr(bench, part)()


if __name__ == "__main__":
    main()
