"""Parts of bench/pytorch_bench.py: the least budget that trains, the largest batch and model."""

import math
import statistics
from concurrent.futures import ThreadPoolExecutor

GIB = 1 << 30
CLOSE = 0.01  # two budgets this near, over what must be held, are one
WAIT_S = 8  # for room; what has not come by then does not come
SLOWDOWNS = (1.1, 1.5)
WAYS = ("checkpoint", "save_on_cpu", "ours", "ours_with_states")
# What a search starts at: the job's own.
OWN = {
    ("gpt", "batch"): 16,
    ("gpt", "depth"): {"medium": 24, "tiny": 4},
    ("resnet50", "batch"): {"medium": 256, "tiny": 16},
    ("resnet50", "depth"): 6,
}


# --- The smallest budget ---


def work_smallest(options):
    """Whether a few steps run at the budget, and what they held."""
    import pytorch_job
    import pytorch_meter
    import ravenstore
    from ravenstore import embedded

    embedded.start(budget=options["budget"], **options["daemon"])

    def scope():
        return ravenstore.offload(options["budget"], embedded=True, timeout=WAIT_S)

    with scope():
        pass
    try:
        seconds = pytorch_job.Job(options).times(3, scope)
    except RuntimeError as error:
        if not pytorch_job.is_out_of_memory(error):
            raise
        yield {"fits": False, "why": str(error)[:300]}
        return
    blocks = pytorch_meter.native().block_stats(0)
    peaks = {name: blocks[name] for name in ("used_peak", "needed_peak", "held_peak")}
    yield {"fits": True, "step": seconds[-1], **peaks}


def with_ample(bench, model, name):
    """What the job holds under a budget in which everything stays. None if it does not run here;
    the figure `name` says then why."""
    lacking = bench.lacking(model)
    if lacking:
        bench.skip(lacking, name)
        return None
    ample = bench.run("smallest", job=model, budget=bench.ample)
    if ample is None or not ample["fits"]:
        bench.miss(name)
        return None
    return ample


def smallest(bench):
    for model in bench.arguments.models:
        name = f"smallest_budget.{model}"
        ample = with_ample(bench, model, name)
        if ample is None:
            continue
        held = ample["used_peak"]

        def fits(ratio, job=model, held=held):
            found = bench.run("smallest", job=job, budget=int(held * ratio))
            return found and found["fits"]

        low, high, tried = search_least(fits, bench.arguments.tries, bench.arguments.parallel)
        more = {"held": held, "needed_peak": ample["needed_peak"], "too_small": low, "tries": tried}
        if high is None:
            bench.say(name, None, "ratio", 1.1, False, failed="no try trained", **more)
        else:
            bench.ratio(name, high, 1.10, **more)


def search_least(fits, tries, workers):
    """Looks for the least ratio at which fits(ratio) is true: (the largest that is known not to,
    the least that is known to or None, tries). fits(ratio) is None where that is not known."""
    low, high, done = 1.0, None, 0
    with ThreadPoolExecutor(workers) as pool:
        while done < tries and (high is None or high - low > CLOSE):
            count = min(workers, tries - done)
            if high is None:
                ratios = [low * growth for growth in (1.05, 1.1, 1.25, 1.5, 2.0)[:count]]
            else:
                ratios = [low + (high - low) * (i + 1) / (count + 1) for i in range(count)]
            answers = dict(zip(ratios, pool.map(fits, ratios), strict=True))
            done += count
            if None in answers.values():
                break
            # Near the least ratio, whether a job trains is a matter of luck. The result must be
            # above all ratios that failed.
            low = max([low, *(ratio for ratio, fitted in answers.items() if not fitted)])
            good = [ratio for ratio, fitted in answers.items() if fitted]
            good = [ratio for ratio in (*good, high) if ratio is not None and ratio > low]
            high = min(good, default=None)
    return round(low, 4), None if high is None else round(high, 4), done


# --- The largest batch and model ---


def search_largest(attempt, start, most, tries):
    """Yields, after each try, the largest number for each of SLOWDOWNS, and what was tried.

    attempt(n): the slowdown at n, infinite where there is no room.
    """
    known = {}

    def found():
        best = {}
        for limit in SLOWDOWNS:
            best[str(limit)] = max((n for n, r in known.items() if r <= limit), default=None)
        seen = {n: None if math.isinf(r) else round(r, 4) for n, r in sorted(known.items())}
        return {"best": best, "tried": seen}

    number = start
    while len(known) < tries:
        known[number] = attempt(number)
        yield found()
        if known[number] > max(SLOWDOWNS) or number >= most:
            break
        number = min(2 * number, most)
    for limit in sorted(SLOWDOWNS, reverse=True):
        while len(known) < tries:
            low = max((n for n, r in known.items() if r <= limit), default=0)
            high = min((n for n, r in known.items() if n > low and r > limit), default=None)
            if high is None or high - low <= max(1, low // 16):
                break
            known[(low + high) // 2] = attempt((low + high) // 2)
            yield found()


def seconds_of_step(make, scope, warmup):
    """Of the job that `make` makes; None where there is no room for it."""
    import pytorch_job

    job = None
    try:
        job = make()
        job.times(warmup, scope)
        return statistics.median(job.times(2, scope))
    except RuntimeError as error:
        if not pytorch_job.is_out_of_memory(error):
            raise
        return None
    finally:
        del job
        pytorch_job.forget()


def work_largest(options):
    """One way's search. The plain step's time grows by a line in the number, of which two points
    are measured: it says what plain would take where plain has no room."""
    import contextlib

    import pytorch_job
    import pytorch_rivals
    import torch

    way, axis, start = options["way"], options["axis"], options["start"]

    def make_plain(number):
        return pytorch_job.Job({**options, axis: number})

    few = max(1, start // 2)
    step_few, step_start = (
        seconds_of_step(lambda n=n: make_plain(n), contextlib.nullcontext, 2) for n in (few, start)
    )
    if axis == "batch":
        offset, slope = 0.0, step_start / start
    else:
        slope = (step_start - step_few) / (start - few)
        offset = step_start - slope * start
    scope, make = contextlib.nullcontext, make_plain
    if way == "save_on_cpu":

        def scope():
            return torch.autograd.graph.save_on_cpu(pin_memory=options["device"] == "cuda")

    elif way == "checkpoint":

        def make(number):
            job = make_plain(number)
            job.checkpoint(1)
            return job

    elif way.startswith("ours"):
        scope = _whole_device(options)

        def make(number):
            job = make_plain(number)
            if way == "ours_with_states":
                pytorch_rivals.away(job, options)
            return job

    def slowdown(number):
        seconds = seconds_of_step(lambda: make(number), scope, 2)
        return math.inf if seconds is None else seconds / (offset + slope * number)

    plain = {"plain_step": step_start}
    for found in search_largest(slowdown, start, options["most"], options["tries"]):
        yield {**plain, **found}


def _whole_device(options):
    """A scope with all of the device that is free, which has begun."""
    import pytorch_job
    import ravenstore
    import torch
    from ravenstore import embedded

    pytorch_job.forget()
    daemon, budget = options["daemon"], options["daemon"].get("device_total", 0) // 2
    if options["device"] == "cuda":
        daemon = {**daemon, "pool_size": 72 * GIB}
        budget = int(torch.cuda.mem_get_info()[0] * 0.93)
    embedded.start(**daemon)

    def scope():
        return ravenstore.offload(budget, embedded=True, timeout=WAIT_S)

    with scope():
        pass
    return scope


def largest(bench):
    size, gpu = bench.arguments.size, bench.arguments.device == "cuda"
    for model in bench.arguments.models:
        for axis in bench.arguments.axes:
            start = OWN[model, axis]
            start = start if isinstance(start, int) else start[size]
            for way in ("plain", *WAYS):
                names = [f"largest_{axis}.{model}.{way}.{limit}" for limit in SLOWDOWNS]
                lacking = bench.lacking(model)
                if lacking:
                    bench.skip(lacking, *names)
                    continue
                found = bench.run(
                    "largest",
                    job=model,
                    way=way,
                    axis=axis,
                    start=start,
                    most=start * (64 if gpu else 2),
                    tries=bench.arguments.tries,
                )
                if found is None:
                    bench.miss(*names)
                    continue
                unit = "samples" if axis == "batch" else "layers"
                for name, limit in zip(names, SLOWDOWNS, strict=True):
                    value = found["best"][str(limit)]
                    bench.say(name, value, unit, None, None, tried=found["tried"])
