"""The measuring processes of bench/pytorch_curve.py: ours, and what PyTorch brings itself."""

# Coarse first: a whole model's program takes its time to compile.
MEMORY_BUDGETS = (1.0, 0.5, 0.2, 0.7, 0.0, 0.3, 0.8, 0.1, 0.9, 0.4, 0.6)
METERED_STEPS = 2


def measure(job, options, scope, stores=()):
    """A step's seconds and the most bytes on the device."""
    import statistics

    import pytorch_meter

    job.times(options["warmup"], scope)
    seconds = statistics.median(job.times(options["steps"], scope))
    with pytorch_meter.Meter(job.device, stores) as meter:
        job.times(METERED_STEPS, scope)
    return {"step": seconds, "live": meter.live, "physical": meter.physical}


def attempt(name, options, prepare=None, scope=None, **more):
    """One of PyTorch's own means: makes the job, lets `prepare` change it, and measures."""
    import contextlib

    import pytorch_job

    try:
        job = pytorch_job.Job({**options, **more})
        if prepare is not None:
            prepare(job)
        return {"name": name, **measure(job, options, scope or contextlib.nullcontext)}
    except Exception as error:  # noqa: BLE001 - a rival that fails is a point that is not there
        return {"name": name, "failed": f"{type(error).__name__}: {error}"[:300]}
    finally:
        pytorch_job.forget()


def save_products():
    """Selective checkpointing as its documentation has it: products are saved, the rest is not."""
    import torch
    from torch.utils import checkpoint

    aten = torch.ops.aten
    saved = {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }

    def policy(_context, operation, *_args, **_kwargs):
        found = operation in saved
        chosen = checkpoint.CheckpointPolicy
        return chosen.MUST_SAVE if found else chosen.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)


def eager_rivals(options):
    import torch

    yield attempt("plain", options)
    for every in (1, 2, 3, 4):
        yield attempt(f"checkpoint.{every}", options, lambda job, k=every: job.checkpoint(k))
    for every in (1, 2):
        yield attempt(
            f"sac.{every}",
            options,
            lambda job, k=every: job.checkpoint(k, context_fn=save_products),
        )

    def on_cpu():
        return torch.autograd.graph.save_on_cpu(pin_memory=options["device"] == "cuda")

    yield attempt("save_on_cpu", options, scope=on_cpu)


def mark_for_offloading(graph, _inputs):
    """Everything large: PyTorch leaves alone what it cannot offload."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and hasattr(value, "nbytes") and value.nbytes >= 1 << 20:
            node.meta["should_offload"] = True
    return graph


def compiled_rivals(options):
    """The whole model as one program: PyTorch's own budget, and its own offloading."""
    import torch
    import torch._functorch.config as config

    yield attempt("plain", options)
    for budget in MEMORY_BUDGETS:
        torch.compiler.reset()
        with config.patch(activation_memory_budget=budget):
            yield attempt(f"memory_budget.{budget}", options, kind="whole")
    torch.compiler.reset()
    with config.patch(
        enable_activation_offloading=True,
        activation_offload_separate_stream=options["device"] == "cuda",
        activation_offload_sink_wait=options["device"] == "cuda",
        activation_reload_prefetch=options["device"] == "cuda",
        joint_custom_pass=mark_for_offloading,
    ):
        yield attempt("activation_offloading", options, kind="whole")


def away(job, options):
    """The optimizer's states live in the store, updated in the backward pass; their store."""
    import ravenstore

    # With four chunks the processor waits for room, and has no lead over the GPU.
    chunk, chunks = (64 << 20, 16) if options["device"] == "cuda" else (512 << 10, 4)
    store = ravenstore.Store.connect(embedded=True, device_budget=chunks * chunk)
    ravenstore.offload_optimizer(job.optimizer, store, in_backward=True, chunk=chunk)
    return store


def ours(options):
    """A plain step of the same kind, and then ours with everything made in the store's memory."""
    import pytorch_job
    import pytorch_meter
    import ravenstore
    from ravenstore import embedded

    yield attempt("plain", options)
    embedded.start(**options["daemon"])

    def scope():
        return ravenstore.offload(options["budget"], embedded=True)

    with scope():
        pass
    job = pytorch_job.Job(options)
    stores = [away(job, options)] if options["states"] else []
    pytorch_meter.native().reset_peaks(0)
    result = measure(job, options, scope, stores)
    blocks, explained = pytorch_meter.native().block_stats(0), ravenstore.explain()
    for name in ("used_peak", "held_peak", "needed_peak"):
        result[name] = blocks[name]
    yield {
        "name": "ours",
        **result,
        "saved": explained.live_bytes_peak,
        "bytes_in": explained.bytes_in,
        "explain": str(explained),
    }


def work(options):
    return {"eager": eager_rivals, "compiled": compiled_rivals, "ours": ours}[options["of"]](
        options
    )
