#!/usr/bin/env python3
"""Prints the elastic mode's figures, a JSON object a line.

    elastic_bench.py [--scale X] [--gpu-name NAME] [--python PYTHON]

On a node with a GPU an unmodified PyTorch training (bench/elastic_job.py) runs alone and under
ravenrun --mode elastic with budgets of 100 to 60% of the peak that plain PyTorch allocates; without
one only what the plan's replay says. $RAVENSTORE_BIN names bazel-bin, or a folder with ravensim's
neighbours, libravenstore_intercept.so and libravenstore_elastic.so.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import figures  # noqa: E402

# From the third step on: by then the sequence is known.
LEARNING = 2
CONTEXT = 2 << 30  # of a budget, for what is not PyTorch's tensors
SLOWDOWNS = {90: 1.10, 80: 1.5, 60: 2.8}
ON_GPU = (
    ("elastic.resident_slowdown", 1.02),
    *((f"elastic.slowdown_{share}", target) for share, target in SLOWDOWNS.items()),
)
NOT_YET = (
    "elastic.resident_slowdown_compiled", "elastic.launch_loop_slowdown", "elastic.vs_bound_worst",
    "elastic.remap_kernel_slowdown", "elastic.empty_ms", "elastic.return_ms",
    "elastic.two_jobs_vs_serial", "elastic.wrong_guess", "elastic.table", "elastic.samples",
)  # fmt: skip


def run(python, options, budget=None, elastic=True):
    """What the job says of itself; None: it failed."""
    job = [python, str(ROOT / "bench/elastic_job.py"), "--steps", str(options.steps)]
    environment = dict(os.environ)
    folder = os.environ.get("RAVENSTORE_BIN")
    if folder and (pathlib.Path(folder) / "libravenstore_intercept.so").exists():
        environment["RAVENSTORE_LIB"] = folder
    if elastic:
        limit = [] if budget is None else ["--budget", f"{budget}B"]
        job = [str(ROOT / "deploy/ravenrun"), "--mode", "elastic", "--report", *limit, *job]
    done = subprocess.run(job, env=environment, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr[-2000:])
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if done.returncode == 0 and lines else None


def step(result):
    return statistics.median(result["seconds"][LEARNING:])


def on_gpu(python, options, machine):
    plain = run(python, options, elastic=False)
    if plain is None:
        for name, target in ON_GPU:
            figures.tell(name, None, "x", target, machine, skipped="the plain job failed")
        return
    for name, target in ON_GPU:
        share = int(name.rsplit("_", 1)[1]) if name[-1].isdigit() else None
        budget = None if share is None else CONTEXT + plain["peak"] * share // 100
        result = run(python, options, budget)
        if result is None:
            figures.tell(name, None, "x", target, machine, skipped="the job failed", ok=False)
            continue
        same = result["losses"] == plain["losses"]
        figures.tell(
            name, step(result) / step(plain), "x", target, machine, bound=step(plain) * 1e3,
            detail=f"losses {'equal' if same else 'DIFFER'}, {result['allocator']}",
            **({} if same else {"ok": False}),
        )  # fmt: skip


def replayed(machine):
    """The worst of the plan's replays on the traces that it was tuned on, 90 to 50%."""
    done = subprocess.run(
        [figures.built("bench/elastic_replay"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    worst = max(json.loads(done.stdout), key=lambda one: one["of_bound"])
    figures.tell(
        "elastic.plan_vs_bound_worst", worst["of_bound"], "x", 1.15, machine,
        detail=f"{worst['trace']} at {worst['percent']}%, replayed",
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--gpu-name", default="no GPU")
    parser.add_argument("--python", default="python3")
    options = parser.parse_args()
    options.steps = max(LEARNING + 2, int(8 * options.scale))
    machine = figures.machine(options.gpu_name)
    replayed(machine)
    if options.gpu_name == "no GPU":
        for name, target in ON_GPU:
            figures.tell(name, None, "x", target, machine, skipped="needs a GPU")
    else:
        on_gpu(options.python, options, machine)
    for name in NOT_YET:
        figures.tell(name, None, "", None, machine, skipped="no measurement of it yet")


if __name__ == "__main__":
    main()
