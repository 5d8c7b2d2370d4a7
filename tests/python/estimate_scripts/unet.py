"""A U-Net for segmentation: skip connections, a Dice loss and channels last."""

import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.up = nn.ConvTranspose2d(i, i // 2, 2, stride=2)
        self.conv = DoubleConv(i, o)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, channels, classes, width=32):
        super().__init__()
        widths = [width * 2**k for k in range(5)]
        self.inc = DoubleConv(channels, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b))
            for a, b in zip(widths, widths[1:], strict=False)
        )
        self.up = nn.ModuleList(
            Up(b, a) for a, b in reversed(list(zip(widths, widths[1:], strict=False)))
        )
        self.outc = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        seen = [self.inc(x)]
        for down in self.down:
            seen.append(down(seen[-1]))
        x = seen.pop()
        for up in self.up:
            x = up(x, seen.pop())
        return self.outc(x)


class Shapes(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 132, 96, generator=generator)
        return {"image": image, "mask": (image.mean(0) > 0.5).long()}


def dice_loss(inputs, target):
    inter = 2 * (inputs * target).sum(dim=(-1, -2))
    sets = inputs.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets = torch.where(sets == 0, inter, sets)
    return 1 - ((inter + 1e-6) / (sets + 1e-6)).mean()


def main():
    logging.basicConfig(level=logging.INFO)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(3, 2).to(memory_format=torch.channels_last)
    model.to(device=device)
    train_set, _ = random_split(Shapes(), [32, 8], generator=torch.Generator().manual_seed(0))
    loader = DataLoader(train_set, batch_size=8, shuffle=True, num_workers=2, pin_memory=True)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True
    )
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.amp.GradScaler("cuda", enabled=True)
    criterion = nn.CrossEntropyLoss()
    for _epoch in range(5):
        model.train()
        for batch in loader:
            images = batch["image"].to(device, torch.float32, memory_format=torch.channels_last)
            masks = batch["mask"].to(device=device, dtype=torch.long)
            with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=True):
                pred = model(images)
                loss = criterion(pred, masks)
                onehot = F.one_hot(masks, 2).permute(0, 3, 1, 2).float()
                loss += dice_loss(F.softmax(pred, dim=1).float(), onehot)
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            logging.info("loss %s rate %s", loss.item(), optimizer.param_groups[0]["lr"])
        scheduler.step(loss)


if __name__ == "__main__":
    main()
