"""python -m ravenstore.estimate [options] MODEL | config.json | script.py [arguments]."""

from __future__ import annotations

import argparse
import json
import sys

from ravenstore.errors import InvalidArgument
from ravenstore.estimate import (
    ALLOCATORS,
    GPU,
    RUNGS,
    CaptureRefused,
    Estimate,
    estimate_model,
    estimate_script,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ravenstore.estimate",
        description="How much memory of a GPU a job will need. No GPU is needed, nor used.",
        epilog="A script runs as it is, up to its third step, without a network; what it does to "
        "files, it does.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a torchvision name, a Hugging Face config.json, module:callable that makes a "
        "torch.nn.Module, or a script that trains (also as: python script.py)",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the script"
    )
    parser.add_argument("--json", action="store_true", help="the estimate as JSON, sizes in bytes")
    parser.add_argument("--gpu", default=GPU, help=f"its name ({GPU})")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="where it is not that GPU's own")
    parser.add_argument("--allocator", choices=ALLOCATORS, help="else as PyTorch's variables say")
    model = parser.add_argument_group("a model")
    model.add_argument("--batch", type=int, default=8, help="samples of a step (8)")
    model.add_argument("--sequence", type=int, help="tokens of a sample (512, or the model's most)")
    model.add_argument("--image", type=int, help="pixels of a side (the model's own, or 224)")
    model.add_argument("--optimizer", default="adamw", help="adamw, adam, sgd, momentum, ...")
    model.add_argument("--precision", default="fp32", help="fp32, bf16 or autocast")
    model.add_argument("--checkpointing", action="store_true", help="of activations")
    model.add_argument("--inference", action="store_true", help="no gradients, no optimizer")
    model.add_argument("--ranks", type=int, default=1, help="of DistributedDataParallel (1)")
    model.add_argument("--rung", choices=RUNGS, default=RUNGS[0], help="capture, or the formula")
    script = parser.add_argument_group("a script")
    script.add_argument("--seconds", type=float, default=300, help="what it may take (300)")
    script.add_argument("--memory", default="16GiB", metavar="SIZE", help="of the host (16GiB)")
    return parser


def _is_script(model: str) -> bool:
    name = model.rpartition("/")[2]
    return name.endswith(".py") or name.startswith("python")


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """A script's arguments are its own; a model's options may come behind it."""
    options = _parser().parse_args(arguments)
    model = options.model
    if options.arguments and not _is_script(model):
        _parser().parse_args([*options.arguments, "--", model], namespace=options)
        if options.model != model:
            raise CaptureRefused(
                f"{model} takes no arguments, as only a script does: leave out {options.model!r}"
            )
    return options


def _estimate(options: argparse.Namespace) -> Estimate:
    words = [options.model, *options.arguments]
    common = {
        "gpu": options.gpu,
        "gpu_memory": options.gpu_memory,
        "allocator": options.allocator,
    }
    if _is_script(options.model):
        return estimate_script(
            words, seconds_max=options.seconds, memory_max=options.memory, **common
        )
    sys.path.insert(0, "")
    return estimate_model(
        options.model,
        options.batch,
        sequence=options.sequence,
        image=options.image,
        optimizer=options.optimizer,
        precision=options.precision,
        checkpointing=options.checkpointing,
        inference=options.inference,
        ranks=options.ranks,
        rung=options.rung,
        **common,
    )


def main(arguments: list[str]) -> int:
    """Prints the estimate; 0, or 2 with a sentence where there is none."""
    try:
        options = _parsed(arguments)
        estimate = _estimate(options)
    except InvalidArgument as error:
        print(f"ravenstore: {error}", file=sys.stderr)
        return 2
    print(json.dumps(estimate.as_dict()) if options.json else estimate)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
