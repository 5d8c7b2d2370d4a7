#!/usr/bin/env python3
"""Costs and benefits of ravenstore.offload() on one GPU, compared with what people use today.

    bench/pytorch_bench.py [--part PART,...] [--device cuda|cpu] [--size SIZE] [--limit SECONDS]

    costs     allocator_slowdown, declined_slowdown, allocator_waste, pack_unpack_us
    graphs    allocator_slowdown under reduce-overhead: CUDA graphs of torch.compile are captured
              with the allocator in place
    moving    moving_vs_bound of gpt at each of --budgets
    tight     moving_vs_bound of --models at 1.3 times the memory in use at the same time
    record    a trace of what the store sees of each of --jobs, eager and compiled by block, in
              $OUT/recorded
    check     correctness of --jobs at each of --shares of what is saved, --kinds eager and
              compiled by block: losses and gradients of --check-steps steps against plain's,
              bit for bit. The budget comes from what the deterministic run itself holds. It is
              never less than 1.05 times what is in use at the same time. It is raised by parts of
              that, and says so, where some block finds no addresses in one piece
    smallest  smallest_budget of --models: one process a try, --tries of them; a budget counts if
              none above it failed
    curve     step over live and physical peak, against PyTorch's own means: a table on stderr, a
              picture in $OUT/curve.svg, curve_vs_envelope, peak_at_plain_speed. One meter looks
              each half millisecond and counts what is parked on the device. Plain, checkpoint each
              1 to 4 blocks, SAC, save_on_cpu; the whole model compiled, with
              activation_memory_budget by 0.1 and with enable_activation_offloading; ours at
              --budgets, with and without states, and a line between two budgets
    largest   the largest batch and model (largest_depth.MODEL.WAY.SLOWDOWN) of --models within a
              slowdown, against rivals': the search doubles and then bisects, --tries a way; a
              larger model's plain time is the line through two that fit

Needs a Python with PyTorch and the package with its native part. Each measurement is a process of
its own, since PyTorch's allocator and the budget stay for a process's life; within one the plain
steps run first and those under test after them, on the same machine and in the same minute. Prints
one JSON object a line as soon as it is known, as bench/report does, and what each process said on
stderr. A part that reaches its --limit says of the rest that it was skipped. On a CPU, against the
host backend, times say nothing: without --part only `check` runs there.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import figures
import pytorch_check
import pytorch_costs
import pytorch_curve
import pytorch_limits
import pytorch_record
import pytorch_rivals

GIB = 1 << 30
# What a measuring process runs, by its theme.
WORKS = {
    "costs": pytorch_costs.work,
    "check": pytorch_check.work,
    "record": pytorch_record.work,
    "curve": pytorch_rivals.work,
    "smallest": pytorch_limits.work_smallest,
    "largest": pytorch_limits.work_largest,
}
PARTS = {
    "costs": pytorch_costs.costs,
    "graphs": pytorch_costs.graphs,
    "moving": pytorch_costs.moving,
    "tight": pytorch_costs.tight,
    "check": pytorch_check.check,
    "smallest": pytorch_limits.smallest,
    "curve": pytorch_curve.curve,
    "largest": pytorch_limits.largest,
    "record": pytorch_record.record,
}
JOBS = ["gpt", "gpt2", "bert", "resnet50", "whisper", "lora"]
# What each part's figures are called, for where it does not run.
FIGURES = {
    "costs": ("allocator_slowdown", "declined_slowdown", "allocator_waste", "pack_unpack_us"),
    "graphs": ("allocator_slowdown.reduce_overhead",),
    "moving": ("moving_vs_bound",),
    "tight": tuple(f"moving_vs_bound.{model}" for model in JOBS),
    "check": ("correctness",),
    "smallest": ("smallest_budget",),
    "curve": ("curve_vs_envelope", "peak_at_plain_speed"),
    "largest": ("largest_batch", "largest_model"),
    "record": ("recorded",),
}
NEEDS = {"gpt2": "transformers", "bert": "transformers", "whisper": "transformers"}
NEEDS["resnet50"] = "torchvision"


class Bench:
    """Starts the measuring processes, within a part's limit, and prints what they find.

    Threads: run, stream and say may be called from several.
    """

    def __init__(self, arguments):
        self.arguments = arguments
        self.machine = machine(arguments.device)
        self.ample = arguments.ample
        self.deadline = 0.0
        self._printing = threading.Lock()
        self.base = {
            "device": arguments.device,
            "size": arguments.size,
            "kind": "eager",
            "steps": arguments.steps,
            "warmup": arguments.warmup,
            "threads": 0 if arguments.device == "cuda" else 1,
            "daemon": daemon_options(arguments),
        }

    def begin(self, part):
        self.deadline = time.monotonic() + self.arguments.limit
        PARTS[part](self)

    def left(self):
        """Seconds until the part's limit."""
        return self.deadline - time.monotonic()

    def stream(self, theme, alone=True, **options):
        """Yields each result of one process as it comes; none where there is no time for it. One
        that measures many things, not one alone, may take all of the part's time."""
        seconds = min(self.arguments.process_limit, self.left()) if alone else self.left()
        if seconds <= 1:
            return
        command = [sys.executable, __file__, "--worker", theme]
        environment = {
            **os.environ,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            # Nothing is chosen by timing it: two processes would choose differently.
            "TORCHINDUCTOR_DETERMINISTIC": "1" if theme == "check" else "0",
        }
        begun = time.monotonic()
        with subprocess.Popen(
            [*command, json.dumps({**self.base, **options})],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            for line in process.stdout:
                if line.startswith("{") and line.endswith("\n"):
                    result = json.loads(line)
                    self.note({"theme": theme, **options}, result, time.monotonic() - begun)
                    yield result
            timer.cancel()
        if process.returncode != 0:
            self.note(
                {"theme": theme, **options},
                {"ended with": process.returncode},
                time.monotonic() - begun,
            )

    def run(self, theme, **options):
        """The last result of one process, which has all of those before it; None without any."""
        result = None
        for found in self.stream(theme, **options):
            result = found
        return result

    def note(self, options, result, seconds):
        """What a process said, for people."""
        shown = {
            name: round(value / GIB, 3) if isinstance(value, int) and value > 1 << 20 else value
            for name, value in result.items()
            if name not in ("explain", "all", "plain", "ours") or isinstance(value, float)
        }
        with self._printing:
            print(f"{options} after {seconds:.1f} s: {shown}", file=sys.stderr)
            if "explain" in result:
                print(result["explain"], file=sys.stderr, flush=True)

    def say(self, name, value, unit, target, ok, *, bound=None, **more):
        with self._printing:
            figures.emit(
                f"pytorch.{name}", value, unit, target, self.machine, bound=bound, ok=ok, **more
            )

    def ratio(self, name, value, most, **more):
        self.say(name, round(value, 4), "ratio", most, value <= most, **more)

    def miss(self, *names):
        """Of figures that were not had: for want of time, or since a process failed."""
        why = f"the part's limit of {self.arguments.limit:g} s"
        for name in names:
            if self.left() <= 1:
                self.say(name, None, "", None, None, skipped=why)
            else:
                self.say(name, None, "", None, False, failed="its process gave no result")

    def skip(self, why, *names):
        for name in names:
            self.say(name, None, "", None, None, skipped=why)

    def lacking(self, job):
        """Why a job cannot run for want of a module; empty where it can."""
        module = NEEDS.get(job)
        if module is None or importlib.util.find_spec(module) is not None:
            return ""
        return f"needs {module}: pip install {module}"


def machine(device):
    if device != "cuda":
        return figures.machine("host backend")
    name = next(iter(figures.gpu_names()), "a GPU")
    return f"{name}, torch {importlib.metadata.version('torch')}"


def daemon_options(arguments):
    """Of each process's private daemon: pools small enough that several fit into host memory."""
    flags = ["--page", arguments.page] if arguments.page else []
    if arguments.device == "cuda":
        return {"pool_size": 24 * GIB, "flags": flags}
    sizes = {"device_total": 2 * GIB, "pool_size": 2 * GIB}
    return {"backend": "host", "flags": flags, **sizes}


def run_worker(theme, options):
    """One measuring process: prints what it finds."""
    figures.use_package()
    import torch

    if options.get("threads"):
        torch.set_num_threads(options["threads"])
    for result in WORKS[theme](options):
        print(json.dumps(result), flush=True)


def numbers(text):
    return [int(part) for part in text.split(",")]


def words(text):
    return text.split(",")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=words, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", choices=["medium", "tiny"])
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600, help="seconds of each part")
    parser.add_argument("--process-limit", type=float, default=200, help="seconds of one process")
    parser.add_argument("--budgets", type=numbers, default=[90, 75, 50, 25])
    parser.add_argument("--page", help="of the private daemons; default: as they choose")
    parser.add_argument("--ample", type=int, help="a budget in bytes in which everything stays")
    parser.add_argument("--parallel", type=int, help="processes at once where no time is measured")
    group = parser.add_argument_group("check and record")
    group.add_argument("--check-steps", type=int)
    group.add_argument("--jobs", type=words, default=JOBS)
    group.add_argument(
        "--kinds", type=words, help="eager, compiled (by block); of costs and curve, too"
    )
    group.add_argument("--shares", type=numbers, default=[100, 75, 50, 25])
    group = parser.add_argument_group("smallest, tight, largest and curve")
    group.add_argument("--models", type=words, default=["gpt", "resnet50"])
    group.add_argument("--axes", type=words, default=["batch", "depth"])
    group.add_argument("--tries", type=int, default=8, help="of one search")
    group.add_argument("--plot", help="the curve's picture; default: curve.svg beside stdout's")
    arguments = parser.parse_args()
    gpu = arguments.device == "cuda"
    arguments.size = arguments.size or ("medium" if gpu else "tiny")
    arguments.page = arguments.page or ("" if gpu else "2MiB")
    arguments.ample = arguments.ample or (64 * GIB if gpu else GIB)
    arguments.check_steps = arguments.check_steps or (50 if gpu else 5)
    arguments.kinds = arguments.kinds or (["eager", "compiled"] if gpu else ["eager"])
    arguments.parallel = arguments.parallel or (2 if gpu else 1)
    arguments.plot = arguments.plot or str(pathlib.Path(os.environ.get("OUT", ".")) / "curve.svg")
    return arguments


def main():
    if sys.argv[1:2] == ["--worker"]:
        run_worker(sys.argv[2], json.loads(sys.argv[3]))
        return
    arguments = parse()
    bench = Bench(arguments)
    for part in arguments.part or PARTS:
        if arguments.part or arguments.device == "cuda" or part == "check":
            bench.begin(part)
        else:
            bench.skip("needs a GPU", *FIGURES[part])


if __name__ == "__main__":
    main()
