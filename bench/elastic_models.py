"""The programs of the elastic mode's table, by name: a model and what one step of it does. All are
built from their configurations, with random weights and data; none knows of Ravenstore."""

import dataclasses
import importlib.util
import pathlib
import sys

import torch
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Program:
    module: torch.nn.Module
    loss: object  # () -> the loss of one batch, which is always the same


def demo_model():
    """The package's, as a file: importing it through the package would load the client, and the
    package's folder on the path would hide the standard library's `profile`."""
    path = pathlib.Path(__file__).resolve().parent.parent / "python/ravenstore/_demo_model.py"
    spec = importlib.util.spec_from_file_location("_demo_model", path)
    sys.modules["_demo_model"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpt(shape, device):
    demo = demo_model()
    shape = demo.SHAPES[shape]
    model = demo.Gpt(shape).to(device)
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.length), device=device)

    def loss():
        logits = model.logits(tokens)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    return Program(model, loss)


def with_labels(model, batch, device):
    """One of the library `transformers`: its output has the loss."""
    model = model.to(device).train()
    batch = {name: rows.to(device) for name, rows in batch.items()}
    return Program(model, lambda: model(**batch).loss)


def gpt2(layers, width, heads, batch, device):
    import transformers

    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads)
    tokens = torch.randint(0, config.vocab_size, (batch, 1024))
    batch = {"input_ids": tokens, "labels": tokens}
    return with_labels(transformers.GPT2LMHeadModel(config), batch, device)


def bert(batch, device):
    import transformers

    config = transformers.BertConfig()
    tokens = torch.randint(0, config.vocab_size, (batch, 512))
    batch = {"input_ids": tokens, "labels": tokens}
    return with_labels(transformers.BertForMaskedLM(config), batch, device)


def whisper(batch, device):
    import transformers

    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    heard = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    said = torch.randint(3, 50000, (batch, config.max_target_positions))
    model = transformers.WhisperForConditionalGeneration(config)
    return with_labels(model, {"input_features": heard, "labels": said}, device)


def vision(name, batch, device):
    import torchvision

    model = getattr(torchvision.models, name)(weights=None).to(device).train()
    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)
    return Program(model, lambda: functional.cross_entropy(model(images), labels))


PROGRAMS = {
    **{f"gpt-{name}": (gpt, name) for name in ("tiny", "small", "medium", "large")},
    "gpt2": (gpt2, 12, 768, 12, 8),
    "gpt2-medium": (gpt2, 24, 1024, 16, 8),
    "bert": (bert, 16),
    "whisper": (whisper, 16),
    "resnet50": (vision, "resnet50", 32),
    "resnet101": (vision, "resnet101", 32),
    "alexnet": (vision, "alexnet", 128),
}


# PyTorch has no deterministic form of one of their operations.
VARYING = {"alexnet"}


def build(name, device):
    make, *arguments = PROGRAMS[name]
    return make(*arguments, device)
