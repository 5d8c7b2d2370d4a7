"""python -m ravenstore demo: trains a small GPT with and without the store, and compares.

What is measured, alike for both: the bytes on the device over one step, of the parameters, the
optimizer's states, gradients and activations. With the store that is what the program uses, and
what is parked or idle there. On a CPU a private daemon's host backend stands for the device.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ravenstore import embedded
from ravenstore._plot import Curve, draw_png, draw_text
from ravenstore._progress import progress
from ravenstore._units import bytes_of, size_text
from ravenstore.errors import InvalidArgument, RavenstoreError
from ravenstore.offload import MIN_BLOCK_BYTES, Explanation, explain, offload, step
from ravenstore.profile import ON_DEVICE, PYTORCH, Event, profile

if TYPE_CHECKING:
    import torch

WARM_UP_STEPS = 2
"""The store learns from them, and libraries choose their kernels."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One training."""

    losses: list[float]
    step_ms: float
    """The median, without the first and the profiled one."""
    peak_bytes: int
    """On the device, parked and idle included."""
    used_bytes: int
    """Of it by the program."""
    outside_bytes: int
    """Of the peak: tensors that are not the store's, which has no budget for them."""
    curve: list[tuple[float, int]]
    """Milliseconds and bytes on the device, over the profiled step."""
    used_curve: list[tuple[float, int]]
    explanation: Explanation | None


def main(arguments: Sequence[str]) -> int:
    """Runs the demo; its exit code: 0 if the losses are equal, 1 if not or if a training failed, 2
    where there is no PyTorch to train with."""
    options = _parser().parse_args(arguments)
    try:
        # cuBLAS is deterministic with it alone, which it reads when CUDA starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        import torch
    except ImportError as error:
        print(f"the demo needs PyTorch: {error}", file=sys.stderr)
        return 2
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    options.size = options.size or ("medium" if device.type == "cuda" else "small")
    try:
        # What is saved as ever is the yardstick, so it comes first: later the allocator is ours.
        plain = _train(options, device, None)
        scope = _scope_options(options, device, plain.peak_bytes)
        ours = _train(options, device, scope)
    except (RavenstoreError, RuntimeError) as error:  # torch.OutOfMemoryError is one
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    _show(options, device, plain, ours, scope["device_budget"])
    return 0 if plain.losses == ours.losses else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m ravenstore demo", description=__doc__)
    parser.add_argument("--size", choices=("tiny", "small", "medium", "large"))
    parser.add_argument("--steps", type=_count, default=4, help="timed ones, after a warm-up")
    parser.add_argument("--budget", default="60%", help="bytes, or a share of the plain peak")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")
    parser.add_argument("--socket", help="the daemon's; default: the node's, else a private one")
    parser.add_argument(
        "--plot", default="ravenstore-demo.png", help="the file, if there is matplotlib"
    )
    parser.add_argument("--traces", help="a folder for the two Perfetto traces")
    parser.add_argument("--json", action="store_true", help="figures instead of a table and a plot")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count}: at least 1")
    return count


def _scope_options(
    options: argparse.Namespace, device: torch.device, plain_peak: int
) -> dict[str, Any]:
    if options.budget.endswith("%"):
        try:
            share = float(options.budget[:-1])
        except ValueError:
            raise InvalidArgument(f"{options.budget!r} is no budget such as 60% or 12GiB") from None
        budget = int(plain_peak * share / 100)
    else:
        budget = bytes_of(options.budget)
    chosen: dict[str, Any] = {"device_budget": budget}
    if options.socket is not None:
        return {**chosen, "socket": options.socket}
    if device.type == "cuda":
        return chosen
    # Its device is what the program would have had.
    total = max(1 << 28, 2 * plain_peak)
    embedded.start(backend="host", device_total=total, pool_size=total)
    return {**chosen, "embedded": True}


# ---- A training


def _train(
    options: argparse.Namespace, device: torch.device, scope: dict[str, Any] | None
) -> Result:
    import torch

    from ravenstore._demo_model import SHAPES, Gpt, batches

    def train_step(tokens: torch.Tensor) -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            if scope is None:
                loss = model(tokens)
            else:
                with offload(**scope):
                    loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if scope is not None:
            step()
        return float(loss.detach())

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    shape = SHAPES[options.size]
    if scope is not None:
        with offload(**scope):
            pass  # the model is made in the store's memory
    model = Gpt(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    count = WARM_UP_STEPS + options.steps
    losses, times = [], []
    steps = batches(shape, count + 1, device)
    name = "with the store" if scope else "plain"
    for tokens in progress(steps[:-1], f"{name:<14}"):
        begin = time.perf_counter()
        losses.append(train_step(tokens))
        times.append(time.perf_counter() - begin)
    with tempfile.TemporaryDirectory(prefix="ravenstore-") as folder:
        if options.traces:
            os.makedirs(options.traces, exist_ok=True)
        path = os.path.join(options.traces or folder, f"{name.replace(' ', '-')}.json")
        with profile(path, interval=0.0005) as profiled:
            losses.append(train_step(steps[-1]))
    standing = _standing_bytes(model, optimizer, steps, in_store=scope is not None)
    curves = _curves(profiled.events, 0 if device.type == "cuda" else standing)
    curve, used_curve, _ = curves
    peak, _, outside = max(zip(*([value for _, value in one] for one in curves), strict=True))
    return Result(
        losses=losses,
        step_ms=statistics.median(times[WARM_UP_STEPS:]) * 1e3,
        peak_bytes=peak,
        used_bytes=max(value for _, value in used_curve),
        outside_bytes=outside,
        curve=curve,
        used_curve=used_curve,
        explanation=explain() if scope is not None else None,
    )


def _standing_bytes(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Sequence[torch.Tensor],
    *,
    in_store: bool,
) -> int:
    """What is there before a step and after it, and is not counted as the store's. On a CPU
    torch.profiler counts from its begin only."""
    import torch

    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*model.parameters(), *steps, *(value for value in states if torch.is_tensor(value))]
    sizes = [tensor.untyped_storage().nbytes() for tensor in tensors]
    return sum(size for size in sizes if not in_store or size < MIN_BLOCK_BYTES)


def _curves(events: Sequence[Event], standing: int) -> tuple[list[tuple[float, int]], ...]:
    """(ms, bytes) on the device, in use there, and of that not the store's; from a profile."""
    counters = [event for event in events if event["ph"] == "C"]
    gpu = any(event["name"].startswith(f"{PYTORCH}, GPU") for event in counters)
    counted = f"{PYTORCH}, GPU" if gpu else f"{PYTORCH}, CPU"
    counters = [event for event in counters if event["name"].startswith((counted, ON_DEVICE))]
    counters.sort(key=lambda event: float(event["ts"]))
    held, used, not_in_store = [], [], []
    own, in_use, away = standing, 0, 0
    for event in counters:
        values = event["args"]
        if event["name"] == ON_DEVICE:
            in_use, away = values["used"], values["idle"] + values["parked"]
        else:
            own = standing + sum(values.values())
        ms = (event["ts"] - counters[0]["ts"]) / 1e3
        held.append((ms, own + in_use + away))
        used.append((ms, own + in_use))
        not_in_store.append((ms, own))
    return held, used, not_in_store


# ---- What is shown


def _show(
    options: argparse.Namespace, device: torch.device, plain: Result, ours: Result, budget: int
) -> None:
    why = ours.explanation
    assert why is not None
    equal = plain.losses == ours.losses
    if options.json:
        figures = {
            name: {
                key: value
                for key, value in dataclasses.asdict(result).items()
                if key not in ("curve", "used_curve", "explanation")
            }
            for name, result in (("plain", plain), ("store", ours))
        }
        moved = {"way": why.way, "bytes_out": why.bytes_out, "bytes_in": why.bytes_in}
        more = {"device": device.type, "size": options.size, "budget_bytes": budget}
        print(json.dumps({**more, **figures, **moved, "losses_equal": equal}))
        return
    print(_table(options, device, plain, ours, budget))
    curves = [
        Curve("plain", plain.curve),
        Curve("with the store: in use", ours.used_curve),
        Curve("with the store: in use, parked and idle", ours.curve),
    ]
    title = f"memory on the device over one step ({options.size}, {device.type})"
    if draw_png(options.plot, curves, title):
        print(f"\nplot: {options.plot}")
    else:
        print(f"\n{draw_text(curves[:2], title)}\n(pip install matplotlib for a picture)")
    print(f"\n{why}")


def _table(
    options: argparse.Namespace, device: torch.device, plain: Result, ours: Result, budget: int
) -> str:
    why = ours.explanation
    assert why is not None
    steps = len(ours.losses)
    equal = "equal bit for bit" if plain.losses == ours.losses else "NOT equal"
    rows = [
        ("", "plain", "with the store"),
        ("peak on the device", size_text(plain.peak_bytes), size_text(ours.peak_bytes)),
        ("  of it in use", size_text(plain.used_bytes), size_text(ours.used_bytes)),
        ("step", f"{plain.step_ms:.1f} ms", f"{ours.step_ms:.1f} ms"),
        ("moved out, a step", "0 B", size_text(why.bytes_out / steps)),
        ("moved back, a step", "0 B", size_text(why.bytes_in / steps)),
        ("last loss", f"{plain.losses[-1]:.4f}", f"{ours.losses[-1]:.4f}"),
        (f"losses of {steps} steps", "", equal),
    ]
    small = size_text(MIN_BLOCK_BYTES)
    note = (
        f"The budget is for tensors of {small} or more, parked and idle ones included.\n"
        f"It leaves out smaller ones, which are {size_text(ours.outside_bytes)} of the peak."
    )
    head = (
        f"a GPT of size {options.size} on {device.type}, budget {size_text(budget)}, way {why.way}"
    )
    return "\n".join([head, *(f"{name:<22}{one:>14}{two:>20}" for name, one, two in rows), note])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
