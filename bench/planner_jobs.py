"""PyTorch jobs on a GPU next to the simulator: does a replay of a job's recording take its time?

    python3 bench/planner_jobs.py [--jobs unet,lengths] [--device cpu --small] [--steps 8]

Each job runs three times, a process each: plain, under ravenstore.offload() with a budget, and so
with $RAVENSTORE_RECORD (docs/TRACES.md). One that generates keeps its cache in a store instead. Its
recording is replayed with the same budget and the link that was measured; that of a job that is
kept back is not. Prints figures as bench/report does, and keeps recordings in $OUT/recorded:

    planner.recorded_compute_JOB         compute of a recorded step over the plain step
    planner.simulated_over_measured_JOB  the replay's step over the measured one

Needs $RAVENSTORE_BIN (ravenstored, libravenstore.so, ravensim), and transformers for most jobs.
"""

import argparse
import contextlib
import importlib
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

GIB = 1 << 30
# Bytes of the device for the store: little more than those with which each job trains
BUDGETS = {
    "unet": 10 * GIB,
    "lengths": 14 * GIB,
    "experts": 11 * GIB,
    "finetune": 63 * GIB,
    "lora": 43 * GIB,
}
# Of the others: the first of these parts of the plain run's peak with which a job trains.
SHARES = (0.6, 0.75, 0.9)
# Of the job whose cache is the store's: three quarters of the 1.25 GiB of its keys and values
CACHE_BUDGETS = {"generate": 960 << 20}
# Kept back: chosen before they were recorded, and scored in the final table alone
KEPT = ("accumulate", "gan", "lora_two", "speech")
JOBS = (*BUDGETS, *CACHE_BUDGETS, "convnext", "finetune_kept", "finetune_long")
SMALL_BUDGETS = (96 << 20, 256 << 20)
SMALL_CACHE_BUDGETS = (20 << 20,)
HOST_POOL = 72 * GIB
FIRST_MEASURED = 3  # steps before it are warm-up


def module_of(job):
    if job in CACHE_BUDGETS:
        return "planner_generation"
    return "planner_jobs_kept" if job in KEPT else "planner_job_models"


def budgets_of(job, arguments, plain):
    """Those to try, in this order."""
    if arguments.budget:
        return (arguments.budget,)
    if arguments.small:
        return SMALL_CACHE_BUDGETS if job in CACHE_BUDGETS else SMALL_BUDGETS
    if job in BUDGETS or job in CACHE_BUDGETS:
        return ((BUDGETS | CACHE_BUDGETS)[job],)
    return tuple(int(share * plain["peak"]) >> 21 << 21 for share in SHARES) if plain else ()


def step_times(options):
    """Seconds of each step of the job, in this process."""
    import torch

    torch.manual_seed(0)
    job = options["job"]
    memory = None if job in CACHE_BUDGETS else contextlib.nullcontext
    if options["budget"]:
        # Before the model: its weights are allocated from the store.
        memory = store_memory(job, options)
    step = getattr(importlib.import_module(module_of(job)), job)(
        options["device"], options["small"]
    )
    times, page = [], None
    for _ in range(options["steps"]):
        began = time.perf_counter()
        step(memory)
        if options["device"] == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if options["device"] == "cuda" else 0
    if options["budget"]:
        import ravenstore

        outcome = memory.stats() if job in CACHE_BUDGETS else ravenstore.explain()
        print(outcome, file=sys.stderr)
        with ravenstore.Store.connect(embedded=True) as store:
            page = store.stats().page_bytes
    return {"times": times, "peak": peak, "page": page}


def store_memory(job, options):
    """What a step of the job takes: a function for a scope, or a store."""
    import ravenstore
    from ravenstore import embedded

    if options["device"] == "cuda":
        embedded.start(pool_size=HOST_POOL)
    budget = options["budget"]
    if job in CACHE_BUDGETS:
        return ravenstore.Store.connect(embedded=True, device_budget=budget)

    def scope():
        return ravenstore.offload(device_budget=budget, embedded=True)

    with scope():
        pass
    return scope


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
            timeout=options["ends_within_s"],
        )
    except subprocess.TimeoutExpired:
        print(f"{options['job']}: no end within {options['ends_within_s']} s", file=sys.stderr)
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


def per_step(outcome, steps):
    """Means over the measured steps of a replay's JSON: what was recorded and what it stalled.
    Empty where a recording has too few. `steps`: that were run."""
    # A step with several backward passes is as many iterations of the recording.
    passes = max(1, round((len(outcome["recorded"]) - 1) / steps))
    # The first is before any step; the last is not whole.
    measured = range((FIRST_MEASURED + 1) * passes, len(outcome["recorded"]) - 1)
    if not measured:
        return {}
    means = {
        key: passes * statistics.fmean(outcome["recorded"][i][key] for i in measured)
        for key in outcome["recorded"][0]
    }
    stalls = dict(enumerate(outcome["iteration_stall_s"]))
    return means | {"stall_s": passes * statistics.fmean(stalls.get(i, 0.0) for i in measured)}


def emit(name, value, low, high, arguments, **detail):
    figures.emit(
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
    options = {
        "job": job,
        "device": arguments.device,
        "small": arguments.small,
        "steps": arguments.steps,
        "ends_within_s": arguments.ends_within,
    }
    plain = run(options | {"budget": 0})
    budget, offloaded = 0, None
    for budget in budgets_of(job, arguments, plain):
        offloaded = run(options | {"budget": budget})
        if offloaded:
            break
    recorded, means = None, {}
    if offloaded:
        trace, recorded = record(job, options | {"budget": budget})
    if recorded and job not in KEPT:
        outcome = figures.ravensim("run", trace, budget, *rates, page=recorded["page"])
        means = per_step(outcome, arguments.steps) if outcome else {}
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
    emit(f"recorded_compute_{job}", compute, 0.97, 1.03, arguments, **detail)
    emit(f"simulated_over_measured_{job}", truth, 0.9, 1.1, arguments)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--budget", type=int, help="bytes, instead of each job's own")
    parser.add_argument("--ends-within", type=float, default=300, help="seconds, each process")
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
