"""An encoder and a decoder with checkpointed layers, packed masks and label smoothing."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

PAD, VOCAB, WIDTH = 0, 6000, 256


class Seq2Seq(nn.Module):
    def __init__(self, layers=4, heads=8):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH, padding_idx=PAD)
        self.position = nn.Parameter(torch.zeros(1, 128, WIDTH))
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, heads, 1024, batch_first=True) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(WIDTH, heads, 1024, batch_first=True) for _ in range(layers)
        )
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, source, target):
        padded = source == PAD
        memory = self.embed(source) + self.position[:, : source.size(1)]
        for layer in self.encoder:
            memory = checkpoint(layer, memory, None, padded, use_reentrant=False)
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1), source.device)
        x = self.embed(target) + self.position[:, : target.size(1)]
        for layer in self.decoder:
            x = checkpoint(
                layer, x, memory, causal, None, target == PAD, padded, use_reentrant=True
            )
        return self.out(x)


def collate(pairs):
    sources, targets = zip(*pairs, strict=False)
    return pad_sequence(sources, True, PAD), pad_sequence(targets, True, PAD)


def sentence(index):
    generator = torch.Generator().manual_seed(index)
    length = int(torch.randint(20, 100, (), generator=generator))
    return torch.randint(1, VOCAB, (length,), generator=generator)


pairs = [(sentence(k), sentence(k + 1000)) for k in range(256)]
loader = DataLoader(pairs, batch_size=32, shuffle=True, collate_fn=collate)
model = Seq2Seq().to("cuda")
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) ** -0.5, s * 1e-3 + 1e-3))
for _epoch in range(3):
    for source, target in loader:
        source, target = source.cuda(), target.cuda()
        logits = model(source, target[:, :-1])
        loss = criterion(logits.reshape(-1, VOCAB), target[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        tokens = (target != PAD).sum().item()
        print(f"loss {loss.item():.3f}, {tokens} tokens, rate {rate.get_last_lr()[0]:.2e}")
