#!/usr/bin/env python3
"""Prints the elastic mode's figures, a JSON object a line.

    elastic_bench.py [--scale X] [--gpu-name NAME] [--python PYTHON] [--programs A,B] [--compile]
                     [--without-idle] [--record FOLDER]

On a node with a GPU unmodified PyTorch trainings (bench/elastic_models.py) run alone and under
ravenrun --mode elastic with budgets of 100 to 60% of the peak that plain PyTorch allocates; without
one only what the plan's replay says. $RAVENSTORE_BIN names bazel-bin, or a folder with ravensim's
neighbours, libravenstore_intercept.so and libravenstore_elastic.so.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import figures  # noqa: E402

# From the fourth step on: by then the sequence is known.
LEARNING = 3
# Figures of their own, of the first program.
SLOWDOWNS = {100: ("elastic.resident_slowdown", 1.02), 90: ("elastic.slowdown_90", 1.10),
             80: ("elastic.slowdown_80", 1.5), 60: ("elastic.slowdown_60", 2.8)}  # fmt: skip
PROGRAMS = ("gpt-large", "gpt2", "bert", "resnet50", "whisper", "alexnet")
SHARES = (100, 90, 80, 60)
LAUNCHES = ("elastic.launch_loop_slowdown", 1.8)
IDLE = (("elastic.empty_ms", 1500), ("elastic.return_ms", 1000))
IDLE_GIB = 30
EMPTY = 256 << 20  # of the device's bytes: no more is left than the context's and the driver's
NOT_YET = (
    "elastic.vs_bound_worst", "elastic.remap_kernel_slowdown", "elastic.two_jobs_vs_serial",
    "elastic.wrong_guess", "elastic.samples",
)  # fmt: skip
VARYING = {"alexnet"}  # as bench/elastic_models.py says
ENOUGH = re.compile(r"budget of ([0-9.]+) GiB")


def environment():
    """Where the interceptor is, if all that was built lies in one folder."""
    made = dict(os.environ)
    folder = os.environ.get("RAVENSTORE_BIN")
    if folder and (pathlib.Path(folder) / "libravenstore_intercept.so").exists():
        made["RAVENSTORE_LIB"] = folder
    return made


RAVENRUN = (str(ROOT / "deploy/ravenrun"), "--mode", "elastic")


def run(python, options, program, budget=None, elastic=True, more=()):
    """What the job says of itself, with the budget that would have been enough; None: it failed."""
    job = [python, str(ROOT / "bench/elastic_job.py"), "--steps", str(options.steps)]
    job += ["--model", program, *more]
    if elastic:
        limit = [] if budget is None else ["--budget", f"{budget}B"]
        if options.record:
            limit += ["--record", f"{options.record}/{program}.trace"] if budget is None else []
        job = [*RAVENRUN, "--report", *limit, *job]
    done = subprocess.run(job, env=environment(), capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if line.startswith("ravenrun: ")]
    print(f"{program} {budget}: " + "\n".join(told or [done.stderr[-2000:]]), file=sys.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        return None
    enough = ENOUGH.search(done.stderr)
    return {**json.loads(lines[-1]), "enough": float(enough[1]) * 2**30 if enough else None}


def step(result):
    return statistics.median(result["seconds"][LEARNING:])


def tell(name, target, result, plain, machine):
    if result is None:
        return figures.tell(name, None, "x", target, machine, skipped="the job failed", ok=False)
    ratio = step(result) / step(plain)
    return figures.tell(
        name, ratio, "x", target, machine, bound=step(plain) * 1e3,
        detail=f"plain {step(plain) * 1e3:.1f} ms, {plain['peak'] / 2**30:.1f} GiB",
        ok=target is None or ratio <= target,
    )  # fmt: skip


def one_program(python, options, program, machine):
    """Its row of the table: 100% is the peak that plain PyTorch allocates, and beside it the job
    has what the process holds besides, as the run without a budget says."""
    plain = run(python, options, program, elastic=False)
    resident = plain and run(python, options, program)
    for share in SHARES:
        name, target = f"elastic.table.{program}_{share}", None
        if program == PROGRAMS[0]:
            name, target = SLOWDOWNS[share]
        if plain is None:
            figures.tell(name, None, "x", target, machine, skipped="the plain job failed", ok=False)
            continue
        result = resident
        if share < 100 and resident:
            result = run(python, options, program, budget_of(plain, resident, share))
        tell(name, target, result, plain, machine)
    if plain and resident and program not in VARYING:
        same_losses(python, options, program, budget_of(plain, resident, 80), machine)


def budget_of(plain, resident, share):
    return int(resident["enough"] - plain["peak"] * (100 - share) / 100)


def same_losses(python, options, program, budget, machine):
    """With deterministic kernels, which make some programs slower."""
    exact = ("--deterministic",)
    plain = run(python, options, program, elastic=False, more=exact)
    result = run(python, options, program, budget, more=exact)
    same = bool(plain and result and plain["losses"] == result["losses"])
    figures.tell(f"elastic.same_losses.{program}", int(same), "", 1, machine, at_least=True)


def on_gpu(python, options, machine):
    launches(machine)
    if not options.without_idle:
        idle(python, machine)
    for program in options.programs.split(","):
        one_program(python, options, program, machine)
    if options.compile:
        compiled = ("--compile",)
        plain = run(python, options, PROGRAMS[0], elastic=False, more=compiled)
        result = plain and run(python, options, PROGRAMS[0], more=compiled)
        name = "elastic.resident_slowdown_compiled"
        tell(name, 1.02, result, plain, machine)


def launches(machine):
    """Alone and under ravenrun in turn: the least of three each."""
    loop = figures.built("bench/launch_loop")
    taken = {(): [], RAVENRUN: []}
    for _ in range(3):
        for prefix, values in taken.items():
            done = subprocess.run(
                [*prefix, loop], env=environment(), capture_output=True, text=True, check=True
            )
            values.append(float(done.stdout))
    plain, elastic = (min(values) for values in taken.values())
    name, target = LAUNCHES
    figures.tell(name, elastic / plain, "x", target, machine, bound=plain)


class IdleJob:
    """bench/elastic_idle.py with a daemon of its own."""

    def __init__(self, python, folder):
        self.socket = f"{folder}/s"
        self.daemon = subprocess.Popen(
            [figures.built("daemon/ravenstored"), "--backend", "cuda", "--socket", self.socket,
             "--pool-size", "64MiB"], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not os.path.exists(self.socket) and self.daemon.poll() is None:
            time.sleep(0.05)
        program = [python, str(ROOT / "bench/elastic_idle.py"), "--gib", str(IDLE_GIB)]
        self.job = subprocess.Popen(
            [*RAVENRUN, "--socket", self.socket, *program], env=environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.job.stdout.readline()

    def ask(self, word):
        self.job.stdin.write(word + "\n")
        self.job.stdin.flush()
        return float(self.job.stdout.readline())

    def ctl(self, *words):
        program = figures.built("client/ctl/ravenctl")
        return subprocess.run(
            [program, "--socket", self.socket, *words], capture_output=True, text=True, check=True
        ).stdout

    def jobs(self):
        return json.loads(self.ctl("clients", "--json"))["legacy_jobs"]

    def held(self):
        return sum(device["kinds"]["vmm"] for one in self.jobs() for device in one["devices"])

    def end(self):
        for process in (self.job, self.daemon):
            process.terminate()
            process.wait()


def idle(python, machine):
    """The second time: the first has pinned the host's memory."""
    with tempfile.TemporaryDirectory() as folder:
        job = IdleJob(python, folder)
        try:
            number = str(job.jobs()[0]["client"])
            hot = min(job.ask("hot") for _ in range(5))
            emptied, returned = [], []
            whole = job.held()
            for _ in range(2):
                began = time.perf_counter()
                job.ctl("pause", number)
                while job.held() > EMPTY:
                    time.sleep(0.005)
                emptied.append((time.perf_counter() - began) * 1e3)
                job.ctl("resume", number)
                began = time.perf_counter()
                while job.ask("hot") > 1.5 * hot and time.perf_counter() - began < 20:
                    pass
                returned.append((time.perf_counter() - began) * 1e3)
                while job.held() < 0.9 * whole and time.perf_counter() - began < 30:
                    wrong = job.ask("check")
            wrong = job.ask("check")
        finally:
            job.end()
    for (name, target), values in zip(IDLE, (emptied, returned), strict=True):
        figures.tell(
            name, values[1], "ms", target, machine,
            detail=f"{IDLE_GIB} GiB; the first time {values[0]:.0f}; {wrong:.0f} tensors wrong",
            **({} if wrong == 0 else {"ok": False}),
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
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--compile", action="store_true", help="also a compiled model, minutes")
    parser.add_argument("--without-idle", action="store_true", help="no job of 30 GiB is emptied")
    parser.add_argument("--record", help="a folder: what the runs without a budget do goes there")
    options = parser.parse_args()
    options.steps = max(LEARNING + 3, int(10 * options.scale))
    machine = figures.machine(options.gpu_name)
    replayed(machine)
    if options.gpu_name == "no GPU":
        compiled = ("elastic.resident_slowdown_compiled", 1.02)
        for name, target in (*SLOWDOWNS.values(), compiled, LAUNCHES, *IDLE):
            unit = "ms" if name.endswith("_ms") else "x"
            figures.tell(name, None, unit, target, machine, skipped="needs a GPU")
    else:
        on_gpu(options.python, options, machine)
    for name in NOT_YET:
        figures.tell(name, None, "", None, machine, skipped="no measurement of it yet")


if __name__ == "__main__":
    main()
