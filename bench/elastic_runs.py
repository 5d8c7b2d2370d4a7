"""How the elastic mode's figures come by a job's steps: one way to run a program of
bench/elastic_models.py, alone or under ravenrun --mode elastic, within the time that there is."""

import dataclasses
import json
import os
import pathlib
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RAVENRUN = (str(ROOT / "deploy/ravenrun"), "--mode", "elastic")
# From the third step on: by then the sequence is known.
LEARNING = 2
# Seconds; with less left nothing is begun.
LEAST = 15
REPORT = re.compile(r"peak ([0-9.]+) GiB; .*budget of ([0-9.]+) GiB")
GIB = 1 << 30


class OutOfTime(Exception):
    """What was to run would not end in time."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a job said of itself, and, if it was elastic, ravenrun of it."""

    losses: list
    seconds: list
    peak: int
    """Bytes that PyTorch had allocated at most."""
    span: list
    """When its steps began and ended."""
    pages: int = 0
    """Bytes that the engine's pages had at most."""
    enough: int = 0
    """A budget with which it would not have stalled."""

    @property
    def step(self):
        return statistics.median(self.seconds[LEARNING:])

    @property
    def outside_pages(self):
        """Bytes of the device that it held in addition to pages, if it did not stall."""
        return self.enough - self.pages


@dataclasses.dataclass(frozen=True)
class Spec:
    program: str
    budget: int | None = None
    elastic: bool = True
    still: bool = False
    socket: str | None = None
    """Of a daemon that bounds what it may hold with others."""
    native: bool = False
    """On PyTorch's own allocator, whose cache hides when its tensors die."""
    record: str | None = None
    more: tuple = ()

    def command(self, python, steps, options):
        job = [python, str(ROOT / "bench/elastic_job.py"), "--model", self.program]
        job += ["--steps", str(steps), *options, *self.more]
        if not self.elastic:
            return job
        limit = [] if self.budget is None else ["--budget", f"{self.budget}B"]
        limit += ["--socket", self.socket] if self.socket else []
        limit += ["--record", self.record] if self.record else []
        return [*RAVENRUN, "--report", *limit, *job]

    def variables(self):
        made = {}
        if self.still:
            made["RAVENSTORE_ELASTIC_STILL"] = "1"
        if self.native:
            made["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native"
        return made

    def words(self):
        kind = "still" if self.still else "elastic" if self.elastic else "plain"
        budget = "" if self.budget is None else f", {self.budget / GIB:.2f} GiB"
        native = ", native" if self.native else ""
        return f"{self.program} ({kind}{native}{budget}{''.join(' ' + w for w in self.more)})"


def environment(variables=None):
    """The environment. It says where the interceptor is, if all build outputs are in one folder."""
    made = dict(os.environ)
    folder = os.environ.get("RAVENSTORE_BIN")
    if folder and (pathlib.Path(folder) / "libravenstore_intercept.so").exists():
        made["RAVENSTORE_LIB"] = folder
    return made | (variables or {})


def say(text):
    print(text, file=sys.stderr, flush=True)


class Runs:
    """Threads: one at a time."""

    def __init__(self, python="python3", steps=8, job_options=(), limit=None):
        self.python = python
        self.steps = steps
        self.job_options = job_options
        self.end = None if limit is None else time.monotonic() + limit

    def left(self):
        """Seconds, or None: without bound. Raises OutOfTime."""
        if self.end is None:
            return None
        left = self.end - time.monotonic()
        if left < LEAST:
            raise OutOfTime
        return left

    def output(self, command, variables=None):
        """(exit code, standard output, standard error) of it. Raises OutOfTime."""
        try:
            done = subprocess.run(
                command, env=environment(variables), capture_output=True, text=True, check=False,
                timeout=self.left(),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise OutOfTime from error
        return done.returncode, done.stdout, done.stderr

    def job(self, spec):
        """Its Result; None: it failed. Raises OutOfTime."""
        return self.together([spec], gate=0)[0]

    def together(self, specs, gate=LEARNING + 2):
        """A Result or None for each of the jobs. When each has done `gate` steps, all of them
        continue together. Raises OutOfTime."""
        self.left()
        with tempfile.TemporaryDirectory() as folder:
            jobs = [Running(self, spec, gate, f"{folder}/{i}") for i, spec in enumerate(specs)]
            try:
                if gate:
                    for job in jobs:
                        job.wait_for_gate()
                    for job in jobs:
                        job.open_gate()
                return [job.result() for job in jobs]
            finally:
                for job in jobs:
                    job.kill()


class Running:
    """A job that was started. Owns: its process."""

    def __init__(self, runs, spec, gate, file):
        self.runs, self.spec = runs, spec
        self.file = pathlib.Path(file)
        options = [*runs.job_options, *(["--gate", str(gate)] if gate else [])]
        self.began = time.monotonic()
        with open(file, "w") as said:
            self.process = subprocess.Popen(
                spec.command(runs.python, runs.steps, options),
                env=environment(spec.variables()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=said, text=True,
            )  # fmt: skip

    def wait_for_gate(self):
        """Returns as well if it ended instead."""
        while select.select([self.process.stdout], [], [], self.runs.left())[0]:
            line = self.process.stdout.readline()
            if line.strip() == "ready" or not line:
                return
        raise OutOfTime

    def open_gate(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it failed: result() says so

    def result(self):
        try:
            output, _ = self.process.communicate(timeout=self.runs.left())
        except subprocess.TimeoutExpired as error:
            raise OutOfTime from error
        said = self.file.read_text(errors="replace")
        lines = [line for line in output.splitlines() if line.startswith("{")]
        seconds = time.monotonic() - self.began
        if self.process.returncode != 0 or not lines:
            say(f"{self.spec.words()}: failed after {seconds:.0f} s:\n{said[-2000:]}")
            return None
        found = REPORT.search(said)
        pages, enough = (int(float(each) * GIB) for each in found.groups()) if found else (0, 0)
        made = json.loads(lines[-1])
        made = Result(
            made["losses"], made["seconds"], made["peak"], made["span"], pages, enough
        )  # fmt: skip
        say(f"{self.spec.words()}: {made.step * 1e3:.1f} ms a step; {seconds:.0f} s in all")
        for line in said.splitlines():
            if line.startswith("ravenrun: "):
                say(f"  {line}")
        return made

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
