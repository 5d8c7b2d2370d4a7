"""A LoRA fine-tuning of a LLaMA-shaped model that runs out of memory without the one line.

    python3 examples/python/lora_llama.py             # finishes within --budget
    python3 examples/python/lora_llama.py --without   # the same within the same memory: it does not

The shape is that of LLaMA 3.2 with a billion parameters; on a CPU take less:

    python3 examples/python/lora_llama.py --embedded --budget 40MiB --layers 4 --width 128 \\
        --heads 4 --kv-heads 2 --inner 512 --length 256 --batch 8 --vocabulary 512 --steps 3

--without bounds the memory as well. On a GPU PyTorch's own limit does it; on a CPU, which has none,
the store's allocator, with no scope around the forward pass.
"""

import contextlib
import sys
import types

import common
import ravenstore
import torch
from torch import nn
from torch.nn import functional

RANK = 8


class LoraLinear(nn.Module):
    """A frozen linear layer plus a learned product of two thin ones."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)  # at first it changes nothing

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def rotated(x):
    """Rotary positions, of (batch, heads, length, width of a head)."""
    length, width = x.shape[-2:]
    rates = 10000 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = torch.arange(length, device=x.device)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, options):
        super().__init__()
        width, self.heads, self.kv_heads = options.width, options.heads, options.kv_heads
        self.head_width = width // self.heads
        kv_width = self.kv_heads * self.head_width
        self.before_attention = nn.RMSNorm(width)
        self.query = LoraLinear(width, width)
        self.key = nn.Linear(width, kv_width, bias=False)
        self.value = LoraLinear(width, kv_width)
        self.out = nn.Linear(width, width, bias=False)
        self.before_mlp = nn.RMSNorm(width)
        self.gate = nn.Linear(width, options.inner, bias=False)
        self.up = nn.Linear(width, options.inner, bias=False)
        self.down = nn.Linear(options.inner, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape

        def split(rows, heads):
            return rows.view(batch, length, heads, self.head_width).transpose(1, 2)

        normed = self.before_attention(x)
        query = rotated(split(self.query(normed), self.heads))
        key = rotated(split(self.key(normed), self.kv_heads))
        value = split(self.value(normed), self.kv_heads)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.width)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)
        self.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, LoraLinear):
                module.down.requires_grad_(True)
                module.up.requires_grad_(True)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())
        return types.SimpleNamespace(loss=loss)


def limited(options):
    """The same memory without the store: a scope that does nothing."""
    if options.device == "cuda":
        budget = ravenstore.bytes_of(options.budget)
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total))
    else:
        with common.offload(options):
            pass
    return contextlib.nullcontext()


def main():
    sizes = {"layers": 16, "width": 2048, "heads": 32, "kv-heads": 8, "inner": 8192}
    more = {"length": 2048, "batch": 8, "vocabulary": 32000}
    options = common.parse(__doc__, {**sizes, **more})

    def make_model():
        kind = torch.bfloat16 if options.device == "cuda" else torch.float32
        return Llama(options).to(kind)

    def make_batch(generator):
        size = (options.batch, options.length)
        return {"tokens": torch.randint(options.vocabulary, size, generator=generator)}

    try:
        common.train(options, make_model, make_batch, limited(options) if options.without else None)
    except torch.OutOfMemoryError as error:
        sys.exit(f"out of memory within {options.budget}: {error}")


if __name__ == "__main__":
    main()
