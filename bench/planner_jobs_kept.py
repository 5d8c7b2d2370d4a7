"""Jobs of bench/planner_jobs.py that are kept back: their scores are read for the final table
alone (`planner_bench --table kept`). Functions and steps are as in planner_job_models.py.
"""

import random

import planner_job_models as models
import torch
import torch.nn.functional as F
from torch import nn

# --- Two networks in turn: a GAN with the hinge loss (Miyato et al. 2018) ---

LEVELS = 5  # from 4 to 128 pixels


def twice(before, after):
    return [
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(8, after),
        nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.SiLU(),
    ]


def generator(width):
    blocks = [nn.Upsample(scale_factor=2.0)]
    for level in reversed(range(LEVELS)):
        blocks += twice(width << min(level + 1, 3), width << min(level, 3))
        if level:
            blocks.append(nn.Upsample(scale_factor=2.0))
    return nn.Sequential(*blocks, nn.Conv2d(width, 3, 3, padding=1), nn.Tanh())


def discriminator(width):
    blocks = [nn.Conv2d(3, width, 3, padding=1)]
    for level in range(LEVELS):
        blocks += twice(width << min(level, 3), width << min(level + 1, 3))
        blocks.append(nn.AvgPool2d(2))
    return nn.Sequential(*blocks, nn.Conv2d(width << 3, 1, 4))


def gan(device, small):
    """64 images of 128 × 128 a step, of each network; AdamW for both."""
    width, batch = (16, 8) if small else (128, 64)
    makes = generator(width).to(device, torch.bfloat16)
    judges = discriminator(width).to(device, torch.bfloat16)
    makers, judges_own = models.adamw(makes.parameters()), models.adamw(judges.parameters())

    def made():
        seeds = torch.randn(batch, width << 3, 4, 4, device=device, dtype=torch.bfloat16)
        return makes(seeds)

    def step(scope):
        with scope():
            real = torch.randn(batch, 3, 128, 128, device=device, dtype=torch.bfloat16)
            with torch.no_grad():
                fake = made()
            judged = F.relu(1 - judges(real)).mean() + F.relu(1 + judges(fake)).mean()
        judged.backward()
        judges_own.step()
        with scope():
            value = -judges(made()).mean()
        value.backward()
        makers.step()
        for optimizer in (makers, judges_own):
            optimizer.zero_grad()
        return value

    return step


# --- An encoder of speech (Baevski et al. 2020) ---


def speech(device, small):
    """wav2vec 2.0 with CTC: 192 seconds a step, in rows of 4 to 24 at random. As published, a
    tenth of its layers are left out, at random too."""
    import transformers

    shape = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    if small:
        shape = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.Wav2Vec2Config(
        **shape,
        intermediate_size=4 * shape["hidden_size"],
        conv_dim=[64 if small else 512] * 7,
        conv_bias=True,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
    )
    model = transformers.Wav2Vec2ForCTC(config).to(device, torch.bfloat16)
    drawn = random.Random(0)

    def loss():
        seconds = drawn.randint(1, 3) if small else drawn.randint(4, 24)
        rows = (6 if small else 192) // seconds
        sound = torch.randn(rows, 16000 * seconds, device=device, dtype=torch.bfloat16)
        letters = torch.randint(1, config.vocab_size, (rows, 12 * seconds), device=device)
        return model(sound, labels=letters).loss

    return models.training(model, loss)


# --- Two adapters in turn, with dropout ---


class Adapters(nn.Module):
    """Two adapters of a layer, of which `chosen` is in use."""

    def __init__(self, base, rank=16):
        super().__init__()
        self.base, self.chosen = base, 0
        self.dropout = nn.Dropout(0.05)
        self.adapters = nn.ModuleList(models.Adapted(base, rank) for _ in range(2))
        for adapter in self.adapters:
            adapter.base = None

    def forward(self, x):
        adapter = self.adapters[self.chosen]
        return self.base(x) + F.linear(F.linear(self.dropout(x), adapter.down), adapter.up)


def lora_two(device, small):
    """8B with adapters at each layer's queries, values and gates; 4,096 tokens, nothing
    recomputed. Each adapter has every other step."""
    model = models.language_model("Llama", models.TINY if small else models.LLAMA_8B, device, False)
    model.requires_grad_(False)
    every = []
    for layer in model.model.layers:
        for owner, name in (
            (layer.self_attn, "q_proj"),
            (layer.self_attn, "v_proj"),
            (layer.mlp, "gate_proj"),
        ):
            every.append(Adapters(getattr(owner, name)))
            setattr(owner, name, every[-1])
    of_next = models.loss_of(model, device, [(4, 1024) if small else (2, 2048)])

    def loss():
        for adapters in every:
            adapters.chosen = 1 - adapters.chosen
        return of_next()

    return models.training(model, loss)


# --- Accumulated gradients, and an average of the weights ---


def accumulate(device, small):
    """A Llama of 0.3B: four batches of 16,384 tokens a step in rows of drawn lengths, and an
    exponential average of the weights."""
    shape = models.TINY if small else models.LLAMA_300M
    model = models.language_model("Llama", shape, device, False).train()
    tokens = 2048 if small else 16384
    drawn = random.Random(0)
    weights = models.trained(model)
    averages = [weight.detach().clone() for weight in weights]
    optimizer = models.adamw(weights)

    def loss():
        columns = drawn.choice([256, 512, 1024, 2048])
        ids = torch.randint(0, shape["vocab_size"], (tokens // columns, columns), device=device)
        return model(input_ids=ids, labels=ids).loss / 4

    def step(scope):
        for _ in range(4):
            with scope():
                value = loss()
            value.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 0.001)
        return value

    return step
