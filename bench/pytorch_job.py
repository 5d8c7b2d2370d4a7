"""The training jobs that bench/pytorch_bench.py measures: a model, its optimizer, one batch."""

import contextlib
import dataclasses
import functools
import gc
import sys
import time
import types

import figures

figures.use_package()

import torch  # noqa: E402
from ravenstore._demo_model import Gpt, Shape  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils import checkpoint as checkpointing  # noqa: E402

SHAPES = {
    "medium": Shape(24, 1024, 16, length=1024, batch=16, vocabulary=50257),
    "small": Shape(6, 512, 8, length=512, batch=8, vocabulary=8192),
    "tiny": Shape(4, 256, 4, length=256, batch=16, vocabulary=512),
}
# Layers, width, heads, length and vocabulary of what transformers' configurations make; "tiny" is
# for a machine without a GPU.
FAMILY = {
    "gpt2": {"medium": (12, 768, 12, 1024, 50257), "tiny": (2, 128, 4, 256, 512)},
    "bert": {"medium": (12, 768, 12, 512, 30522), "tiny": (2, 128, 4, 256, 512)},
    "whisper": {"medium": (12, 768, 12, 448, 51865), "tiny": (2, 128, 4, 64, 512)},
}
BATCH = {
    "gpt2": {"medium": 8, "tiny": 8},
    "bert": {"medium": 16, "tiny": 8},
    "whisper": {"medium": 8, "tiny": 8},
    "resnet50": {"medium": 256, "tiny": 16},
    "lora": {"medium": 8, "tiny": 8},
}


@dataclasses.dataclass
class Made:
    """What a job is made of; `loss` takes the model and the batch."""

    model: torch.nn.Module
    batch: tuple
    loss: object
    blocks: list


def _generator(device):
    generator = torch.Generator(device)
    generator.manual_seed(1)
    return generator


def _gpt_loss(model, tokens):
    return F.cross_entropy(model.logits(tokens).flatten(0, 1), tokens.flatten())


def _gpt(size, device, batch, depth):
    shape = SHAPES[size]
    shape = dataclasses.replace(shape, batch=batch or shape.batch, layers=depth or shape.layers)
    with torch.device(device):
        model = Gpt(shape)
        tokens = torch.randint(
            shape.vocabulary, (shape.batch, shape.length), generator=_generator(device)
        )
    return Made(model, (tokens,), _gpt_loss, list(model.blocks))


def _named_loss(model, batch):
    return model(**batch).loss


def _gpt2(size, device, batch, depth):
    import transformers

    layers, width, heads, length, vocabulary = FAMILY["gpt2"][size]
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=depth or layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.device(device):
        model = transformers.GPT2LMHeadModel(config)
        tokens = torch.randint(vocabulary, (batch, length), generator=_generator(device))
    named = {"input_ids": tokens, "labels": tokens}
    return Made(model, (named,), _named_loss, list(model.transformer.h))


def _bert(size, device, batch, depth):
    import transformers

    layers, width, heads, length, vocabulary = FAMILY["bert"][size]
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=length,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth or layers,
        num_attention_heads=heads,
    )
    generator = _generator(device)
    with torch.device(device):
        model = transformers.BertForMaskedLM(config)
        tokens = torch.randint(1, vocabulary, (batch, length), generator=generator)
        masked = torch.rand((batch, length), generator=generator) < 0.15
    named = {
        "input_ids": tokens.masked_fill(masked, 0),
        "labels": tokens.masked_fill(~masked, -100),
    }
    return Made(model, (named,), _named_loss, list(model.bert.encoder.layer))


def _whisper(size, device, batch, depth):
    import transformers

    layers, width, heads, length, vocabulary = FAMILY["whisper"][size]
    mels, frames = 80, 1500 if size == "medium" else 256
    config = transformers.WhisperConfig(
        vocab_size=vocabulary,
        num_mel_bins=mels,
        d_model=width,
        encoder_layers=depth or layers,
        decoder_layers=depth or layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=frames,
        max_target_positions=length,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    generator = _generator(device)
    with torch.device(device):
        model = transformers.WhisperForConditionalGeneration(config)
        # Two spectra make a frame: the encoder's second convolution has a stride of two.
        heard = torch.randn((batch, mels, 2 * frames), generator=generator)
        said = torch.randint(3, vocabulary, (batch, length), generator=generator)
    blocks = [*model.model.encoder.layers, *model.model.decoder.layers]
    return Made(model, ({"input_features": heard, "labels": said},), _named_loss, blocks)


def _pictures_loss(model, pictures, labels):
    return F.cross_entropy(model(pictures), labels)


def _resnet50(size, device, batch, depth):
    """`depth`: blocks of the third stage, 6 in a ResNet-50."""
    import torchvision

    pixels, classes = 224 if size == "medium" else 64, 1000
    bottleneck = torchvision.models.resnet.Bottleneck
    generator = _generator(device)
    with torch.device(device):
        model = torchvision.models.ResNet(bottleneck, [3, 4, depth or 6, 3], num_classes=classes)
        pictures = torch.randn((batch, 3, pixels, pixels), generator=generator)
        labels = torch.randint(classes, (batch,), generator=generator)
    stages = (model.layer1, model.layer2, model.layer3, model.layer4)
    blocks = [block for stage in stages for block in stage]
    return Made(model, (pictures, labels), _pictures_loss, blocks)


def _lora(size, device, batch, depth):
    """The example's, which is a fine-tuning of a LLaMA-shaped model."""
    sys.path.insert(0, str(figures.ROOT / "examples" / "python"))
    import lora_llama

    sizes = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "inner": 8192}
    length, vocabulary = (2048, 32000) if size == "medium" else (256, 512)
    if size != "medium":
        sizes = {"layers": 4, "width": 128, "heads": 4, "kv_heads": 2, "inner": 512}
    sizes["layers"] = depth or sizes["layers"]
    generator = _generator(device)
    with torch.device(device):
        model = lora_llama.Llama(types.SimpleNamespace(**sizes, vocabulary=vocabulary))
        tokens = torch.randint(vocabulary, (batch, length), generator=generator)
    if device == "cuda":
        model = model.to(torch.bfloat16)
    return Made(model, (tokens,), lambda model, tokens: model(tokens).loss, list(model.layers))


MAKERS = {
    "gpt": _gpt,
    "gpt2": _gpt2,
    "bert": _bert,
    "whisper": _whisper,
    "resnet50": _resnet50,
    "lora": _lora,
}


class Job:
    """One training. `options`: job, device, size, kind ("eager", "compiled" by block, "whole",
    "reduce_overhead"); batch and depth where they are not the job's own."""

    def __init__(self, options):
        self.device, name = options["device"], options.get("job", "gpt")
        torch.manual_seed(0)
        batch = options.get("batch") or BATCH.get(name, {}).get(options["size"])
        made = MAKERS[name](options["size"], self.device, batch, options.get("depth"))
        self.model, self.batch, self.loss_of, self.blocks = (
            made.model.train(),
            made.batch,
            made.loss,
            made.blocks,
        )
        fused = {"fused": True} if self.device == "cuda" else {}
        learned = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(learned, lr=1e-4, **fused)
        self.kind = kind = options.get("kind", "eager")
        if kind != "eager":
            # Each shape of a block is a program of its own.
            torch._dynamo.config.recompile_limit = 64
        if kind == "compiled":
            for block in self.blocks:
                block.compile(dynamic=False)
        elif kind == "whole":
            self.loss_of = torch.compile(self.loss_of, dynamic=False)
        elif kind == "reduce_overhead":
            self.loss_of = torch.compile(self.loss_of, dynamic=False, mode="reduce-overhead")

    def checkpoint(self, every, **how):
        """Recomputes each `every`th block in the backward pass."""
        for block in self.blocks[::every]:
            block.forward = functools.partial(
                checkpointing.checkpoint, block.forward, use_reentrant=False, **how
            )

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def forward(self, scope=contextlib.nullcontext):
        # On a CPU bfloat16 is slower by far.
        with (
            torch.autocast("cuda", torch.bfloat16, self.device == "cuda", cache_enabled=False),
            scope(),
        ):
            return self.loss_of(self.model, *self.batch)

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, scope=contextlib.nullcontext, split=False):
        """Seconds of a step, and of its forward pass where `split` waits for it."""
        self.synchronize()
        begun = time.perf_counter()
        if self.kind == "reduce_overhead":
            torch.compiler.cudagraph_mark_step_begin()
        loss = self.forward(scope)
        if split:
            self.synchronize()
        middle = time.perf_counter()
        loss.backward()
        self.update()
        self.synchronize()
        return types.SimpleNamespace(
            seconds=time.perf_counter() - begun, forward=middle - begun, loss=loss.item()
        )

    def times(self, count, scope=contextlib.nullcontext):
        return [self.step(scope).seconds for _ in range(count)]


def forget():
    """Collects the garbage of a job that was dropped."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error):
    """The CPU's allocator has no class of its own for it."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
