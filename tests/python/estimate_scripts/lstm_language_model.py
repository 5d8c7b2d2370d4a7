"""An LSTM language model with truncated backpropagation through time."""

import argparse
import math

import torch
import torch.nn as nn


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.ntoken, self.nhid, self.nlayers = ntoken, nhid, nlayers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, source, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(source)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        shape = (self.nlayers, bsz, self.nhid)
        return weight.new_zeros(shape), weight.new_zeros(shape)


def batchify(data, bsz, device):
    count = data.size(0) // bsz
    return data[: count * bsz].view(bsz, -1).t().contiguous().to(device)


def repackage(hidden):
    return hidden.detach() if isinstance(hidden, torch.Tensor) else tuple(map(repackage, hidden))


parser = argparse.ArgumentParser()
parser.add_argument("--emsize", type=int, default=256)
parser.add_argument("--nhid", type=int, default=256)
parser.add_argument("--cuda", action="store_true")
args = parser.parse_args()
device = torch.device("cuda" if args.cuda or torch.cuda.is_available() else "cpu")
ntokens, bptt = 10000, 35
train_data = batchify(torch.randint(0, ntokens, (40000,)), 20, device)
model = RNNModel(ntokens, args.emsize, args.nhid, 2, 0.2).to(device)
model.rnn.flatten_parameters()
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
hidden, total = model.init_hidden(20), 0.0
for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
    length = min(bptt, len(train_data) - 1 - i)
    data, targets = train_data[i : i + length], train_data[i + 1 : i + 1 + length].view(-1)
    hidden = repackage(hidden)
    optimizer.zero_grad()
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    total += loss.item()
    print(f"batch {batch} loss {total / (batch + 1):5.2f} ppl {math.exp(total / (batch + 1)):8.2f}")
