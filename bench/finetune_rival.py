#!/usr/bin/env python3
"""examples/python/finetune.py's training with torchao's CPUOffloadOptimizer instead of prepare().

    finetune_rival.py [the example's options]

Gradients go to host memory as they come, and the CPU updates. Prints the example's line of JSON.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples/python"))

import common
import finetune
import ravenstore
import torch


def main():
    options = finetune.parse()
    transformers = common.need("transformers")
    rival = common.need("torchao.optim").CPUOffloadOptimizer
    model = finetune.make_model(options, transformers)
    loss_by = "whole" if options.whole_loss else ravenstore.chunk_loss(model).how
    optimizer = rival(
        model.parameters(), torch.optim.AdamW, offload_gradients=True, fused=True, lr=1e-5
    )
    losses, seconds = finetune.train(model, optimizer, options)
    made = finetune.summary(model, options, loss_by, losses, seconds)
    print(json.dumps({"way": "torchao", **made}))


if __name__ == "__main__":
    main()
