"""Parts of bench/pytorch_bench.py: what the allocator costs where nothing moves, and moving."""

import statistics

import pytorch_limits
import pytorch_record

NO_LINK = 50e9  # bytes a second, where the device is a CPU
TIGHT = 1.3  # of the memory in use at the same time

# --- The measuring process ---


def pack_unpack_us(device):
    """Microseconds of one pack and one unpack of a resident tensor, the hooks' own part."""
    import time

    import ravenstore
    import torch
    from ravenstore.offload import MIN_BLOCK_BYTES, _here

    tensors = [torch.empty(1 << 20, dtype=torch.float32, device=device) for _ in range(64)]
    with ravenstore.offload():
        scope = _here().scopes[MIN_BLOCK_BYTES]
        packs, unpacks = [], []
        for _ in range(40):
            begun = time.perf_counter()
            saved = [scope.pack(tensor) for tensor in tensors]
            packs.append((time.perf_counter() - begun) / len(tensors))
            begun = time.perf_counter()
            views = [scope.unpack(one) for one in saved]
            unpacks.append((time.perf_counter() - begun) / len(tensors))
            del views, saved
    return (statistics.median(packs) + statistics.median(unpacks)) * 1e6


def work(options):
    """Plain steps, steps on the allocator alone if asked for, and steps under the scope."""
    import pytorch_job
    import pytorch_meter
    import ravenstore
    import torch
    from ravenstore import embedded

    embedded.start(budget=options["budget"], **options["daemon"])
    job = pytorch_job.Job(options)
    count = options["steps"]
    result = {}
    job.times(options["warmup"])
    result["forward"] = statistics.median(job.step(split=True).forward for _ in range(3))
    result["plain"] = statistics.median(job.times(count))
    result["link"] = pytorch_meter.link_rate(job.device)
    if options["kind"] == "reduce_overhead":
        # Its graphs must be captured again, with the allocator in place.
        del job
        torch.compiler.reset()
        job = None
    pytorch_job.forget()

    def scope():
        return ravenstore.offload(options["budget"], embedded=True)

    with scope():
        pass
    if job is None:
        job = pytorch_job.Job(options)
    native = pytorch_meter.native()
    if options.get("allocator_only"):
        job.times(options["warmup"])
        native.reset_peaks(0)
        result["allocator"] = statistics.median(job.times(count))
        blocks = native.block_stats(0)
        result["waste"] = blocks["held_peak"] / max(1, blocks["used_peak"])
        result["pack_unpack_us"] = pack_unpack_us(job.device)
        yield result
        if options["kind"] == "reduce_overhead":
            return
    yield {**result, **offloaded(job, native, scope, options)}


def offloaded(job, native, scope, options):
    """Steps under the scope, the first of them recorded where `trace` names a file."""
    import ravenstore
    from ravenstore import embedded

    result, count = {}, options["steps"]
    if "trace" in options:
        with pytorch_record.recording(embedded.running().socket, options["trace"]):
            job.times(options["warmup"], scope)
        result["recorded_steps"] = options["warmup"]
    job.times(options["warmup"], scope)
    native.reset_peaks(0)
    before = native.store_stats()
    result["all"] = job.times(count, scope)
    after = native.store_stats()
    result["offloaded"] = statistics.median(result["all"])
    blocks = native.block_stats(0)
    explained = ravenstore.explain()
    for name in ("bytes_out", "bytes_in", "misses", "gets"):
        result[name] = (after[name] - before[name]) / count
    for name in ("used_peak", "held_peak", "needed_peak", "created", "allocations"):
        result[name] = blocks[name]
    return {**result, "saved": explained.live_bytes_peak, "explain": str(explained)}


# --- The parts ---


def costs(bench):
    """The allocator alone, and a scope in which everything fits: eager and block by block."""
    for kind in bench.arguments.kinds:
        found = bench.run("costs", budget=bench.ample, kind=kind, allocator_only=True)
        names = [f"{name}.{kind}" for name in ("allocator_slowdown", "declined_slowdown")]
        if found is None or "offloaded" not in found:
            bench.miss(*names, f"allocator_waste.{kind}")
            continue
        bench.ratio(names[0], found["allocator"] / found["plain"], 1.01)
        bench.ratio(names[1], found["offloaded"] / found["plain"], 1.01)
        bench.ratio(f"allocator_waste.{kind}", found["waste"], 1.08)
        if kind == "eager":
            value = found["pack_unpack_us"]
            bench.say("pack_unpack_us", round(value, 2), "us", 5, value <= 5)


def graphs(bench):
    """The allocator with torch.compile's CUDA graphs, which are captured with it in place."""
    name = "allocator_slowdown.reduce_overhead"
    found = bench.run("costs", budget=bench.ample, kind="reduce_overhead", allocator_only=True)
    if found is None:
        bench.miss(name)
        return
    bench.ratio(name, found["allocator"] / found["plain"], 1.01, plain_ms=found["plain"] * 1e3)


def moving(bench):
    """Steps with less than what is saved on the device, over a plain step and the least stall."""
    names = [f"moving_vs_bound.{percent}" for percent in bench.arguments.budgets]
    ample = bench.run("costs", budget=bench.ample, steps=2, warmup=1)
    if ample is None:
        bench.miss(*names)
        return
    for name, percent in zip(names, bench.arguments.budgets, strict=True):
        moving_at(bench, name, 1.05, pytorch_record.budget_for(ample, percent), "gpt")


def tight(bench):
    """The same for each job, at TIGHT times the memory that it has in use at the same time."""
    for model in bench.arguments.models:
        name = f"moving_vs_bound.{model}"
        ample = pytorch_limits.with_ample(bench, model, name)
        if ample is not None:
            moving_at(bench, name, 1.10, int(ample["used_peak"] * TIGHT), model)


def moving_at(bench, name, target, budget, job):
    """Prints `name`: the job's step at the budget, over a plain step and the least stall."""
    trace = pytorch_record.trace_for(f"{job}-eager-at-{budget >> 20}")
    found = bench.run("costs", job=job, budget=budget, trace=trace)
    if found is None:
        bench.miss(name)
        return
    rate = found["link"] or NO_LINK
    stall = pytorch_record.least_stall(trace, budget, found["recorded_steps"], rate, found["plain"])
    if stall is None:
        bench.say(name, None, "ratio", target, False, failed="ravensim gave no bound")
        return
    bound = found["plain"] + stall
    more = {"budget": budget, "plain": found["plain"], "step": found["offloaded"]}
    bench.ratio(name, found["offloaded"] / bound, target, bound=round(bound, 4), **more)
