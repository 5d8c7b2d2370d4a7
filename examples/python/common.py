"""What the examples share: their options, and a training loop with the one line in it."""

import argparse
import contextlib
import importlib
import sys

import ravenstore
import torch


def need(module):
    """The module, or the program's end with words that say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        sys.exit(f"this example needs {module}: pip install {module} ({error})")


def parse(description, sizes):
    """The options: `sizes` maps a name to its default, an int."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--budget", default="12GiB", help="device memory for all that is large")
    parser.add_argument("--embedded", action="store_true", help="a private daemon, not the node's")
    parser.add_argument("--without", action="store_true", help="train without the store")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def offload(options):
    """The one line of this package."""
    return ravenstore.offload(device_budget=options.budget, embedded=options.embedded)


def train(options, make_model, make_batch, scope=None):
    """Trains for options.steps; make_batch(generator) gives the arguments of the model, whose
    output has the loss. Prints the losses, the peak and what the store did."""
    if scope is None:
        scope = contextlib.nullcontext() if options.without else offload(options)
    with scope:
        pass  # what is made from here on may be the store's memory
    torch.manual_seed(0)
    model = make_model().to(options.device).train()
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=3e-4)
    generator = torch.Generator().manual_seed(1)
    for step in range(options.steps):
        batch = {name: rows.to(options.device) for name, rows in make_batch(generator).items()}
        mixed = torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda")
        with mixed, scope:
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    report(options)


def report(options):
    """The peak, and what became of what autograd saved."""
    if options.device == "cuda":
        print(f"peak: {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    if not options.without:
        explained = ravenstore.explain()
        if options.device == "cpu":
            print(f"peak: {explained.used_bytes_peak / 2**20:.1f} MiB in blocks of 1 MiB and more")
        print(explained)
