"""PyTorch jobs on a GPU next to the simulator: does a replay of a job's recording take its time?

    python3 bench/planner_jobs.py [--jobs unet,lengths] [--device cpu --small] [--steps 8]

Each job runs three times, a process each: plain, under ravenstore.offload() with a budget, and so
with $RAVENSTORE_RECORD (docs/TRACES.md). Its recording is replayed with the same budget and the
link that was measured. Prints figures as bench/report does, and keeps recordings in $OUT/recorded:

    planner.recorded_compute_JOB         compute of a recorded step over the plain step
    planner.simulated_over_measured_JOB  the replay's step over the measured one

Needs $RAVENSTORE_BIN (ravenstored, libravenstore.so, ravensim), and transformers for most jobs.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import figures
import planner_job_models

GIB = 1 << 30
# Bytes of the device for the store: little more than those with which each job trains
BUDGETS = {
    "unet": 10 * GIB,
    "lengths": 14 * GIB,
    "experts": 11 * GIB,
    "finetune": 63 * GIB,
    "finetune_kept": 38 * GIB,
    "lora": 43 * GIB,
}
SMALL_BUDGET = 96 << 20
ENDS_WITHIN_S = 300
FIRST_MEASURED = 3  # steps before it are warm-up


def step_times(options):
    """Seconds of each step of the job, in this process."""
    import torch

    scope = None
    if options["budget"]:
        import ravenstore

        def scope():
            return ravenstore.offload(device_budget=options["budget"], embedded=True)

        # Before the model: its weights are allocated from the store.
        with scope():
            pass
    step = planner_job_models.make(options["job"], options["device"], options["small"])
    times = []
    for _ in range(options["steps"]):
        began = time.perf_counter()
        step(scope)
        if options["device"] == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if options["device"] == "cuda" else 0
    if scope:
        import ravenstore

        print(ravenstore.explain(), file=sys.stderr)
    return {"times": times, "peak": peak}


def run(options, record=None):
    """step_times in a process of its own; None where it failed."""
    environment = dict(os.environ)
    if record:
        environment["RAVENSTORE_RECORD"] = str(record)
    command = [sys.executable, __file__, "--worker", json.dumps(options)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=ENDS_WITHIN_S,
        )
    except subprocess.TimeoutExpired:
        print(f"{options['job']}: no end within {ENDS_WITHIN_S} s", file=sys.stderr)
        return None
    sys.stderr.write(done.stderr[-3000:])
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else None


def record(job, options):
    """The recording, and what run() returned."""
    folder = pathlib.Path(os.environ.get("OUT", ".")) / "recorded"
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{job}.trace"
    with tempfile.TemporaryDirectory() as files:
        recorded = run(options, f"{files}/trace")
        # Each store of the process has a file, the one that starts the daemon too.
        largest = max(pathlib.Path(files).iterdir(), key=lambda file: file.stat().st_size)
        shutil.copy(largest, trace)
    return trace, recorded


def typical(times):
    return statistics.median(times[FIRST_MEASURED:])


def link_rates():
    """GB/s up and down, each alone. Without a measurement: the simulator's default."""
    bounds = subprocess.run(
        [figures.built("bench/print_link_bounds")], capture_output=True, text=True, check=False
    )
    found = figures.LINK.search(bounds.stdout)
    return (float(found[1]), float(found[2])) if found else (55.0, 55.0)


def per_step(told):
    """Means over the measured steps of a replay's JSON: what was recorded and what it stalled.
    Empty where a recording has too few."""
    # The first is before any step; the last is not whole.
    steps = range(FIRST_MEASURED + 1, len(told["recorded"]) - 1)
    if not steps:
        return {}
    means = {
        key: statistics.fmean(told["recorded"][i][key] for i in steps)
        for key in told["recorded"][0]
    }
    stalls = dict(enumerate(told["iteration_stall_s"]))
    return means | {"stall_s": statistics.fmean(stalls.get(i, 0.0) for i in steps)}


def tell(name, value, low, high, arguments, **detail):
    figures.tell(
        f"planner.{name}",
        value,
        "ratio",
        high,
        figures.machine(arguments.device_name),
        ok=None if value is None else low <= value <= high,
        **detail,
    )


def measure(job, arguments, rates):
    """Figures of one job."""
    budget = arguments.budget or (SMALL_BUDGET if arguments.small else BUDGETS[job])
    options = {
        "job": job,
        "device": arguments.device,
        "small": arguments.small,
        "steps": arguments.steps,
    }
    plain = run(options | {"budget": 0})
    offloaded = run(options | {"budget": budget})
    trace, recorded = record(job, options | {"budget": budget})
    told = figures.ravensim("run", trace, budget, *rates) if recorded else None
    means = per_step(told) if told else {}
    detail = {
        "plain_s": plain and typical(plain["times"]),
        "peak": plain and plain["peak"],
        "budget": budget,
        "measured_s": offloaded and typical(offloaded["times"]),
        "recorded_s": recorded and typical(recorded["times"]),
        "up": rates[0],
        "down": rates[1],
        **means,
    }
    compute = means["compute_s"] / detail["plain_s"] if plain and means else None
    simulated = means["compute_s"] + means["stall_s"] if means else None
    truth = simulated / detail["measured_s"] if simulated and offloaded else None
    tell(f"recorded_compute_{job}", compute, 0.97, 1.03, arguments, **detail)
    tell(f"simulated_over_measured_{job}", truth, 0.9, 1.1, arguments)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", default=",".join(BUDGETS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--budget", type=int, help="bytes, instead of each job's own")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(step_times(json.loads(arguments.worker))), flush=True)
        return
    arguments.device_name = next(iter(figures.gpu_names()), "no GPU")
    figures.use_package()
    os.environ["PYTHONPATH"] = f"{figures.ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}"
    rates = link_rates()
    for job in arguments.jobs.split(","):
        measure(job, arguments, rates)


if __name__ == "__main__":
    main()
