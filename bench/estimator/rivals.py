"""What others estimate a job's memory by, trained and judged on the same rows as the formula.

`horus`: the sum of parameters, gradients and activations of both directions that Horus (Yeung and
others, 2022) plans by. `fake_sums`: what users of fake tensors add up, each tensor of the forward
pass once with parameters, gradients and states. `mlp` and `transformer`: GPUMemNet's classifiers
(Yousefzadeh-Asl-Miandoab and others, 2025): classes of a fixed width in GB; the first an average of
small multilayer perceptrons over counts and sums, the second a small Transformer over the sequence
of layers. Both are given what their authors' data had no need of as well: how the job is trained.
"""

from __future__ import annotations

import math

import torch
from ravenstore.estimate import _formula
from torch import nn
from torch.nn import functional as F

GB = 1 << 30
_ACTIVATIONS = ("relu", "relu_inplace", "gelu", "silu", "tanh", "elu")
_ELEMENT = {"fp32": 4, "bf16": 2, "autocast": 4}


def horus(row):
    given = sum(layer.elements for layer in row.description.layers)
    parameters = sum(layer.parameters for layer in row.description.layers)
    return (2 * given + 2 * parameters) * _ELEMENT[row.job.precision]


def fake_sums(row):
    given = sum(layer.elements for layer in row.description.layers) * _ELEMENT[row.job.precision]
    described = row.description
    gradients = described.trainable if row.job.optimizer != "none" else 0
    return _formula.known(described, row.job.optimizer) + gradients + given + described.batch


def _kind(layer):
    for number, word in enumerate(
        ("conv", "linear", "norm", "dropout", "embedding", "pool", "lstm", "relu|elu|silu|tanh"), 1
    ):
        if any(part in layer.kind.lower() for part in word.split("|")):
            return number
    return 9


def _trained(job):
    """How a job is trained, as numbers."""
    angle = job.architecture.get("activation", "relu")
    place = _ACTIVATIONS.index(angle) if angle in _ACTIVATIONS else 0
    turn = 2 * math.pi * place / len(_ACTIVATIONS)
    return [
        _formula.STATES[job.optimizer],
        float(job.optimizer == "none"),
        float(job.precision == "bf16"),
        float(job.precision == "autocast"),
        float(job.checkpointed),
        float(job.compiled),
        math.sin(turn),
        math.cos(turn),
    ]


def _sums(row):
    """GPUMemNet's counts and sums."""
    layers = row.description.layers
    counts = [float(sum(_kind(layer) == number for layer in layers)) for number in range(1, 10)]
    given = sum(layer.elements for layer in layers)
    parameters = sum(layer.parameters for layer in layers)
    sizes = [row.job.batch, parameters, given / max(1, row.job.batch), given]
    return [*counts, *sizes, *(math.log1p(size) for size in sizes), *_trained(row.job)]


def _sequence(row, longest):
    layers = row.description.layers[:longest]
    steps = [[math.log1p(layer.elements), math.log1p(layer.parameters)] for layer in layers]
    kinds = [_kind(layer) for layer in layers]
    empty = longest - len(layers)
    return kinds + [0] * empty, steps + [[0.0, 0.0]] * empty


class _Scaled:
    """Numbers brought to mean 0 and deviation 1, as the rows to fit have them."""

    def __init__(self, table):
        self.mean = table.mean(0)
        self.deviation = table.std(0).clamp_min(1e-6)

    def __call__(self, table):
        return (table - self.mean) / self.deviation


def _classes(rows, width):
    return torch.tensor([int(row.reserved // (width * GB)) for row in rows])


def _fit(model, given, classes, epochs, rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * math.ceil(len(classes) / 128)
    )
    model.train()
    for _ in range(epochs):
        for part in torch.randperm(len(classes)).split(128):
            loss = F.cross_entropy(model(*(of[part] for of in given)), classes[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def _perceptron(inputs, classes):
    return nn.Sequential(
        nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, classes),
    )  # fmt: skip


def mlp(inside, outside, width, *, members=13, epochs=150):
    """The classes that averaged perceptrons, fitted to `inside`, give the rows of `outside`."""
    torch.manual_seed(1)
    table = torch.tensor([_sums(row) for row in inside])
    scaled, classes = _Scaled(table), _classes(inside, width)
    asked = scaled(torch.tensor([_sums(row) for row in outside]))
    total = 0
    for _ in range(members):
        model = _perceptron(table.shape[1], int(classes.max()) + 1)
        _fit(model, (scaled(table),), classes, epochs, 1e-2)
        with torch.no_grad():
            total = total + model(asked).softmax(-1)
    return total.argmax(-1).tolist()


class _SequenceClassifier(nn.Module):
    def __init__(self, classes, extra, longest, wide=16):
        super().__init__()
        self.kind = nn.Embedding(10, wide, padding_idx=0)
        self.step = nn.Linear(2, wide)
        self.place = nn.Parameter(torch.randn(longest, wide) / 10)
        layer = nn.TransformerEncoderLayer(wide, 2, 32, 0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(wide + extra, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, kinds, steps, extra):
        empty = kinds == 0
        x = self.kind(kinds) + self.step(steps) + self.place
        x = self.body(x, src_key_padding_mask=empty).masked_fill(empty[..., None], 0)
        mean = x.sum(1) / (~empty).sum(1, keepdim=True)
        return self.head(torch.cat([mean, extra], -1))


def transformer(inside, outside, width, *, epochs=50, longest=96):
    """The classes that a Transformer over the layers, fitted to `inside`, gives `outside`."""
    torch.manual_seed(1)
    extra = torch.tensor([_sums(row) for row in inside])
    scaled, classes = _Scaled(extra), _classes(inside, width)

    def tensors(rows):
        kinds, steps = zip(*(_sequence(row, longest) for row in rows), strict=True)
        given = scaled(torch.tensor([_sums(row) for row in rows]))
        return torch.tensor(kinds), torch.tensor(steps) / 10, given

    model = _SequenceClassifier(int(classes.max()) + 1, extra.shape[1], longest)
    _fit(model, tensors(inside), classes, epochs, 3e-3)
    with torch.no_grad():
        return model(*tensors(outside)).argmax(-1).tolist()
