"""Part of bench/pytorch_bench.py: what the store sees of each job, as traces (docs/TRACES.md).

Under a budget in which all fits the package keeps its idle blocks, which to the store are in use:
so what is to be judged at a budget is recorded at one.
"""

import contextlib
import os
import pathlib
import signal
import subprocess

import figures

ENDS_WITHIN_S = 60
PERCENT = 75  # of what is saved, of a trace that is to be kept


@contextlib.contextmanager
def recording(socket, file):
    """Writes what the daemon's clients do meanwhile to the trace `file`."""
    command = [figures.built("client/ctl/ravenctl"), "--socket", socket, "record", file]
    with subprocess.Popen(
        [*command, "--seconds", "3600"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as recorder:
        first = recorder.stderr.readline()
        if not first.startswith("recording"):
            raise RuntimeError(f"ravenctl record: {first}{recorder.stderr.read()}")
        try:
            yield
        finally:
            recorder.send_signal(signal.SIGINT)
            _, errors = recorder.communicate(timeout=ENDS_WITHIN_S)
    if recorder.returncode != 0:
        raise RuntimeError(f"ravenctl record: {errors}")


def work(options):
    """Steps of a job that was compiled before, recorded where `trace` names a file."""
    import pytorch_job
    import pytorch_meter
    import ravenstore
    from ravenstore import embedded

    job = pytorch_job.Job(options)
    job.times(1)
    pytorch_job.forget()
    daemon = embedded.start(**options["daemon"])

    def scope():
        return ravenstore.offload(options["budget"], embedded=True)

    with scope():
        pass
    trace = options.get("trace")
    with recording(daemon.socket, trace) if trace else contextlib.nullcontext():
        times = job.times(options["steps"], scope)
    blocks = pytorch_meter.native().block_stats(0)
    yield {
        "trace": trace,
        "saved": ravenstore.explain().live_bytes_peak,
        "needed_peak": blocks["needed_peak"],
        "all": times,
    }


# --- The parts ---


def trace_for(name):
    folder = pathlib.Path(os.environ.get("OUT", ".")) / "recorded"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"{name}.trace")


def budget_for(ample, percent):
    """Bytes with which `percent` of what is saved stays; `ample`: of a run in which all stayed."""
    return int(ample["needed_peak"] - ample["saved"] * (100 - percent) // 100)


def least_stall(trace, budget, steps, rate, plain):
    """Seconds of a recorded step that no policy avoids with `budget` bytes of the device and a link
    of `rate` bytes a second each way (ravensim bound). `plain`: seconds that a step computes; the
    recorded times have waits of the CPU in them. None where the trace has no bound."""
    bound = figures.ravensim("bound", trace, budget, rate / 1e9, rate / 1e9, plain * steps)
    return bound and bound["bound_s"] / steps


def record(bench):
    """A trace of each job and kind into $OUT/recorded."""
    for job in bench.arguments.jobs:
        for kind in bench.arguments.kinds:
            name = f"recorded.{job}.{kind}"
            lacking = bench.lacking(job)
            if lacking:
                bench.skip(lacking, name)
                continue
            ample = bench.run("record", job=job, kind=kind, budget=bench.ample, steps=2)
            found = ample and bench.run(
                "record",
                job=job,
                kind=kind,
                budget=budget_for(ample, PERCENT),
                trace=trace_for(f"{job}-{kind}"),
            )
            if not found:
                bench.miss(name)
                continue
            size = pathlib.Path(found["trace"]).stat().st_size
            steps = len(found["all"])
            bench.say(name, size, "bytes", None, None, trace=found["trace"], steps=steps)
