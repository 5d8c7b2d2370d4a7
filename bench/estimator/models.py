"""The models of the estimator's jobs: written as people write them, sized at random.

Each has `batch(n, dtype)`: a batch of n samples on the current default device; `loss(*batch)`; and
where its blocks can be checkpointed, `blocks()`.
"""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "elu": nn.ELU}
KINDS_2D = {"batch": nn.BatchNorm2d, "group": lambda width: nn.GroupNorm(8, width), "none": None}


def classified(logits, target):
    return F.cross_entropy(logits, target)


class Mlp(nn.Module):
    def __init__(self, inputs, widths, classes, activation, norm, dropout):
        super().__init__()
        self.inputs, self.classes = inputs, classes
        layers, before = [], inputs
        for width in widths:
            layers.append(nn.Linear(before, width))
            if norm == "batch":
                layers.append(nn.BatchNorm1d(width))
            elif norm == "layer":
                layers.append(nn.LayerNorm(width))
            layers.append(ACTIVATIONS[activation]())
            if dropout:
                layers.append(nn.Dropout(dropout))
            before = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(before, classes)

    def batch(self, n, dtype):
        return torch.randn(n, self.inputs, dtype=dtype), torch.randint(self.classes, (n,))

    def loss(self, x, target):
        return classified(self.head(self.body(x)), target)


def draw_mlp(rng: random.Random) -> dict:
    depth, width = rng.randint(1, 12), 2 ** rng.randint(7, 13)
    shape = rng.choice(["even", "narrowing", "bottle"])
    widths = [width] * depth
    if shape == "narrowing":
        widths = [max(32, width >> (i // 2)) for i in range(depth)]
    elif shape == "bottle":
        widths = [max(32, width >> min(i, depth - 1 - i)) for i in range(depth)]
    return {
        "inputs": rng.choice([128, 784, 1024, 3072, 4096]),
        "widths": widths,
        "classes": rng.choice([10, 100, 1000]),
        "activation": rng.choice(list(ACTIVATIONS)),
        "norm": rng.choice(["none", "batch", "layer"]),
        "dropout": rng.choice([0, 0, 0.1, 0.5]),
    }


class _Conv(nn.Sequential):
    """Convolution, norm, activation: where all three are wanted."""

    def __init__(self, before, after, size, stride, norm, activation):
        layers = [nn.Conv2d(before, after, size, stride, size // 2, bias=norm == "none")]
        if KINDS_2D[norm]:
            layers.append(KINDS_2D[norm](after))
        if activation == "relu_inplace":
            layers.append(nn.ReLU(inplace=True))
        elif activation:
            layers.append(ACTIVATIONS[activation]())
        super().__init__(*layers)


class _Pictures(nn.Module):
    """What all that see pictures share."""

    def __init__(self, picture, classes):
        super().__init__()
        self.picture, self.classes = picture, classes

    def batch(self, n, dtype):
        side = self.picture
        return torch.randn(n, 3, side, side, dtype=dtype), torch.randint(self.classes, (n,))

    def loss(self, x, target):
        return classified(self(x), target)


class Cnn(_Pictures):
    """Stages of convolutions, each ended by pooling, then linear layers."""

    def __init__(self, picture, classes, widths, each, norm, activation, dropout, head):
        super().__init__(picture, classes)
        layers, before, side = [], 3, picture
        for width in widths:
            for _ in range(each):
                layers.append(_Conv(before, width, 3, 1, norm, activation))
                before = width
            layers.append(nn.MaxPool2d(2))
            side //= 2
        self.body = nn.Sequential(*layers)
        if head == "flat":
            inner = [nn.Linear(before * side * side, 512), nn.ReLU()]
            before = 512
        else:
            inner = []
        if dropout:
            inner.append(nn.Dropout(dropout))
        self.flat = head == "flat"
        self.head = nn.Sequential(*inner, nn.Linear(before, classes))

    def forward(self, x):
        x = self.body(x)
        return self.head(x.flatten(1) if self.flat else x.mean((2, 3)))


def _picture(rng):
    return {
        "picture": rng.choice([32, 64, 96, 128, 224]),
        "classes": rng.choice([10, 100, 1000]),
        "norm": rng.choice(["batch", "batch", "group", "none"]),
        "activation": rng.choice(["relu", "relu_inplace", "relu_inplace", "gelu", "silu"]),
    }


def draw_cnn(rng: random.Random) -> dict:
    width = rng.choice([16, 32, 64, 96])
    stages = rng.randint(2, 5)
    return _picture(rng) | {
        "widths": [min(512, width << i) for i in range(stages)],
        "each": rng.randint(1, 4),
        "dropout": rng.choice([0, 0.2, 0.5]),
        "head": rng.choice(["flat", "mean"]),
    }


class _ResidualBlock(nn.Module):
    def __init__(self, before, width, stride, norm, activation, bottleneck):
        super().__init__()
        if bottleneck:
            after = width * 4
            self.path = nn.Sequential(
                _Conv(before, width, 1, 1, norm, activation),
                _Conv(width, width, 3, stride, norm, activation),
                _Conv(width, after, 1, 1, norm, None),
            )
        else:
            after = width
            self.path = nn.Sequential(
                _Conv(before, width, 3, stride, norm, activation),
                _Conv(width, width, 3, 1, norm, None),
            )
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else _Conv(before, after, 1, stride, norm, None)
        inplace = activation == "relu_inplace"
        self.last = nn.ReLU(inplace=True) if inplace else ACTIVATIONS[activation]()
        self.after = after

    def forward(self, x):
        return self.last(self.path(x) + self.short(x))


class Residual(_Pictures):
    def __init__(self, picture, classes, width, each, norm, activation, bottleneck):
        super().__init__(picture, classes)
        self.stem = _Conv(
            3, width, 7 if picture > 96 else 3, 2 if picture > 96 else 1, norm, activation
        )
        self.pool = nn.MaxPool2d(3, 2, 1) if picture > 96 else nn.Identity()
        blocks, before = [], width
        for stage, count in enumerate(each):
            for i in range(count):
                stride = 2 if stage and not i else 1
                blocks.append(
                    _ResidualBlock(before, width << stage, stride, norm, activation, bottleneck)
                )
                before = blocks[-1].after
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def blocks(self):
        return list(self.body)

    def forward(self, x):
        return self.head(self.body(self.pool(self.stem(x))).mean((2, 3)))


def draw_residual(rng: random.Random) -> dict:
    return _picture(rng) | {
        "width": rng.choice([16, 32, 64, 64, 96]),
        "each": [rng.randint(1, 6) for _ in range(rng.randint(2, 4))],
        "bottleneck": rng.random() < 0.5,
    }


class _DenseLayer(nn.Module):
    def __init__(self, before, growth, norm, activation, dropout):
        super().__init__()
        self.path = nn.Sequential(
            _Conv(before, 4 * growth, 1, 1, norm, activation),
            _Conv(4 * growth, growth, 3, 1, norm, activation),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return torch.cat([x, self.path(x)], 1)


class Dense(_Pictures):
    def __init__(self, picture, classes, growth, each, norm, activation, dropout):
        super().__init__(picture, classes)
        width = 2 * growth
        layers = [_Conv(3, width, 3, 2 if picture > 64 else 1, norm, activation)]
        if picture > 64:
            layers.append(nn.MaxPool2d(3, 2, 1))
        for stage, count in enumerate(each):
            for _ in range(count):
                layers.append(_DenseLayer(width, growth, norm, activation, dropout))
                width += growth
            if stage + 1 < len(each):
                half = max(8, width // 16 * 8)
                layers += [_Conv(width, half, 1, 1, norm, activation), nn.AvgPool2d(2)]
                width = half
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def blocks(self):
        return [layer for layer in self.body if isinstance(layer, _DenseLayer)]

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def draw_dense(rng: random.Random) -> dict:
    return _picture(rng) | {
        "growth": rng.choice([8, 16, 24, 32]),
        "each": [rng.randint(2, 12) for _ in range(rng.randint(2, 4))],
        "dropout": rng.choice([0, 0, 0.2]),
    }


class _Attention(nn.Module):
    """Attention by the fused kernel, or written out as softmax of a matrix."""

    def __init__(self, width, heads, fused, causal, dropout):
        super().__init__()
        self.heads, self.fused, self.causal, self.chance = heads, fused, causal, dropout
        self.query = nn.Linear(width, width)
        self.pair = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def _split(self, x):
        n, length, width = x.shape
        return x.view(n, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        key, value = (self._split(part) for part in self.pair(memory).chunk(2, -1))
        query = self._split(self.query(x))
        if self.fused:
            chance = self.chance if self.training else 0.0
            mixed = F.scaled_dot_product_attention(
                query, key, value, dropout_p=chance, is_causal=self.causal
            )
        else:
            scores = query @ key.transpose(-2, -1) / (query.shape[-1] ** 0.5)
            if self.causal:
                ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device)
                scores = scores.masked_fill(ones.triu(1), float("-inf"))
            mixed = self.dropout(scores.softmax(-1)) @ value
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class _TransformerBlock(nn.Module):
    def __init__(self, width, heads, fused, causal, dropout, crossed, activation, inner):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = _Attention(width, heads, fused, causal, dropout)
        self.crossed = _Attention(width, heads, fused, False, dropout) if crossed else None
        self.before_crossed = nn.LayerNorm(width) if crossed else None
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, inner * width),
            ACTIVATIONS[activation](),
            nn.Linear(inner * width, width),
            nn.Dropout(dropout),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory=None):
        x = x + self.dropout(self.attention(self.before(x)))
        if self.crossed is not None:
            x = x + self.dropout(self.crossed(self.before_crossed(x), memory))
        return x + self.mlp(self.before_mlp(x))


class _Tokens(nn.Module):
    def __init__(self, vocabulary, length, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places.weight[: tokens.shape[1]]


class Transformer(nn.Module):
    """An encoder with a head for classes, a decoder with one for the next token, or both."""

    def __init__(
        self, kind, width, heads, layers, length, vocabulary, fused, dropout, activation, inner
    ):
        super().__init__()
        self.kind, self.length, self.vocabulary = kind, length, vocabulary
        self.embedding = _Tokens(vocabulary, length, width)
        shared = (dropout, activation, inner)

        def stack(count, causal, crossed):
            return nn.ModuleList(
                _TransformerBlock(width, heads, fused, causal, dropout, crossed, activation, inner)
                for _ in range(count)
            )

        del shared
        self.encoder = stack(layers, False, False) if kind != "decoder" else None
        self.decoder = stack(layers, True, kind == "both") if kind != "encoder" else None
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, 32 if kind == "encoder" else vocabulary, bias=False)

    def blocks(self):
        return [*(self.encoder or ()), *(self.decoder or ())]

    def batch(self, n, dtype):
        tokens = torch.randint(self.vocabulary, (n, self.length))
        target = torch.randint(32, (n,)) if self.kind == "encoder" else tokens
        return tokens, target

    def loss(self, tokens, target):
        x = memory = self.embedding(tokens)
        for block in self.encoder or ():
            memory = x = block(x)
        if self.decoder is not None:
            x = self.embedding(target) if self.kind == "both" else x
            for block in self.decoder:
                x = block(x, memory)
        x = self.last(x)
        if self.kind == "encoder":
            return classified(self.head(x.mean(1)), target)
        return classified(self.head(x).flatten(0, 1), target.flatten())


def draw_transformer(rng: random.Random) -> dict:
    heads = rng.choice([4, 8, 12, 16])
    return {
        "kind": rng.choice(["encoder", "decoder", "both"]),
        "width": heads * rng.choice([32, 64, 64, 128]),
        "heads": heads,
        "layers": rng.randint(1, 16),
        "length": rng.choice([64, 128, 256, 512, 1024, 2048]),
        "vocabulary": rng.choice([1000, 8192, 30522, 50257]),
        "fused": rng.random() < 0.7,
        "dropout": rng.choice([0, 0.1]),
        "activation": rng.choice(["relu", "gelu", "silu"]),
        "inner": rng.choice([2, 4, 4]),
    }


class Lstm(nn.Module):
    def __init__(self, width, layers, length, vocabulary, both_ways, dropout):
        super().__init__()
        self.length, self.vocabulary = length, vocabulary
        self.tokens = nn.Embedding(vocabulary, width)
        self.body = nn.LSTM(
            width, width, layers, batch_first=True, dropout=dropout, bidirectional=both_ways
        )
        self.head = nn.Linear(width * (2 if both_ways else 1), vocabulary)

    def batch(self, n, dtype):
        return (torch.randint(self.vocabulary, (n, self.length)),)

    def loss(self, tokens):
        out, _ = self.body(self.tokens(tokens))
        return classified(self.head(out).flatten(0, 1), tokens.flatten())


def draw_lstm(rng: random.Random) -> dict:
    return {
        "width": rng.choice([128, 256, 512, 1024]),
        "layers": rng.randint(1, 4),
        "length": rng.choice([32, 64, 128, 256, 512]),
        "vocabulary": rng.choice([1000, 8192, 30522]),
        "both_ways": rng.random() < 0.3,
        "dropout": rng.choice([0, 0.2]),
    }


# Of torchvision's models: the batch.
VISION = {
    "alexnet": 256, "vgg16": 64, "googlenet": 128, "resnet18": 128, "resnet50": 96,
    "wide_resnet50_2": 48, "resnext50_32x4d": 48, "densenet121": 64, "mobilenet_v2": 128,
    "mobilenet_v3_large": 128, "efficientnet_b0": 96, "efficientnet_b3": 32,
    "shufflenet_v2_x1_0": 256, "regnet_y_3_2gf": 64, "convnext_tiny": 64, "vit_b_16": 64,
    "swin_t": 48,
}  # fmt: skip
# Of transformers: the class of its configuration, what differs from its defaults, the kind of head,
# and the batch with its length.
TEXT = {
    "bert-base": ("BertConfig", {}, "MaskedLM", 16, 512),
    "bert-large": (
        "BertConfig",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
         "intermediate_size": 4096},
        "MaskedLM", 8, 384,
    ),
    "distilbert": ("DistilBertConfig", {}, "MaskedLM", 32, 256),
    "electra-small": (
        "ElectraConfig", {}, "MaskedLM", 64, 256,
    ),
    "albert-base": (
        "AlbertConfig",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        "MaskedLM", 16, 512,
    ),
    "gpt2": ("GPT2Config", {}, "CausalLM", 8, 1024),
    "gpt2-large": (
        "GPT2Config", {"n_embd": 1280, "n_layer": 36, "n_head": 20}, "CausalLM", 4, 1024,
    ),
    "gpt-neox-410m": (
        "GPTNeoXConfig",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
         "intermediate_size": 4096, "vocab_size": 50304},
        "CausalLM", 4, 1024,
    ),
    "opt-125m": ("OPTConfig", {}, "CausalLM", 8, 1024),
    "llama-1b": (
        "LlamaConfig",
        {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000},
        "CausalLM", 4, 1024,
    ),
    "qwen2-0.5b": (
        "Qwen2Config",
        {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
         "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True},
        "CausalLM", 4, 1024,
    ),
    "t5-small": ("T5Config", {"decoder_start_token_id": 0}, "Seq2SeqLM", 32, 256),
    "bart-base": (
        "BartConfig",
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
         "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12},
        "Seq2SeqLM", 16, 256,
    ),
}  # fmt: skip
REAL_BATCHES = dict(VISION) | {name: row[3] for name, row in TEXT.items()}


class Real(nn.Module):
    """A model of torchvision, or of transformers from a configuration, with its own loss."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        if name in VISION:
            import torchvision

            extra = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
            with torch.device("cpu"):  # some reckon their own widths with tensors
                self.inner = getattr(torchvision.models, name)(weights=None, **extra)
            return
        import transformers

        kind, differing, head, _, self.length = TEXT[name]
        config = getattr(transformers, kind)(**differing)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        self.vocabulary = config.vocab_size
        self.inner = getattr(transformers, "AutoModelFor" + head).from_config(config)

    def batch(self, n, dtype):
        if self.name in VISION:
            return torch.randn(n, 3, 224, 224, dtype=dtype), torch.randint(1000, (n,))
        return (torch.randint(self.vocabulary, (n, self.length)),)

    def loss(self, x, target=None):
        if target is not None:
            return classified(self.inner(x), target)
        return self.inner(input_ids=x, labels=x).loss


FAMILIES = {
    "mlp": Mlp,
    "cnn": Cnn,
    "residual": Residual,
    "dense": Dense,
    "transformer": Transformer,
    "lstm": Lstm,
    "real": Real,
}
DRAWN = {
    "mlp": draw_mlp,
    "cnn": draw_cnn,
    "residual": draw_residual,
    "dense": draw_dense,
    "transformer": draw_transformer,
    "lstm": draw_lstm,
}
CHECKPOINTED = {"residual", "dense", "transformer"}
