#!/usr/bin/env python3
"""Prints the elastic mode's figures, a JSON object a line, each as soon as it is had.

    elastic_bench.py [PART...] [--scale X] [--gpu-name NAME] [--python PYTHON] [--limit SECONDS]
                     [--programs A,B] [--shares 100,80] [--small] [--record FOLDER] [--samples FILE]

Parts, the most important first; all, or those that are named, in that order:

    bound     the first program under budgets, over plain and over (plain + lower bound)
    launch    a loop of empty kernels
    remap     kernels during remapping
    idle      a job of 30 GiB is emptied and comes back
    jobs      two jobs at the same time over one after the other
    guess     a program whose order of kernels is another in each step
    losses    bit for bit as plain's, with deterministic kernels
    table     the other programs
    samples   small CUDA programs and CuPy
    cache     the table's programs on PyTorch's own allocator
    compile   the first program, compiled

The table's programs are GPT (24 layers), GPT-2 (12 layers, batch 8; medium), BERT, ResNet-50 and
-101, Whisper-small and AlexNet; a LLaMA-shaped inference whose cache grows token by token; an
embedding table of twice its budget with Zipf rows. 80, 67 and 50% are oversubscribed 1.25, 1.5 and
2 times. Its columns, over plain's step:

    step             under the budget
    bound            plain's step and the stall that no policy avoids: ravensim's bound of the calls
                     recorded without a budget, at the memory that the engine's pages have and the
                     link's rates of the same run. Plain's step stands for compute: what the
                     recording took may be longer. A table that one call names whole has no bound
                     below its size
    still            nothing moves (RAVENSTORE_ELASTIC_STILL), at 80 and 50%
    replayed_still   simulated: in place only
    replayed_demand  simulated: demand paging by tensors, the least recently used leaves first; none
                     where one kernel uses more than there is. Managed memory beyond what is free
                     can hang a shared GPU: it is not run
    recompute        plain with activations computed again, where its peak fits
    native           elastic on PyTorch's own allocator

Of the figures:

    vs_bound_worst      the worst `step` over `bound` of all rows of the run
    two_jobs_vs_serial  the device is so large that one job would take 60% of it; both share it and
                        begin their steps together; over plain's two runs one after the other
    wrong_guess         192 matrices of 64 MiB, read and written in another order in each step, at
                        80%, over the same with nothing moved
    samples             the programs of bench/elastic_samples.cu (27), CuPy, and routines of
                        bench/gpu_jobs/linalg_sample.py (12): exit code and
                        output as alone, with all of the memory that they want and with half of
                        their peak less

On a node with a GPU unmodified PyTorch programs (bench/elastic_models.py) run alone and under
ravenrun --mode elastic with budgets of 100 to 50% of the peak that plain PyTorch allocates; without
one only what the plan's replay says. What does not end within --limit is skipped. A table of all
programs goes to standard error at the end. $RAVENSTORE_BIN names bazel-bin, or a folder with all
that is used: elastic_replay, launch_loop, print_link_bounds, remap_kernels, ravenstored, ravenctl,
libravenstore_intercept.so and libravenstore_elastic.so.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import pathlib
import re
import select
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import figures  # noqa: E402
from elastic_runs import (  # noqa: E402
    GIB,
    LEARNING,
    RAVENRUN,
    OutOfTime,
    Runs,
    Spec,
    environment,
    say,
)

PROGRAMS = (
    "gpt-large", "gpt2", "bert", "resnet50", "whisper", "alexnet", "gpt2-medium", "resnet101",
    "llama", "embedding",
)  # fmt: skip
# Per cent of plain's peak; 80, 67 and 50 are oversubscribed 1.25, 1.5 and 2 times.
SHARES = (100, 90, 80, 67, 60, 50)
# Where it is measured what happens if nothing moves.
STILL = (80, 50)
# Its table is twice what there is for it.
SHARES_OF = {"embedding": (100, 50)}
SLOWDOWNS = {
    100: "elastic.resident_slowdown", 90: "elastic.slowdown_90", 80: "elastic.slowdown_80",
    60: "elastic.slowdown_60",
}  # fmt: skip
# Name: unit and target.
FIGURES = {
    "elastic.resident_slowdown": ("x", 1.02),
    "elastic.resident_slowdown_compiled": ("x", 1.02),
    "elastic.slowdown_90": ("x", 1.10),
    "elastic.slowdown_80": ("x", 1.5),
    "elastic.slowdown_60": ("x", 2.8),
    "elastic.vs_bound_worst": ("x", 1.15),
    "elastic.launch_loop_slowdown": ("x", 1.8),
    "elastic.remap_kernel_slowdown": ("x", 1.03),
    "elastic.empty_ms": ("ms", 1500),
    "elastic.return_ms": ("ms", 1000),
    "elastic.two_jobs_vs_serial": ("x", 1.10),
    "elastic.two_idle_jobs_vs_serial": ("x", 0.8),
    "elastic.wrong_guess": ("x", 1.3),
    "elastic.samples": ("", 1),
}
IDLE_GIB = 30
EMPTY = 256 << 20  # of the device's bytes: no more is left than the context's and the driver's
# Of the device's memory, for each of two jobs; and of the time, idle.
JOB_SHARE, IDLE_SHARE = 0.6, 0.4
# Has no deterministic form.
VARYING = {"alexnet", "embedding"}
RECOMPUTES = set(PROGRAMS) - {"alexnet", "llama", "embedding"}


@dataclasses.dataclass
class Row:
    """Of the table: one program under one budget. Seconds of a step; None: not had."""

    program: str
    share: int
    plain: float | None = None
    step: float | None = None
    stall: float | None = None
    """That no policy avoids, besides plain's step."""
    still: float | None = None
    """Nothing moves."""
    replayed_still: float | None = None
    replayed_demand: float | None = None
    """Simulated demand paging: what is used comes first, the least recently used leaves."""
    recompute: float | None = None
    """Plain, with less kept of the forward pass, if that fits."""
    native: float | None = None

    @property
    def of_bound(self):
        if None in (self.step, self.plain, self.stall):
            return None
        return self.step / (self.plain + self.stall)

    COLUMNS = ("step", "bound", "of_bound", "still", "replayed_still", "replayed_demand",
               "recompute", "native")  # fmt: skip

    def over_plain(self):
        """By column; what takes the time of plain's step is 1."""
        bound = None if None in (self.plain, self.stall) else self.plain + self.stall
        made = {name: bound if name == "bound" else getattr(self, name) for name in self.COLUMNS}
        return {
            name: round(value if name == "of_bound" else value / self.plain, 3)
            for name, value in made.items()
            if value is not None and self.plain
        }


class Measured:
    """A program alone, and elastic with all of the memory that it wants, which is recorded."""

    def __init__(self, plain, resident, trace):
        self.plain, self.resident, self.trace = plain, resident, trace

    def lacks(self, share):
        return int(self.plain.peak * (100 - share) / 100)

    def budget(self, share):
        """100%: the peak that plain PyTorch allocates, plus what else the process holds."""
        return self.resident.enough - self.lacks(share)

    def device(self, share):
        """What of it the engine's pages have."""
        return self.resident.pages - self.lacks(share)


class Bench:
    """What the parts share. Threads: one at a time."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = pathlib.Path(options.record or folder)
        steps = max(LEARNING + 4, int(10 * options.scale))
        small = ("--device", "cpu", "--small") if options.small else ()
        self.runs = Runs(options.python, steps, small, options.limit)
        self.machine = figures.machine(options.gpu_name)
        self.programs = options.programs.split(",")
        self.rows = {}
        self.emitted = set()

    def emit(self, name, value, **more):
        unit, target = FIGURES.get(name, ("x", None))
        self.emitted.add(name)
        figures.emit(name, value, unit, target, self.machine, **more)

    def skip(self, name, why, **more):
        self.emit(name, None, skipped=why, **more)

    def row(self, program, share):
        return self.rows.setdefault((program, share), Row(program, share))

    @functools.cached_property
    def link(self):
        """elastic_replay's option for what copies have here and now."""
        code, said, wrong = self.runs.output([figures.built("bench/print_link_bounds"), "auto"])
        found = figures.LINK.search(said)
        if code != 0 or not found:
            say(f"the link was not measured: {wrong[-300:]}")
            return []
        say(f"the link in GB/s: up {found[1]}, down {found[2]}, both {found[3]}")
        return ["--link", ",".join(found.groups())]

    @functools.cache  # noqa: B019
    def measured(self, program):
        """None: a job failed."""
        plain = self.runs.job(Spec(program, elastic=False))
        trace = self.folder / f"{program}.trace"
        resident = plain and self.runs.job(Spec(program, record=str(trace)))
        return Measured(plain, resident, trace) if resident else None

    @functools.cache  # noqa: B019
    def replayed(self, program):
        """By share what elastic_replay says of what was recorded; {}: nothing."""
        measured = self.measured(program)
        shares = {share: measured.device(share) for share in self.shares(program)}
        command = [figures.built("bench/elastic_replay"), "--json", *self.link]
        for budget in shares.values():
            command += ["--budget", str(budget)]
        code, said, wrong = self.runs.output([*command, str(measured.trace)])
        rows = json.loads(said) if code == 0 else []
        if not rows:
            say(f"{program}: no steps were found in what was recorded. {wrong[-300:]}")
            return {}
        return dict(zip(shares, rows, strict=True))

    def shares(self, program):
        return [s for s in SHARES_OF.get(program, SHARES) if s in self.options.shares]

    def run_share(self, program, share):
        """Fills the row's step, and what the replay says. The row, or None: a job failed."""
        measured = self.measured(program)
        if measured is None:
            return None
        # With all of its memory once more: to be recorded takes its time.
        budget = measured.budget(share) if share < 100 else None
        result = self.runs.job(Spec(program, budget))
        if result is None:
            return None
        row = self.row(program, share)
        row.plain, row.step = measured.plain.step, result.step
        replayed = self.replayed(program).get(share)
        if replayed:
            row.stall = replayed["bound"]
            # The replay's calls take what was recorded of them, the row's what plain takes.
            scale = row.plain / replayed["compute"]
            row.replayed_still = replayed["in_place"] * scale
            if replayed["demand"] is not None:
                row.replayed_demand = replayed["demand"] * scale
        return row

    def emit_row(self, row, name=None):
        measured = self.measured(row.program)
        name = name or f"elastic.table.{row.program}_{row.share}"
        ratio = row.step / row.plain
        peak = measured.plain.peak / GIB
        self.emit(name, ratio, bound=row.plain * 1e3, over_plain=row.over_plain(),
                  detail=f"plain {row.plain * 1e3:.1f} ms, {peak:.1f} GiB")  # fmt: skip

    def one_program(self, program, name_of):
        """Reports each of its rows as soon as it is measured."""
        for share in self.shares(program):
            name = name_of(share)
            row = self.run_share(program, share)
            if row is None:
                self.skip(name, "the job failed", ok=False)
                continue
            self.emit_row(row, name)
        measured = self.measured(program)
        for share in STILL:
            if measured and share in self.shares(program):
                still = self.runs.job(Spec(program, measured.budget(share), still=True))
                self.emit_column(program, share, "still", still)
        if measured and program in RECOMPUTES:
            self.recompute(program, measured)

    def recompute(self, program, measured):
        result = self.runs.job(Spec(program, elastic=False, more=("--recompute",)))
        for share in self.shares(program):
            if result and result.peak <= measured.plain.peak - measured.lacks(share):
                self.emit_column(program, share, "recompute", result)

    def emit_column(self, program, share, column, result):
        """Another way to run the row's program, over plain."""
        name = f"elastic.table.{program}_{share}_{column}"
        if result is None:
            self.skip(name, "the job failed", ok=False)
            return
        row = self.row(program, share)
        row.plain = self.measured(program).plain.step
        setattr(row, column, result.step)
        self.emit(name, result.step / row.plain)


# ---- Parts


def bound(bench):
    program = bench.programs[0]
    bench.one_program(
        program, lambda share: SLOWDOWNS.get(share, f"elastic.table.{program}_{share}")
    )


def table(bench):
    for program in bench.programs[1:]:
        bench.one_program(program, lambda share, p=program: f"elastic.table.{p}_{share}")


def cache(bench):
    for program in bench.programs:
        measured = bench.measured(program)
        for share in bench.shares(program):
            budget = None if share == 100 else measured and measured.budget(share)
            result = measured and bench.runs.job(Spec(program, budget, native=True))
            bench.emit_column(program, share, "native", result)


def compiled(bench):
    more = ("--compile",)
    program = bench.programs[0]
    plain = bench.runs.job(Spec(program, elastic=False, more=more))
    result = plain and bench.runs.job(Spec(program, more=more))
    name = "elastic.resident_slowdown_compiled"
    if not result:
        return bench.skip(name, "the job failed", ok=False)
    return bench.emit(name, result.step / plain.step, bound=plain.step * 1e3)


def losses(bench):
    """With deterministic kernels, which make some programs slower."""
    exact = ("--deterministic",)
    for program in bench.programs:
        measured = None if program in VARYING else bench.measured(program)
        if measured is None:
            continue
        plain = bench.runs.job(Spec(program, elastic=False, more=exact))
        result = plain and bench.runs.job(Spec(program, measured.budget(80), more=exact))
        name = f"elastic.same_losses.{program}"
        if result is None:
            bench.skip(name, "the job failed", ok=False)
            continue
        same = plain.losses == result.losses
        figures.emit(name, int(same), "", 1, bench.machine, at_least=True)


def wrong_guess(bench):
    """What was learned of the order is wrong in each step: over what never moves anything."""
    name, program, exact = "elastic.wrong_guess", "shuffled", ("--deterministic",)
    measured = bench.measured(program)
    plain = measured and bench.runs.job(Spec(program, elastic=False, more=exact))
    ran = []
    for still in (True, False):
        spec = measured and Spec(program, measured.budget(80), still=still, more=exact)
        ran.append(plain and bench.runs.job(spec))
    if not all(ran):
        return bench.skip(name, "the job failed", ok=False)
    same = all(result.losses == plain.losses for result in ran)
    ratio = ran[1].step / ran[0].step
    return bench.emit(
        name, ratio, bound=ran[0].step * 1e3, ok=same and ratio <= FIGURES[name][1],
        detail=f"{'right' if same else 'WRONG'} results; plain {plain.step * 1e3:.1f} ms",
    )  # fmt: skip


def two_jobs(bench):
    """Two jobs that would take 60% of the device each, and share it, over both alone."""
    program = bench.programs[0]
    measured = bench.measured(program)
    for name, idle in (
        ("elastic.two_jobs_vs_serial", 0.0),
        ("elastic.two_idle_jobs_vs_serial", IDLE_SHARE),
    ):
        if measured is None:
            bench.skip(name, "the job failed", ok=False)
            continue
        pause = measured.plain.step * idle / (1 - idle)
        more = ("--pause", f"{pause:.4f}")
        device = int((measured.plain.peak + measured.resident.outside_pages) / JOB_SHARE)
        (alone,) = bench.runs.together([Spec(program, elastic=False, more=more)])
        with own_daemon("--visible-memory", f"{device >> 20}MiB") as daemon:
            shared = Spec(program, socket=daemon.socket, more=more)
            both = alone and bench.runs.together([shared] * 2)
        if not both or None in both:
            bench.skip(name, "a job failed", ok=False)
            continue
        serial = 2 * (alone.span[1] - alone.span[0])
        took = max(one.span[1] for one in both) - min(one.span[0] for one in both)
        bench.emit(name, took / serial, bound=serial * 1e3,
                   detail=f"{device / GIB:.1f} GiB together, idle {idle:.0%}")  # fmt: skip


def launches(bench):
    """Alone and under ravenrun in turn: the least of three each."""
    loop = figures.built("bench/launch_loop")
    taken = {(): [], RAVENRUN: []}
    for _ in range(3):
        for prefix, values in taken.items():
            code, said, wrong = bench.runs.output([*prefix, loop])
            if code != 0:
                return bench.skip("elastic.launch_loop_slowdown", wrong[-200:], ok=False)
            values.append(float(said))
    plain, elastic = (min(values) for values in taken.values())
    return bench.emit("elastic.launch_loop_slowdown", elastic / plain, bound=plain)


def remap(bench):
    """The worse of pages of the device's memory and of the host's, in one process."""
    name = "elastic.remap_kernel_slowdown"
    seconds = str(max(0.1, 3 * bench.options.scale))
    code, said, wrong = bench.runs.output([figures.built("bench/remap_kernels"), seconds])
    if code != 0:
        return bench.skip(name, wrong[-200:], ok=False)
    ran = json.loads(said)
    return bench.emit(
        name, max(ran["device"], ran["host"]), bound=ran["kernel_us"] / 1e3,
        detail=f"device {ran['device']:.3f}, host {ran['host']:.3f}; "
        f"{ran['device_remap_us']:.0f} and {ran['host_remap_us']:.0f} us a page",
    )  # fmt: skip


def samples(bench):
    """Small programs, with all of the memory that they want and with half of their peak."""
    name, asked = "elastic.samples", bench.options.samples
    with tempfile.TemporaryDirectory() as folder:
        program = asked or f"{folder}/samples"
        if not asked:
            source = str(ROOT / "bench/elastic_samples.cu")
            compiler = ["nvcc", "-O2", "-arch=native", "-o", program, source, "-lcuda"]
            code, _, wrong = bench.runs.output(compiler)
            if code != 0:
                return bench.skip(name, f"nvcc: {wrong[-200:]}", ok=False)
        commands = {
            each: [program, each] for each in bench.runs.output([program, "--list"])[1].split()
        }
        if bench.runs.output([bench.options.python, "-c", "import cupy"])[0] == 0:
            script = str(ROOT / "bench/gpu_jobs/cupy_sample.py")
            commands["CuPy"] = [bench.options.python, script]
        right = {each: as_plain(bench, each, command) for each, command in commands.items()}
        right |= routines_as_plain(bench)
    different = [each for each, is_right in right.items() if not is_right]
    value = 1 - len(different) / max(len(right), 1)
    return bench.emit(
        name, value, ok=bool(right) and not different,
        detail=f"of {len(right)}; not as plain: {' '.join(different) or 'none'}",
    )  # fmt: skip


def routines_as_plain(bench):
    """Of PyTorch: batches of small matrices, which libraries find by tables of addresses. Some at
    once: each uses the memory of its own budget only, and starts slowly."""
    program = [bench.options.python, str(ROOT / "bench/gpu_jobs/linalg_sample.py")]
    names = bench.runs.output([*program, "--list"])[1].split()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        right = pool.map(lambda name: as_plain(bench, name, [*program, name]), names)
        return dict(zip(names, right, strict=True))


def as_plain(bench, name, command):
    plain = bench.runs.output(command)
    budgets = [[]]
    for budget in budgets:
        code, said, wrong = bench.runs.output([*RAVENRUN, "--report", *budget, *command])
        found = re.search(r"peak ([0-9.]+) GiB; .*budget of ([0-9.]+) GiB", wrong)
        right = plain[0] == 0 and (code, said) == plain[:2]
        say(f"sample {name} {' '.join(budget)}: {'as plain' if right else 'DIFFERENT'}")
        if not right:
            say(f"plain {plain}\nelastic {code, said, wrong[-1000:]}")
            return False
        if found and not budget:
            peak, enough = (float(each) * GIB for each in found.groups())
            budgets.append(["--budget", f"{int(enough - peak / 2)}B"])
    return True


def own_daemon(*flags):
    """For jobs of the run alone."""
    return figures.OwnDaemon("--pool-size", "64MiB", *flags, stderr=subprocess.DEVNULL)


class IdleJob:
    """bench/elastic_idle.py with a daemon of its own. Raises OutOfTime."""

    def __init__(self, runs):
        self.runs = runs
        self.daemon = own_daemon()
        self.ctl = self.daemon.ctl
        program = [runs.python, str(ROOT / "bench/elastic_idle.py"), "--gib", str(IDLE_GIB)]
        self.job = subprocess.Popen(
            [*RAVENRUN, "--socket", self.daemon.socket, *program], env=environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def read(self):
        if not select.select([self.job.stdout], [], [], self.runs.left())[0]:
            raise OutOfTime
        return self.job.stdout.readline()

    def ask(self, word):
        self.job.stdin.write(word + "\n")
        self.job.stdin.flush()
        return float(self.read())

    def jobs(self):
        return json.loads(self.ctl("clients", "--json"))["legacy_jobs"]

    def held(self):
        return sum(device["kinds"]["vmm"] for one in self.jobs() for device in one["devices"])

    def end(self):
        self.job.terminate()
        self.job.wait()
        self.daemon.end()


def idle(bench):
    """The second time: the first has pinned the host's memory."""
    job = IdleJob(bench.runs)
    try:
        job.read()  # it is ready
        number = str(job.jobs()[0]["client"])
        hot = min(job.ask("hot") for _ in range(5))
        emptied, returned = [], []
        whole = job.held()
        for _ in range(2):
            began = time.perf_counter()
            job.ctl("sleep", "--job", number)
            while job.held() > EMPTY:
                bench.runs.left()
                time.sleep(0.005)
            emptied.append((time.perf_counter() - began) * 1e3)
            job.ctl("wake", "--job", number)
            began = time.perf_counter()
            while job.ask("hot") > 1.5 * hot and time.perf_counter() - began < 20:
                pass
            returned.append((time.perf_counter() - began) * 1e3)
            while job.held() < 0.9 * whole and time.perf_counter() - began < 30:
                wrong = job.ask("check")
        wrong = job.ask("check")
    finally:
        job.end()
    for name, values in (("elastic.empty_ms", emptied), ("elastic.return_ms", returned)):
        bench.emit(
            name, values[1],
            detail=f"{IDLE_GIB} GiB; the first time {values[0]:.0f}; {wrong:.0f} tensors wrong",
            **({} if wrong == 0 else {"ok": False}),
        )  # fmt: skip


# Name: what does it, and its figures.
PARTS = {
    "bound": (bound, tuple(SLOWDOWNS.values())),
    "launch": (launches, ("elastic.launch_loop_slowdown",)),
    "remap": (remap, ("elastic.remap_kernel_slowdown",)),
    "idle": (idle, ("elastic.empty_ms", "elastic.return_ms")),
    "jobs": (two_jobs, ("elastic.two_jobs_vs_serial", "elastic.two_idle_jobs_vs_serial")),
    "guess": (wrong_guess, ("elastic.wrong_guess",)),
    "losses": (losses, ()),
    "table": (table, ()),
    "samples": (samples, ("elastic.samples",)),
    "cache": (cache, ()),
    "compile": (compiled, ("elastic.resident_slowdown_compiled",)),
}


def run_parts(bench, parts):
    for part in parts:
        measure, names = PARTS[part]
        why = "not had"
        try:
            measure(bench)
        except OutOfTime:
            why = "no time left"
        except Exception as error:  # One part's failure is not the others'.
            why = f"{type(error).__name__}: {error}"[:200]
        if why != "not had":
            say(f"{part}: {why}")
        for name in names:
            if name not in bench.emitted:
                bench.skip(name, why, **({"ok": False} if "Error" in why else {}))


def emit_worst(bench):
    """Of all rows that have both."""
    rows = [row for row in bench.rows.values() if row.of_bound is not None]
    if not rows:
        return bench.skip("elastic.vs_bound_worst", "no row has a step and a bound")
    worst = max(rows, key=lambda row: row.of_bound)
    programs = len({row.program for row in rows})
    return bench.emit("elastic.vs_bound_worst", worst.of_bound,
                      detail=f"{worst.program} at {worst.share}%; of {len(rows)} rows, {programs} "
                      "programs")  # fmt: skip


def print_table(rows):
    """To people: times over plain's step; of_bound over (plain + bound)."""
    say(f"\n{'program':14}{'%':>5}{'plain ms':>10}" + "".join(f"{c:>17}" for c in Row.COLUMNS))
    for row in sorted(rows, key=lambda row: (row.program, -row.share)):
        over = row.over_plain()
        plain = f"{row.plain * 1e3:.1f}" if row.plain else "-"
        cells = "".join(f"{over.get(column, '-'):>17}" for column in Row.COLUMNS)
        say(f"{row.program:14}{row.share:>5}{plain:>10}{cells}")


def replayed_worst(bench):
    """The worst of three generated traces, 100 to 50%, by the core's plan: not the engine's."""
    done = subprocess.run(
        [figures.built("bench/elastic_replay"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    worst = max(json.loads(done.stdout), key=lambda one: one["of_bound"])
    figures.emit(
        "elastic.plan_vs_bound_worst", worst["of_bound"], "x", 1.15, bench.machine,
        detail=f"{worst['trace']} at {worst['percent']}%, the core's plan replayed",
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # Not `choices`: argparse would check the list of none as well.
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--gpu-name", default="no GPU")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--limit", type=float, help="seconds for all of it")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="the first is `bound`'s")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--small", action="store_true", help="toy sizes, on the CPU")
    parser.add_argument("--record", help="a folder: what the runs without a budget do stays there")
    parser.add_argument("--samples", help="the compiled elastic_samples.cu; else nvcc compiles it")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is named {', '.join(sorted(unknown))}")
    options.shares = [int(share) for share in options.shares.split(",")]
    with tempfile.TemporaryDirectory(prefix="raven-elastic-") as folder:
        bench = Bench(options, folder)
        if not options.parts:
            replayed_worst(bench)
        if options.gpu_name == "no GPU" and not options.small:
            for name in FIGURES:
                bench.skip(name, "needs a GPU")
            return
        # In the order above, however they were named.
        run_parts(bench, options.parts or list(PARTS))
        if bench.rows:
            emit_worst(bench)
            print_table(bench.rows.values())


if __name__ == "__main__":
    main()
