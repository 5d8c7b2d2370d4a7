"""A vision transformer with a schedule, clipped gradients and an average of its weights."""

import copy

import torch
import torchvision
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2


class Ema:
    def __init__(self, model, decay=0.99):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(
            self.module.state_dict().values(), model.state_dict().values(), strict=False
        ):
            ours.copy_(ours * self.decay + theirs * (1 - self.decay))


device = "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("high")
model = torchvision.models.VisionTransformer(
    image_size=64,
    patch_size=8,
    num_layers=6,
    num_heads=6,
    hidden_dim=384,
    mlp_dim=1536,
    num_classes=100,
    dropout=0.1,
)
model.to(device, memory_format=torch.channels_last)
ema = Ema(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
warmup = LinearLR(optimizer, 0.01, total_iters=5)
scheduler = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, 95)], milestones=[5])
mixup = v2.MixUp(num_classes=100)
loader = DataLoader(
    TensorDataset(torch.randn(256, 3, 64, 64), torch.randint(0, 100, (256,))), batch_size=64
)
best = 0.0
for epoch in range(100):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device)
        images, labels = mixup(images, labels)
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        ema.update(model)
        print(f"epoch {epoch} loss {float(loss):.4f}")
    scheduler.step()
    ema.module.eval()
    with torch.no_grad():
        hits = sum(
            (ema.module(x.to(device)).argmax(1) == y.to(device)).float().sum() for x, y in loader
        )
    if hits / len(loader.dataset) > best:
        best = (hits / len(loader.dataset)).item()
