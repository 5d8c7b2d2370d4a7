"""The programs of the elastic mode's table, by name: a model and what one step of it does. All are
built from their configurations, with random weights and data; none knows of Ravenstore."""

import dataclasses
import importlib.util
import math
import pathlib
import random
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint


@dataclasses.dataclass(frozen=True)
class Program:
    module: nn.Module
    loss: object
    """() -> a step's result, to compare with another's; of a training the loss of one batch."""
    optimizer: str = "adamw"
    """adamw, in mixed precision; sgd, for sparse gradients; none: nothing is trained."""
    recompute: object = None
    """() has the module keep less of the forward pass, and compute it again; None: it cannot."""


def demo_model():
    """The package's, as a file: importing it through the package would load the client, and the
    package's folder on the path would hide the standard library's `profile`."""
    path = pathlib.Path(__file__).resolve().parent.parent / "python/ravenstore/_demo_model.py"
    spec = importlib.util.spec_from_file_location("_demo_model", path)
    sys.modules["_demo_model"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recomputed(blocks):
    """Each of the blocks is computed again in the backward pass."""
    for block in blocks:
        forward = block.forward
        block.forward = lambda *given, forward=forward: checkpoint.checkpoint(
            forward, *given, use_reentrant=False
        )


def gpt(shape, device):
    demo = demo_model()
    shape = demo.SHAPES[shape]
    model = demo.Gpt(shape).to(device)
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.length), device=device)

    def loss():
        logits = model.logits(tokens)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    return Program(model, loss, recompute=lambda: recomputed(model.blocks))


def with_labels(model, batch, device):
    """One of the library `transformers`: its output has the loss."""
    model = model.to(device).train()
    batch = {name: rows.to(device) for name, rows in batch.items()}
    return Program(
        model, lambda: model(**batch).loss, recompute=model.gradient_checkpointing_enable
    )


def gpt2(layers, width, heads, batch, length, device):
    import transformers

    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=length, use_cache=False
    )
    tokens = torch.randint(0, config.vocab_size, (batch, length))
    batch = {"input_ids": tokens, "labels": tokens}
    return with_labels(transformers.GPT2LMHeadModel(config), batch, device)


def bert(layers, batch, length, device):
    import transformers

    config = transformers.BertConfig(num_hidden_layers=layers)
    tokens = torch.randint(0, config.vocab_size, (batch, length))
    batch = {"input_ids": tokens, "labels": tokens}
    return with_labels(transformers.BertForMaskedLM(config), batch, device)


def whisper(layers, batch, device):
    import transformers

    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False,
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
    stages = [model.layer1, model.layer2, model.layer3] if name.startswith("resnet") else []
    blocks = [block for stage in stages for block in stage]
    return Program(
        model,
        lambda: functional.cross_entropy(model(images), labels),
        recompute=(lambda: recomputed(blocks)) if blocks else None,
    )


class LlamaLayer(nn.Module):
    """With grouped queries: four heads share a key. Its cache grows with each call."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.keys, self.size = heads, heads // 4, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.queries = nn.Linear(width, width, bias=False)
        self.pairs = nn.Linear(width, 2 * self.keys * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    @staticmethod
    def turned(x, angles):
        a, b = x.chunk(2, dim=-1)
        return torch.cat(
            (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1
        ).to(x.dtype)

    def forward(self, x, angles, cache):
        batch, length, width = x.shape
        normed = self.norms[0](x)
        queries = self.queries(normed).view(batch, length, self.heads, self.size).transpose(1, 2)
        pairs = self.pairs(normed).view(batch, length, 2 * self.keys, self.size).transpose(1, 2)
        keys, values = pairs.chunk(2, dim=1)
        keys = self.turned(keys, angles)
        if cache is not None:
            keys, values = (
                torch.cat(two, dim=2) for two in zip(cache, (keys, values), strict=True)
            )
        mixed = functional.scaled_dot_product_attention(
            self.turned(queries, angles), keys, values, is_causal=length > 1, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed)), (keys, values)


class Llama(nn.Module):
    def __init__(self, layers, width, heads, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        self.frequencies = 10000.0 ** -(torch.arange(half, device="cpu") / half)

    def next(self, tokens, begin, caches):
        """The likeliest next tokens, and the caches with these in them."""
        places = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        angles = places[:, None] * self.frequencies.to(tokens.device)
        x = self.tokens(tokens)
        for i, layer in enumerate(self.layers):
            x, caches[i] = layer(x, angles, caches[i])
        return self.head(self.norm(x[:, -1:])).argmax(-1)


def llama(layers, width, heads, batch, prompt, answer, device):
    """A step answers a batch of prompts, token by token, and forgets it."""
    # Made in its own precision: twice that for a moment would be its peak.
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    model = Llama(layers, width, heads, 32000)
    torch.set_default_dtype(torch.float32)
    prompts = torch.randint(0, 32000, (batch, prompt), device=device)

    @torch.no_grad()
    def step():
        caches, tokens, total = [None] * layers, prompts, 0
        for begin in [0, *range(prompt, prompt + answer - 1)]:
            tokens = model.next(tokens, begin, caches)
            total = total + tokens.sum()
        return total

    return Program(model, step, optimizer="none")


def embedding(rows, width, batch, device):
    """Bags of rows by Zipf's law, the most frequent first, as vocabularies are sorted."""
    table = nn.EmbeddingBag(rows, width, mode="sum", sparse=True, device=device)

    def loss():
        bags = torch.exp(torch.rand(batch, 32, device=device) * math.log(rows)).long() - 1
        return (table(bags.clamp_(0, rows - 1)) ** 2).mean()

    return Program(table, loss, optimizer="sgd")


class Shuffled(nn.Module):
    """Matrices that are read and written in another order in each step."""

    def __init__(self, count, width):
        super().__init__()
        self.matrices = nn.ParameterList(torch.randn(width, width) / width for _ in range(count))

    @torch.no_grad()
    def step(self, x, order):
        for i in order:
            x = x + torch.tanh(x @ self.matrices[i])
            self.matrices[i].mul_(1 - 1 / 1024)
        return x.sum()


def shuffled(count, width, device):
    model = Shuffled(count, width).to(device)
    x = torch.randn(256, width, device=device)
    order, chance = list(range(count)), random.Random(1)

    def step():
        chance.shuffle(order)
        return model.step(x, order)

    return Program(model, step, optimizer="none")


# By name: what makes it, its sizes, and small ones for a machine without a GPU.
PROGRAMS = {
    **{f"gpt-{name}": (gpt, (name,), ("tiny",)) for name in ("tiny", "small", "medium", "large")},
    "gpt2": (gpt2, (12, 768, 12, 8, 1024), (2, 64, 2, 2, 32)),
    "gpt2-medium": (gpt2, (24, 1024, 16, 8, 1024), (2, 64, 2, 2, 32)),
    "bert": (bert, (12, 16, 512), (1, 1, 16)),
    "whisper": (whisper, (12, 16), (1, 1)),
    "resnet50": (vision, ("resnet50", 32), ("resnet50", 1)),
    "resnet101": (vision, ("resnet101", 32), ("resnet101", 1)),
    "alexnet": (vision, ("alexnet", 128), ("alexnet", 2)),
    "llama": (llama, (16, 2048, 32, 128, 128, 64), (2, 64, 4, 2, 8, 4)),
    "embedding": (embedding, (1 << 25, 128, 1 << 16), (1 << 10, 16, 64)),
    "shuffled": (shuffled, (192, 4096), (8, 64)),
}
# Those without a deterministic form of one of their operations.
VARYING = {"alexnet", "embedding"}


def build(name, device, small=False):
    make, sizes, small_sizes = PROGRAMS[name]
    # Straight onto the device: the CPU would take longer to make the weights than the steps do.
    with torch.device(device):
        return make(*(small_sizes if small else sizes), device)
