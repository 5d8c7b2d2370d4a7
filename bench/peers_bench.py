#!/usr/bin/env python3
"""Harvested memory of a second GPU: what it gives its users, and what it costs its owner.

    bench/peers_bench.py [PART...] [--limit SECONDS]

    link      peer_vs_link: a user of GPU 0 sweeps through tensors stored on GPU 1, over PyTorch's
              copies between the two in the same run; every byte compared afterwards
    owner     owner_slowdown: matrix products, a memory-bound loop and a training on GPU 1, whose
              idle memory serves those sweeps, over the same without; with the cap on an owner's
              link share, and without. peer_gemm_slowdown: the products on GPU 0, the user's
    training  peer_training_slowdown: GPT-2 medium with half of what it saves on GPU 0, the rest on
              GPU 1, over plain; also with the rest on the host, and of checkpointing
    wait      owner_wait_p99_ms_per_gib: a program under the interceptor allocates 20 GiB on GPU 1,
              all of whose idle memory is harvested and being read
    killed    the user killed, and then the owner as it waits: what is left of them, and whether
              others' bytes are right

Needs two GPUs that reach one another and a Python with PyTorch and the package's native part
(bench/gpu_peers makes one). Prints one JSON object a line as soon as it is known, as bench/report
does, and a part that finds no time says that it was skipped.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import figures
import pytorch_record

sys.path.insert(0, str(figures.ROOT / "tests/interceptor"))

from harness import Daemon, Job, Programs, eventually, guest  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
WORK = pathlib.Path(tempfile.mkdtemp(prefix="raven-peers-"))
OWNER, USER = 1, 0
PAIRS = 5  # of a loop during sweeps, and without
LOOPS = {"gemm": "multiply 200", "memory_bound": "stream 400", "training": "train 12"}
# The figures of each loop during sweeps, by the GPU on which the loop runs.
SLOWDOWN_FIGURES = {
    OWNER: {
        "gemm": ("owner_slowdown.gemm", "peer_gemm_slowdown.owner"),
        "memory_bound": ("owner_slowdown.memory_bound",),
        "training": ("owner_slowdown.training",),
    },
    USER: {"gemm": ("peer_gemm_slowdown.user",)},
}
# What a part's figures are called, for where it does not run.
FIGURES = {
    "link": ("peer_vs_link",),
    "wait": ("owner_wait_p99_ms_per_gib", "owner_out_of_memory"),
    "killed": ("owner_killed_wrong_tensors", "user_killed_bytes_left"),
    "training": ("peer_training_slowdown",),
    "owner": ("owner_slowdown", "peer_gemm_slowdown"),
}


def skip(parts, why):
    for part in parts:
        for name in FIGURES[part]:
            figures.emit(f"harvest.{name}", None, "", None, figures.machine("no GPU"), skipped=why)


class Bench:
    def __init__(self, arguments):
        self.programs = Programs(os.environ["RAVENSTORE_BIN"])
        names = figures.gpu_names()
        self.machine = figures.machine(f"{len(names)} x {names[0]}")
        self.deadline = time.monotonic() + arguments.limit

    def emit(self, name, value, unit, target, **more):
        figures.emit(f"harvest.{name}", value, unit, target, self.machine, **more)

    def left(self):
        return self.deadline - time.monotonic()


def note(*words):
    print(*words, file=sys.stderr, flush=True)


def configuration(name, **sections):
    """A daemon's flags; sections: {key: value}, numbers or text."""
    path = WORK / f"{name}.toml"
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n")
    return ["--config", str(path)]


def pool(size):
    """Pinned at the start: pinning takes longer than copying."""
    return {"size": f"{size}GiB", "ahead": f"{size}GiB", "step": "1GiB"}


def harvest(size, **more):
    return {"size": f"{size}GiB", "reserve": "1GiB", "sample_ms": 20, "rise_s": 0, **more}


@contextlib.contextmanager
def serving(bench, flags):
    """A daemon whose host pool is pinned."""
    with Daemon(bench.programs, ["--backend", "cuda", *flags]) as daemon:
        yield daemon
        if daemon.process.poll() is not None:
            note("THE DAEMON ENDED", daemon.process.poll(), daemon.log()[-3000:])


def harvested(daemon):
    """What is harvested of the owner's device: of it used, and how give-backs went."""
    return json.loads(daemon.ctl("harvest").stdout)["devices"][OWNER]


def job(name, device=None, words=(), **environment):
    """One of bench/gpu_jobs, on one device or on all."""
    variables = {**os.environ, "PYTHONPATH": str(figures.ROOT / "bench"), **environment}
    if device is not None:
        variables["CUDA_VISIBLE_DEVICES"] = str(device)
    program = str(figures.ROOT / "bench/gpu_jobs" / name)
    return Job([sys.executable, program, *map(str, words)], variables)


def fill(daemon, sweeper, away):
    """Sweeps until at least 7/8 of `away` bytes are in harvested memory."""

    def filled():
        sweeper.ask("sweep 1 write")
        return harvested(daemon)["used_bytes"] >= away * 7 // 8

    full = eventually(filled, 30)
    note(f"filled: {full}, {harvested(daemon)}")


def user(daemon, total, tensor, budget):
    """A user whose tensors beyond its budget are stored in harvested memory."""
    made = job("peer_user.py", words=(daemon.socket, total, tensor, budget))
    fill(daemon, made, total - budget)
    return made


# --- The parts ---


def measure_link(bench):
    flags = configuration("link", host_pool=pool(16), harvest=harvest(20))
    # Ends first: while another process uses the owner's GPU, it counts as busy.
    with job("torch_job.py") as copier:
        raw = copier.ask("link")
        copier.quit()
    note(f"PyTorch's copies: {raw}")
    for tensor in (256 * MIB, 64 * MIB, 16 * MIB):
        suffix = "" if tensor == 64 * MIB else f".{tensor // MIB}mib"
        with serving(bench, flags) as daemon, user(daemon, 14 * GIB, tensor, 2 * GIB) as sweeper:
            for kind, ways, way in (("read", ("in",), "in"), ("write", ("in", "out"), "both")):
                sweeper.ask(f"sweep 3 {kind}")
                swept = sweeper.ask(f"sweep 12 {kind}")
                rate = sum(swept[each] for each in ways) / swept["seconds"]
                bench.emit(
                    f"peer_vs_link.{way}{suffix}",
                    round(rate / raw[way], 4),
                    "of link",
                    0.9 if not suffix else None,
                    at_least=True,
                    bound=raw[way],
                    rate=rate,
                )
                note(f"{tensor >> 20} MiB, {kind}: {swept}")
            checked = sweeper.ask("check")
            bench.emit(f"peer_wrong_tensors{suffix}", checked["wrong"], "tensors", 0, **checked)
            note(f"on the peer: {harvested(daemon)}")


def slowdown(daemon, loops, sweeper, command):
    """The loop's time during sweeps over its time alone, and the rate of the sweeps."""
    ratios, rates = [], []
    loops.ask(command)
    for _ in range(PAIRS):
        alone = loops.ask(command)["ms"]
        sweeper.ask("begin write")
        during = loops.ask(command)["ms"]
        seen = harvested(daemon)
        swept = sweeper.ask("end")
        ratios.append(during / alone)
        rates.append((swept["in"] + swept["out"]) / swept["seconds"])
    note(f"{command}: {ratios}; {seen}")
    return statistics.median(ratios), statistics.median(rates), alone


def measure_owner(bench):
    for cap in ("capped", "uncapped"):
        rate = {} if cap == "capped" else {"busy_bytes_per_second": 0}
        flags = configuration(cap, host_pool=pool(16), harvest=harvest(20, **rate))
        with (
            serving(bench, flags) as daemon,
            user(daemon, 14 * GIB, 64 * MIB, 2 * GIB) as sweeper,
        ):
            for device, loops in SLOWDOWN_FIGURES.items():
                with job("torch_job.py", device) as program:
                    for loop, names in loops.items():
                        ratio, moved, ms = slowdown(daemon, program, sweeper, LOOPS[loop])
                        for name in names:
                            bench.emit(
                                f"{name}.{cap}",
                                round(ratio, 4),
                                "x",
                                1.02 if cap == "capped" else None,
                                alone_ms=ms,
                                moved_gb_per_s=moved / 1e9,
                            )
                    program.quit()


def measure_training(bench):
    base = {"device": "cuda", "size": "medium", "kind": "eager", "steps": 9, "warmup": 6}
    base |= {"threads": 0, "job": "gpt"}

    def worker(**options):
        """What one process says, by name."""
        run = subprocess.run(
            [sys.executable, __file__, "--worker", json.dumps({**base, **options})],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(figures.ROOT / "bench")},
            timeout=max(1, bench.left()),
            check=False,
        )
        rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        for row in rows:
            note({key: value for key, value in row.items() if key != "explain"})
        return {row["name"]: row for row in rows}

    def ours(config, budget):
        daemon = {"pool_size": 24 * GIB, "flags": config}
        return worker(of="ours", states=False, budget=budget, daemon=daemon)

    at_host = configuration("at_host", host_pool={"ahead": "24GiB", "step": "1GiB"})
    at_peer = configuration(
        "at_peer", host_pool={"ahead": "24GiB", "step": "1GiB"}, harvest=harvest(30)
    )
    ample = ours(at_host, 64 * GIB)["ours"]
    rivals = worker(of="checkpoint")
    for percent in (75, 50):
        budget = pytorch_record.budget_for(ample, percent)
        for place, config in (("peer", at_peer), ("host", at_host)):
            found = ours(config, budget)
            if "step" not in found.get("ours", {}):
                bench.emit(
                    f"peer_training_slowdown.{percent}.{place}",
                    None,
                    "x",
                    None,
                    failed=str(found)[:300],
                )
                continue
            ratio = found["ours"]["step"] / found["plain"]["step"]
            bench.emit(
                f"peer_training_slowdown.{percent}.{place}",
                round(ratio, 4),
                "x",
                1.05 if (percent, place) == (50, "peer") else None,
                live=found["ours"]["live"],
                physical=found["ours"]["physical"],
                plain_ms=found["plain"]["step"] * 1e3,
            )
    for name, row in rivals.items():
        if name != "plain" and "step" in row:
            bench.emit(
                f"peer_training_slowdown.{name}",
                round(row["step"] / rivals["plain"]["step"], 4),
                "x",
                None,
                live=row["live"],
                physical=row["physical"],
            )


def occupied(bench, flags, harvested_gib):
    """A daemon, a program that leaves `harvested_gib` and 2 GiB more of the owner's device, and a
    user whose tensors fill `harvested_gib`."""
    stack = contextlib.ExitStack()
    daemon = stack.enter_context(serving(bench, flags))
    filler = stack.enter_context(job("torch_job.py", OWNER))
    free = filler.ask("info")["free"]
    filler.ask(f"grab {free - (harvested_gib + 2) * GIB}")
    tensors = (harvested_gib + 4) * GIB
    sweeper = stack.enter_context(user(daemon, tensors, 64 * MIB, 4 * GIB))
    return stack, daemon, sweeper


def owner_of(bench, daemon):
    return job("torch_job.py", OWNER, **guest(bench.programs, daemon.socket))


def measure_wait(bench):
    # The pieces that the owner allocates, and the chunks that are given back.
    for piece, step in ((512 * MIB, "256MiB"), (64 * MIB, "256MiB"), (64 * MIB, "64MiB")):
        flags = configuration("wait", host_pool=pool(30), harvest=harvest(24, step=step))
        suffix = "" if piece == 512 * MIB else f".{piece // MIB}mib_of_{step.lower()}"
        waits, failed = [], 0
        stack, daemon, sweeper = occupied(bench, flags, 24)
        with stack, owner_of(bench, daemon) as owner:
            for _ in range(3):
                fill(daemon, sweeper, 24 * GIB)
                before = harvested(daemon)
                sweeper.ask("begin read")
                found = owner.ask(f"allocate {20 * GIB} {piece}")
                sweeper.ask("end")
                waits += found["ms"]
                failed += found["failed"]
                note(f"{before} -> {harvested(daemon)}; {sum(found['ms']):.0f} ms for 20 GiB")
                note(f"its waits: {[round(ms, 1) for ms in sorted(found['ms'])[-5:]]}")
                owner.ask("drop")
            owner.quit()
            wrong = sweeper.ask("check")["wrong"]
            note(daemon.log()[-800:])
        p99 = sorted(waits)[len(waits) * 99 // 100] * GIB / piece
        mean = statistics.mean(waits) * GIB / piece
        bench.emit(f"owner_wait_p99_ms_per_gib{suffix}", round(p99, 2), "ms", 50, mean=mean)
        bench.emit(f"owner_out_of_memory{suffix}", failed, "errors", 0)
        bench.emit(f"wait_wrong_tensors{suffix}", wrong, "tensors", 0)


def measure_killed(bench):
    flags = configuration("killed", host_pool=pool(24), harvest=harvest(12))
    stack, daemon, sweeper = occupied(bench, flags, 12)
    with stack:
        sweeper.ask("begin write")
        with owner_of(bench, daemon) as owner:
            owner.send(f"allocate {10 * GIB} {256 * MIB}")
            eventually(lambda: harvested(daemon)["give_backs"] > 0, 10)
            owner.kill()
            removed = eventually(lambda: not daemon.jobs(), 10)
        sweeper.ask("end")
        wrong = sweeper.ask("check")["wrong"]
        bench.emit("owner_killed_wrong_tensors", wrong, "tensors", 0, job_gone=bool(removed))
        second = stack.enter_context(user(daemon, 3 * GIB, 64 * MIB, GIB))
        sweeper.send("sweep 1000 write")
        sweeper.kill()
        clean = eventually(lambda: harvested(daemon)["used_bytes"] <= 3 * GIB, 20)
        left = harvested(daemon)["used_bytes"]
        bench.emit("user_killed_bytes_left", max(0, left - 3 * GIB), "bytes", 0, gone=bool(clean))
        bench.emit("user_killed_wrong_tensors", second.ask("check")["wrong"], "tensors", 0)


PARTS = {
    "link": measure_link,
    "wait": measure_wait,
    "killed": measure_killed,
    "training": measure_training,
    "owner": measure_owner,
}


def run_worker(options):
    """One measuring process of a training: plain and ours, or plain and checkpointing."""
    figures.use_package()
    import pytorch_rivals

    if options["of"] == "ours":
        found = pytorch_rivals.ours(options)
    else:
        ways = {f"checkpoint.{every}": every for every in (1, 2, 4)}
        found = [pytorch_rivals.attempt("plain", options)] + [
            pytorch_rivals.attempt(name, options, lambda one, k=every: one.checkpoint(k))
            for name, every in ways.items()
        ]
    for row in found:
        print(json.dumps(row), flush=True)


def main():
    if sys.argv[1:2] == ["--worker"]:
        run_worker(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS))
    parser.add_argument("--limit", type=float, default=560, help="seconds")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    if len(figures.gpu_names()) <= max(OWNER, USER):
        skip(arguments.parts, "needs two GPUs that reach one another")
        return
    bench = Bench(arguments)
    for part in arguments.parts:
        begun = time.monotonic()
        if bench.left() < 30:
            skip([part], "no time is left")
            continue
        try:
            PARTS[part](bench)
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            skip([part], f"it failed: {type(error).__name__}: {error}")
        note(f"{part}: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
