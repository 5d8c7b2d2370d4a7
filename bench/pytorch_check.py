"""Part of bench/pytorch_bench.py: losses and gradients against plain's, bit for bit.

A process that trains plain, and then with a budget in which everything stays, says what its own
deterministic kernels hold and save: the budgets of the others come from that. The least budget
is what a model must hold at the same time. For a small share of what is saved, it is more than was
asked.
"""

from concurrent.futures import ThreadPoolExecutor

# Of a budget in which some block finds no addresses in one piece, of what must be held.
RAISES = (0.1, 0.2, 0.4)
LEAST_OVER_USED = 1.05
WAIT_S = 8  # for room; what has not come by then does not come


# --- The measuring process ---


def digest(torch, tensors):
    """64 bits of the bits of `tensors`, each weighted by where it is. Needs little memory."""
    total = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
    for tensor in tensors:
        bits = (
            tensor.detach().contiguous().view(torch.int32 if tensor.itemsize == 4 else torch.int16)
        )
        rows = bits.reshape(bits.shape[0] if bits.dim() > 1 else 1, -1)
        for sums in (rows.sum(0, dtype=torch.int64), rows.sum(1, dtype=torch.int64)):
            places = torch.arange(1, sums.numel() + 1, device=sums.device)
            total = total * 1000003 + (sums * places).sum()
    return total


def train(torch, job, steps, scope=None):
    """(loss, digest of the gradients) of each step, and the digest of the parameters after all."""
    import contextlib

    seen = []
    for _ in range(steps):
        loss = job.forward(scope or contextlib.nullcontext)
        loss.backward()
        gradients = [p.grad for p in job.model.parameters() if p.grad is not None]
        seen.append((loss.detach(), digest(torch, gradients)))
        del gradients, loss
        job.update()
    last = digest(torch, list(job.model.parameters()))
    return [*((loss.item().hex(), bits.item()) for loss, bits in seen), last.item()]


def work(options):
    import pytorch_job
    import pytorch_meter
    import ravenstore
    import torch
    from ravenstore import embedded

    # Not so that an operation without a deterministic form only warns: attention by cuDNN would
    # then choose the other, and plain would differ from plain.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    result = {}
    if options["plain"]:
        result["plain"] = train(torch, pytorch_job.Job(options), options["steps"])
        pytorch_job.forget()
        yield result
        if options["budget"] is None:
            return
    embedded.start(**options["daemon"])

    def scope():
        return ravenstore.offload(options["budget"], embedded=True, timeout=WAIT_S)

    with scope():
        pass  # the model is made in the store's memory
    try:
        job = pytorch_job.Job(options)
        result["ours"] = train(torch, job, options["steps"], scope)
    except RuntimeError as error:
        if not pytorch_job.is_out_of_memory(error):
            raise
        yield {**result, "out_of_memory": str(error)[:300]}
        return
    blocks = pytorch_meter.native().block_stats(0)
    explained = ravenstore.explain()
    result.update(used_peak=blocks["used_peak"], needed_peak=blocks["needed_peak"])
    result.update(saved=explained.live_bytes_peak, bytes_in=explained.bytes_in)
    yield {**result, "explain": str(explained)}


# --- The part ---


def check(bench):
    chains = [(job, kind) for job in bench.arguments.jobs for kind in bench.arguments.kinds]
    with ThreadPoolExecutor(bench.arguments.parallel) as pool:
        for _ in pool.map(lambda chain: _check_one(bench, *chain), chains):
            pass


def _check_one(bench, job, kind):
    """The plain run with everything kept, and then each budget."""
    shares = bench.arguments.shares
    names = [f"correctness.{job}.{kind}.{share}" for share in shares]
    lacking = bench.lacking(job)
    if lacking:
        return bench.skip(lacking, *names)
    common = {"job": job, "kind": kind, "steps": bench.arguments.check_steps}
    whole = bench.run("check", plain=True, budget=bench.ample, **common)
    if whole is None or "needed_peak" not in whole:
        return bench.miss(*names)
    for name, share in zip(names, shares, strict=True):
        if share == 100:
            _emit(bench, name, whole, whole, bench.ample)
            continue
        least = int(whole["used_peak"] * LEAST_OVER_USED)
        wanted = int(whole["needed_peak"] - whole["saved"] * (100 - share) // 100)
        budget, found = max(wanted, least), None
        for more in (0.0, *RAISES):
            budget += int(whole["used_peak"] * more)
            found = bench.run("check", plain=False, budget=budget, **common)
            if found is None or "out_of_memory" not in found:
                break
        if found is None:
            bench.miss(name)
        elif found.get("ours", whole["plain"]) != whole["plain"]:
            _emit(bench, name, whole, found, budget, again=_plain_again(bench, whole, common))
        else:
            _emit(bench, name, whole, found, budget)
    return None


def _plain_again(bench, whole, common):
    """Whether plain's own bits are the same in another process, else what differs says nothing."""
    again = bench.run("check", plain=True, budget=None, **common)
    return None if again is None else again["plain"] == whole["plain"]


def _emit(bench, name, whole, found, budget, again=None):
    """`again`: whether plain is equal to itself, where that was asked."""
    more = {"budget": budget, "used_peak": whole["used_peak"], "saved": whole["saved"]}
    if "out_of_memory" in found:
        bench.say(name, None, "0 or 1", 1, False, failed=found["out_of_memory"], **more)
        return
    equal = found["ours"] == whole["plain"]
    more["moved_in"] = found["bytes_in"]
    more["kept_of_saved"] = round(
        min(1, 1 - (whole["needed_peak"] - budget) / max(1, whole["saved"])), 3
    )
    if again is not None:
        more["plain_equals_itself"] = again
    if not equal:
        pairs = zip(found["ours"], whole["plain"], strict=True)
        more["first_different_step"] = next(i for i, (a, b) in enumerate(pairs) if a != b)
    bench.say(name, int(equal), "0 or 1", 1, equal, **more)
