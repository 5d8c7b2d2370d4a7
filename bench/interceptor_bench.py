#!/usr/bin/env python3
"""Prints the interceptor's figures, a JSON object a line.

    interceptor_bench [--scale X] [--gpu-name NAME]

On fake CUDA libraries, as CI has them: how much of the matrix of small programs the ledger holds,
and what account mode adds to a call, in pairs of runs. On a node with a GPU: what
bench/interceptor_gpu measures. $RAVENSTORE_BIN names bazel-bin; else it is found from here.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/interceptor"), str(ROOT / "bench")]

import figures  # noqa: E402
from harness import Daemon, Job, Programs, eventually, guest, wrong  # noqa: E402

WAYS = ("static", "shared", "driver", "dlsym", "proc_1", "proc_2", "per_thread", "entry")
ON_GPU = (
    ("interceptor.step_slowdown", "x", 1.01),
    ("interceptor.yield_ms_per_gib", "ms/GiB", 50),
    ("interceptor.giveback_8gib_ms", "ms", 100),
)


def programs_folder():
    if "RAVENSTORE_BIN" in os.environ:
        return pathlib.Path(os.environ["RAVENSTORE_BIN"])
    # `bazel run` and bench/report start it from its runfiles or from bazel-bin.
    for folder in (pathlib.Path(sys.argv[0] + ".runfiles/ravenstore"), ROOT / "bazel-bin"):
        if (folder / "interceptor").exists():
            return folder
    sys.exit("interceptor_bench: build //bench:interceptor_bench first")


def captured(programs, jobs, daemon):
    """The share of the ways whose allocations are all in the ledger, and gone with the job."""
    good = 0
    for name in WAYS:
        right = True
        for end in ("quit", "kill"):
            with Job([str(jobs / f"job_{name}")], guest(programs, daemon.socket)) as job:
                held = job.ask("all")
                right = right and not wrong(held, daemon.held(job.pid))
                if end == "quit":
                    right = right and not wrong(job.ask("free"), daemon.held(job.pid))
                    job.quit()
                job.kill()
                pid = job.pid
                removed = eventually(lambda pid=pid: daemon.held(pid) is None, 5)
                right = right and bool(removed)
        good += right
    return good / len(WAYS)


def added(programs, jobs, daemon, scale):
    """Microseconds that each allocation and each free takes longer: the median of paired runs."""
    path = [str(jobs / "job_driver")]
    pairs = max(5, int(40 * scale))
    differences = []
    with Job(path, guest(programs, daemon.socket)) as under, Job(path, dict(os.environ)) as plain:
        for job in (under, plain):
            job.ask("churn 20000")
        for i in range(pairs):
            order = (under, plain) if i % 2 else (plain, under)
            ns = {job.pid: job.ask("churn 5000")["ns"] for job in order}
            differences.append((ns[under.pid] - ns[plain.pid]) / 2000)
    return statistics.median(differences)


def on_fakes(options, machine):
    folder = programs_folder()
    programs, fakes = Programs(folder), folder / "tests/fake_cuda"
    os.environ["LD_LIBRARY_PATH"] = str(fakes)
    with tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp") as work:
        os.environ["RAVENSTORE_FAKE_CUDA_SHARED"] = work + "/devices"
        flags = ["--backend", "host", "--device-total", "64MiB", "--pool-size", "64MiB"]
        with Daemon(programs, flags + ["--page", "16MiB"]) as daemon:
            jobs = folder / "tests/interceptor"
            share = captured(programs, jobs, daemon)
            name = "interceptor.captured_fraction"
            figures.emit(name, share, "", 1, machine, at_least=True)
            us = added(programs, jobs, daemon, options.scale)
            figures.emit("interceptor.added_us", round(us, 3), "us", 2, machine)
    for name, unit, target in ON_GPU:
        figures.emit(name, None, unit, target, machine, skipped="needs a GPU")


def on_gpu(machine):
    """Forwards the rows of bench/interceptor_gpu."""
    folder = programs_folder()
    with tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp") as work:
        subprocess.run(
            [str(ROOT / "bench/interceptor_gpu"), str(folder)],
            env=os.environ | {"OUT": work}, stdout=sys.stderr, check=False,
        )  # fmt: skip
        for row in json.loads(pathlib.Path(work, "figures.json").read_text()):
            if row["name"].startswith("interceptor."):
                print(json.dumps(row | {"bound": None, "machine": machine}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--gpu-name", default="no GPU")
    options = parser.parse_args()
    machine = figures.machine(options.gpu_name)
    if options.gpu_name == "no GPU":
        on_fakes(options, machine)
    else:
        on_gpu(machine)


if __name__ == "__main__":
    main()
