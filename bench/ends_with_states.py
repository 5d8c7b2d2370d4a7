#!/usr/bin/env python3
"""A training of one step as a user would write it, which ends with optimizer states in the store.

    ends_with_states.py SOCKET DEVICE

What is looked at is its exit status: nothing is closed, and all is the module's when the
interpreter ends. Prints how many chunks of states there are.
"""

import gc
import sys

import figures

figures.use_package()

import ravenstore  # noqa: E402
import torch  # noqa: E402

CHUNK = 64 << 10
CHUNKS = 200
# New objects after which CPython collects, instead of 700: a finalizer that made one object each
# would start a collection with few chunks already.
COLLECT = 20

socket, device = sys.argv[1:]
elements = CHUNK // 8  # AdamW's two states in fp32
layers = [torch.nn.Linear(elements, 1, bias=False) for _ in range(CHUNKS)]
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
store = ravenstore.Store.connect(socket=socket, device_budget="4MiB")
ravenstore.offload_optimizer(optimizer, store, in_backward=True, chunk=CHUNK)
batch = torch.ones(elements, device=device)


def step():
    torch.stack([layer(batch) for layer in model]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


step()
print(store.stats().tensors)
gc.set_threshold(COLLECT)
