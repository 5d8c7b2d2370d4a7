"""A model by its name: what it is made of, what it is given, and a step of its training."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ravenstore.estimate import _describe, _formula
from ravenstore.estimate._capture import Step
from ravenstore.estimate._estimate import CaptureRefused

INSTEAD = (
    "give a torchvision name, a Hugging Face config.json, a script that trains, or module:callable"
)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
}


@dataclasses.dataclass(frozen=True)
class Training:
    """How a model is trained."""

    batch: int
    sequence: int | None = None
    """Tokens; 512, or what the model has at most."""
    image: int | None = None
    """Pixels of a side; what the model's configuration says, or 224."""
    optimizer: str = "adamw"
    precision: str = "fp32"
    """ "autocast" is to bfloat16, with the weights in fp32."""
    checkpointing: bool = False
    inference: bool = False
    ranks: int = 1
    """More than one: in DistributedDataParallel, each rank on a GPU of its own."""
    device: str = "cuda"
    """Where a step's inputs are made."""

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "image", "ranks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CaptureRefused(f"{name} is {value}: give at least 1")
        if self.optimizer not in OPTIMIZERS:
            raise CaptureRefused(
                f"{self.optimizer!r} is no optimizer of these: give one of {', '.join(OPTIMIZERS)}"
            )
        if self.precision not in _formula.PRECISIONS:
            raise CaptureRefused(
                f"{self.precision!r} is no precision: give one of {', '.join(_formula.PRECISIONS)}"
            )


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model that can be made, and what one step gives it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor] | torch.Tensor]
    """A batch, on the GPU."""


def step_of(subject: Subject, training: Training) -> Callable[[], Step]:
    """What builds the model and its optimizer, and gives one step of its training."""

    def build() -> Step:
        model = subject.make()
        if training.precision == "bf16":
            model = model.to(torch.bfloat16)
        model = model.to("cuda")
        if training.checkpointing:
            _checkpoint(model)
        model.train(not training.inference)
        if training.inference:
            return lambda: _infer(model, subject, training)
        parameters = [each for each in model.parameters() if each.requires_grad]
        if not parameters:
            raise CaptureRefused(f"{subject.name} has nothing to train: ask for its inference")
        optimizer = OPTIMIZERS[training.optimizer](parameters)
        buckets = _buckets(parameters) if training.ranks > 1 else []

        def step(_held: list[torch.Tensor] = buckets) -> None:
            with _autocast(training), _refusing(subject):
                loss = _loss(model, subject.inputs())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


# DistributedDataParallel's own bound.
_BUCKET_BYTES = 25 << 20


def _buckets(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """What DistributedDataParallel holds for good to exchange gradients in: as many bytes again."""
    buckets: list[torch.Tensor] = []
    for dtype in {each.dtype: None for each in parameters}:
        values, most = 0, _BUCKET_BYTES // dtype.itemsize
        for each in parameters:
            values += each.numel() if each.dtype == dtype else 0
            if values >= most or (each is parameters[-1] and values):
                buckets.append(torch.empty(values, dtype=dtype, device="cuda"))
                values = 0
    return buckets


def described(subject: Subject, training: Training) -> _describe.Description:
    """What the subject's model says of itself; `training`: on the meta device."""
    model = _on_meta(subject)
    if training.precision == "bf16":
        model = model.to(torch.bfloat16)
    model.train(not training.inference)
    batch = subject.inputs()
    with _refusing(subject):
        return _describe.describe(model, lambda: _loss(model, batch), batch=batch)


def _on_meta(subject: Subject) -> nn.Module:
    try:
        with torch.device("meta"):
            return subject.make()
    except NotImplementedError:  # it computes its own shapes with tensors
        return subject.make().to("meta")


def _autocast(training: Training) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16, enabled=training.precision == "autocast")


def _infer(model: nn.Module, subject: Subject, training: Training) -> None:
    with torch.no_grad(), _autocast(training), _refusing(subject):
        _call(model, subject.inputs())


@contextlib.contextmanager
def _refusing(subject: Subject) -> Iterator[None]:
    """The inputs are a guess: what the model says of them is that they are wrong."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError) as error:
        if isinstance(error, CaptureRefused):
            raise
        words = str(error).partition("\n")[0]
        raise CaptureRefused(
            f"{subject.name} does not take the inputs that it was given "
            f"({type(error).__name__}: {words}): give a script that trains it"
        ) from error


def _checkpoint(model: nn.Module) -> None:
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise CaptureRefused(
            "this model has no switch for checkpointing: give a script that trains it as you do"
        )
    model.gradient_checkpointing_enable()


def _call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def _loss(model: nn.Module, inputs: Any) -> torch.Tensor:
    out = _call(model, inputs)
    if getattr(out, "loss", None) is not None:
        loss: torch.Tensor = out.loss
        return loss
    losses = [_loss_of(each) for each in _tensors_of(out)]
    if not losses:
        raise CaptureRefused("the model gives no tensor to train on: give a script that trains it")
    return torch.stack(losses).sum()


def _tensors_of(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out] if out.is_floating_point() else []
    values = out.values() if isinstance(out, dict) else out
    if isinstance(values, (list, tuple)) or isinstance(out, dict):
        return [each for value in values for each in _tensors_of(value)]
    return []


def _loss_of(out: torch.Tensor) -> torch.Tensor:
    """Of class scores the cross entropy, as of images and classifiers; else the mean square."""
    if out.dim() in (2, 4) and out.size(1) > 1:
        target = torch.zeros(out.size(0), *out.shape[2:], dtype=torch.int64, device=out.device)
        return nn.functional.cross_entropy(out, target)
    return out.float().square().mean()


# ---- Subjects


def subject_of(model: Any, training: Training) -> Subject:
    """Of a name, a path, a configuration object or a function that makes the model."""
    if callable(model):
        return _of_function(model, training)
    if not isinstance(model, (str, os.PathLike)):
        return _of_config(model, training)
    name = os.fspath(model)
    if name.endswith(".json"):
        return _of_config_file(name, training)
    if ":" in name:
        return _of_function(_function_named(name), training)
    return _of_torchvision(name, training)


def _function_named(name: str) -> Callable[[], Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CaptureRefused(f"{name} cannot be imported ({error}): {INSTEAD}") from None
    if not callable(found):
        raise CaptureRefused(f"{name} is no function that makes a model: {INSTEAD}")
    function: Callable[[], Any] = found
    return function


def _of_function(function: Callable[[], Any], training: Training) -> Subject:
    """What the model is given is seen by its first layer, once it is made."""
    made: list[nn.Module] = []

    def make() -> nn.Module:
        model = function()
        if not isinstance(model, nn.Module):
            raise CaptureRefused(
                f"{getattr(function, '__name__', function)} gave a {type(model).__name__}: it has "
                "to make a torch.nn.Module"
            )
        made.append(model)
        return model

    def inputs() -> torch.Tensor:
        return _guess(made[-1], training)

    return Subject(getattr(function, "__name__", repr(function)), make, inputs)


def _guess(model: nn.Module, training: Training) -> torch.Tensor:
    """A batch for the first layer that says what it takes."""
    image = training.image or 224
    for layer in model.modules():
        if isinstance(layer, nn.Embedding):
            return _tokens(training, training.sequence or 512)
        if isinstance(layer, nn.Conv2d):
            return torch.randn(
                training.batch, layer.in_channels, image, image, device=training.device
            )
        if isinstance(layer, nn.Linear):
            return torch.randn(training.batch, layer.in_features, device=training.device)
        if isinstance(layer, nn.RNNBase):
            shape = (training.batch, training.sequence or 512, layer.input_size)
            if not layer.batch_first:
                shape = (shape[1], shape[0], shape[2])
            return torch.randn(*shape, device=training.device)
    raise CaptureRefused(
        "the model's first layer does not say what it takes: give a script that trains it"
    )


def _tokens(training: Training, sequence: int) -> torch.Tensor:
    return torch.zeros(training.batch, sequence, dtype=torch.int64, device=training.device)


def _of_torchvision(name: str, training: Training) -> Subject:
    try:
        from torchvision import models
    except ImportError:
        raise CaptureRefused(
            f"{name} would be a model of torchvision's, which is not installed: {INSTEAD}"
        ) from None
    try:
        builder = models.get_model_builder(name)
    except ValueError:
        raise CaptureRefused(f"torchvision has no model {name!r}: {INSTEAD}") from None
    if ".detection" in builder.__module__:
        raise CaptureRefused(f"{name} is trained on boxes: give a script that trains it")
    options: dict[str, Any] = {"weights": None}
    if ".segmentation" in builder.__module__:
        options["weights_backbone"] = None
    # What their papers train on: residual networks of videos take smaller frames.
    frames = (16,) if ".video" in builder.__module__ else ()
    own = 112 if ".video.resnet" in builder.__module__ else 299 if "inception" in name else 224
    side = training.image or own
    shape = (training.batch, 3, *frames, side, side)

    def inputs() -> torch.Tensor:
        return torch.randn(*shape, device=training.device)

    return Subject(name, lambda: builder(**options), inputs)


def _of_config_file(path: str, training: Training) -> Subject:
    try:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
    except OSError as error:
        raise CaptureRefused(f"{path} cannot be read ({error.strerror}): {INSTEAD}") from None
    except ValueError:
        raise CaptureRefused(f"{path} is no JSON: {INSTEAD}") from None
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise CaptureRefused(f"{path} has no model_type, as a Hugging Face config.json: {INSTEAD}")
    try:
        from transformers import AutoConfig
    except ImportError:
        raise CaptureRefused(
            f"{path} needs transformers, which is not installed: {INSTEAD}"
        ) from None
    try:
        config = AutoConfig.for_model(**fields)
    except ValueError:
        kind = fields["model_type"]
        raise CaptureRefused(f"transformers knows no model_type {kind!r}: {INSTEAD}") from None
    return _of_config(config, training)


_HEADS = (
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification",
    "AutoModelForSequenceClassification",
)


def _of_config(config: Any, training: Training) -> Subject:
    import transformers

    if not isinstance(config, transformers.PretrainedConfig):
        raise CaptureRefused(f"a {type(config).__name__} is no model: {INSTEAD}")
    head, name = _head_of(config)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0

    def inputs() -> dict[str, torch.Tensor]:
        if hasattr(config, "image_size") or hasattr(config, "num_channels"):
            return _images(config, training)
        return _texts(config, training, one_label="SequenceClassification" in name)

    return Subject(name, lambda: head(config), inputs)


def _head_of(config: Any) -> tuple[Callable[[Any], nn.Module], str]:
    """Makes the model with what it is trained by; its name."""
    import transformers

    named = config.architectures = getattr(config, "architectures", None) or []
    if named and "For" in named[0] and hasattr(transformers, named[0]):
        return getattr(transformers, named[0]), named[0]
    for name in _HEADS:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            return auto.from_config, f"{name} of a {config.model_type}"
    raise CaptureRefused(
        f"transformers has no head to train a {config.model_type} with: name one in the "
        "configuration's architectures, or give a script that trains it"
    )


def _images(config: Any, training: Training) -> dict[str, torch.Tensor]:
    side: Any = training.image or getattr(config, "image_size", 224)
    shape = (side, side) if isinstance(side, int) else tuple(side)
    channels = getattr(config, "num_channels", 3)
    return {
        "pixel_values": torch.randn(training.batch, channels, *shape, device=training.device),
        "labels": torch.zeros(training.batch, dtype=torch.int64, device=training.device),
    }


def _texts(config: Any, training: Training, *, one_label: bool) -> dict[str, torch.Tensor]:
    longest = getattr(config, "max_position_embeddings", None) or 512
    ids = _tokens(training, training.sequence or min(512, longest))
    labels = ids[:, 0].clone() if one_label else ids.clone()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
