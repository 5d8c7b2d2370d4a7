"""A ResNet with automatic mixed precision and a scaled loss, as ImageNet trainings have it."""

import time

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torchvision
import torchvision.transforms as T
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [
            correct[:k].reshape(-1).float().sum(0, keepdim=True) * 100.0 / target.size(0)
            for k in topk
        ]


cudnn.benchmark = True
model = torchvision.models.resnet18(num_classes=100)
if torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
model = model.cuda()
criterion = nn.CrossEntropyLoss(label_smoothing=0.1).cuda()
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)
scaler = GradScaler()
transform = T.Compose([T.RandomResizedCrop(176), T.RandomHorizontalFlip(), T.ToTensor()])
dataset = torchvision.datasets.FakeData(256, (3, 200, 200), 100, transform)
loader = DataLoader(
    dataset, batch_size=32, shuffle=True, num_workers=2, pin_memory=True, drop_last=True
)

for epoch in range(90):
    losses, top1, batch_time = AverageMeter(), AverageMeter(), AverageMeter()
    end = time.time()
    model.train()
    for i, (images, target) in enumerate(loader):
        images = images.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        with autocast():
            output = model(images)
            loss = criterion(output, target)
        if not torch.isfinite(loss):
            raise SystemExit(f"Loss is {loss.item()}, stopping training")
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        batch_time.update(time.time() - end)
        end = time.time()
        memory = torch.cuda.max_memory_allocated() / 1024**2
        print(f"[{epoch}][{i}] loss {losses.avg:.3f} acc {top1.avg:.2f} mem {memory:.0f}MB")
    scheduler.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
