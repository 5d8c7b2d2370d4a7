"""Jobs of bench/planner_jobs.py: a function each of (device, small), which returns that of a step.

A step takes a function whose result is a context to run its forward pass in. bf16 weights, random
data, seeds fixed. The last four are the shape of Llama 3 8B; the others train with AdamW.
planner_generation.py and planner_jobs_kept.py have more jobs.
"""

import functools

import torch
import torch.nn.functional as F
from torch import nn

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LLAMA_300M = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
TINY = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


# --- A step ---

adamw = functools.partial(torch.optim.AdamW, lr=1e-5, fused=True)
# AdamW's states of 8B would be another 32 GB: bench/finetune_bench.py measures them.
sgd = functools.partial(torch.optim.SGD, lr=1e-5)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def training(model, loss, optimizer=adamw):
    """A step that trains `model`: the loss in a scope, its backward pass, an update."""
    model.train()
    updated = optimizer(trained(model))

    def step(scope):
        with scope():
            value = loss()
        value.backward()
        updated.step()
        updated.zero_grad()
        return value

    return step


# --- A diffusion U-Net (Ho et al. 2020, its blocks; widths as Stable Diffusion's) ---


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.begin = nn.Sequential(
            nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.noise = nn.Linear(512, after)
        self.end = nn.Sequential(
            nn.GroupNorm(32, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
        )
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, image, noise):
        inner = self.begin(image) + self.noise(noise)[:, :, None, None]
        return self.skip(image) + self.end(inner)


class Attention(nn.Module):
    HEADS = 8

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.inward = nn.Conv2d(width, 3 * width, 1)
        self.outward = nn.Conv2d(width, width, 1)

    def forward(self, image):
        batch, width, *sides = image.shape
        parts = self.inward(self.norm(image)).view(batch, 3, self.HEADS, width // self.HEADS, -1)
        query, key, value = parts.transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(-1, -2)
        return image + self.outward(mixed.reshape(batch, width, *sides))


class Block(nn.Module):
    def __init__(self, before, after, attends):
        super().__init__()
        self.residual = Residual(before, after)
        self.attention = Attention(after) if attends else nn.Identity()

    def forward(self, image, noise):
        return self.attention(self.residual(image, noise))


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        now, kept = width, [width]
        for level, after in enumerate(widths):
            for _ in range(2):
                self.down.append(Block(now, after, level > 0))
                now = after
                kept.append(now)
            if level + 1 < len(widths):
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                kept.append(now)
        self.middle = nn.ModuleList([Block(now, now, True), Block(now, now, False)])
        for level, after in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(Block(now + kept.pop(), after, level > 0))
                now = after
            if level > 0:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.last = nn.Conv2d(now, 4, 3, padding=1)

    def forward(self, image, noise):
        image = self.first(image)
        kept = [image]
        for block in self.down:
            image = block(image, noise) if isinstance(block, Block) else block(image)
            kept.append(image)
        for block in self.middle:
            image = block(image, noise)
        for block in self.up:
            if isinstance(block, Block):
                image = block(torch.cat([image, kept.pop()], dim=1), noise)
            else:
                image = block(F.interpolate(image, scale_factor=2.0))
        return self.last(image)


def unet(device, small):
    model = UNet(32 if small else 256).to(device, torch.bfloat16)
    batch, side = (4, 64) if small else (24, 64)

    def loss():
        image = torch.randn(batch, 4, side, side, device=device, dtype=torch.bfloat16)
        noise = torch.randn(batch, 512, device=device, dtype=torch.bfloat16)
        return (model(image, noise) - image).float().pow(2).mean()

    return training(model, loss)


# --- ConvNeXt (Liu et al. 2022) ---


def convnext(device, small):
    """ConvNeXt of the base size. Its four stages keep tensors of 1 to 200 MB."""
    import transformers

    shape = {"depths": [1, 1, 2, 1], "hidden_sizes": [32, 64, 128, 256]}
    config = transformers.ConvNextConfig(
        num_labels=1000,
        **(shape if small else {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024]}),
    )
    model = transformers.ConvNextForImageClassification(config).to(device, torch.bfloat16)
    batch, side = (16, 64) if small else (128, 224)

    def loss():
        images = torch.randn(batch, 3, side, side, device=device, dtype=torch.bfloat16)
        return model(images, labels=torch.randint(0, 1000, (batch,), device=device)).loss

    return training(model, loss)


# --- Language models ---


def language_model(kind, shape, device, checkpointed):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        use_cache=False, attn_implementation="sdpa", **shape
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    torch.set_default_dtype(torch.float32)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def loss_of(model, device, batches):
    """Of the next of (rows, columns) in turn."""
    turn = iter(range(1 << 30))

    def loss():
        rows, columns = batches[next(turn) % len(batches)]
        ids = torch.randint(0, model.config.vocab_size, (rows, columns), device=device)
        return model(input_ids=ids, labels=ids).loss

    return loss


def lengths(device, small):
    """24,576 tokens a step in rows of 384 to 1,536."""
    model = language_model("Llama", TINY if small else LLAMA_300M, device, False)
    tokens = 4096 if small else 24576
    columns = [768, 1536, 384, 1024, 512]
    return training(model, loss_of(model, device, [(tokens // c, c) for c in columns]))


def experts(device, small):
    """A mixture of experts: 12 layers of 8, two for a token. Sizes follow the data."""
    shape = {**(TINY if small else LLAMA_300M), "num_local_experts": 8, "num_experts_per_tok": 2}
    if not small:
        shape |= {"num_hidden_layers": 12, "intermediate_size": 2048}
    model = language_model("Mixtral", shape, device, False)
    return training(model, loss_of(model, device, [(4, 1024) if small else (8, 1024)]))


def finetune(device, small, batch=(12, 2048), checkpointed=True):
    model = language_model("Llama", TINY if small else LLAMA_8B, device, checkpointed)
    return training(model, loss_of(model, device, [(4, 1024) if small else batch]), sgd)


def finetune_kept(device, small):
    return finetune(device, small, (2, 2048), checkpointed=False)


def finetune_long(device, small):
    """Needs a GPU of more than 80 GB where nothing moves."""
    return finetune(device, small, (4, 2048), checkpointed=False)


def lora(device, small):
    """Adapters of rank 16 at each layer's queries and values; 16,384 tokens."""
    model = language_model("Llama", TINY if small else LLAMA_8B, device, True)
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name)))
    model.enable_input_require_grads()
    return training(model, loss_of(model, device, [(4, 1024) if small else (8, 2048)]))


class Adapted(nn.Module):
    def __init__(self, base, rank=16):
        super().__init__()
        weight = base.weight
        self.base = base
        self.down = nn.Parameter(torch.randn_like(weight[:rank]) / rank)
        self.up = nn.Parameter(torch.zeros_like(weight[:, :rank]))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)
