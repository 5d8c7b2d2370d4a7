#!/usr/bin/env python3
"""examples/python/finetune.py's training with another package in place of prepare().

    finetune_rival.py [--rival torchao|deepspeed] [the example's options]

torchao: CPUOffloadOptimizer. Gradients go to host memory as they come, and the CPU updates.
deepspeed: ZeRO-Offload, that is stage 2 with its own CPU Adam. Float32 master weights and states
live in host memory.

Prints the example's line of JSON, or {"failed": why} if DeepSpeed or its CPU Adam is missing.
"""

import argparse
import json
import os
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples/python"))

import common
import finetune
import ravenstore
import torch


class Missing(Exception):
    """The rival cannot run here, and why."""


class DeepSpeed:
    """An engine of DeepSpeed as the model and the optimizer that finetune.train() takes."""

    def __init__(self, engine, config):
        self._engine = engine
        self.config = config
        self.step = engine.step
        self.backward = engine.backward

    def __call__(self, **batch):
        return self._engine(**batch)

    def zero_grad(self):
        """Nothing: the engine's step() has done it."""


def last_error(error):
    """The last line of a compiler or of Python that reports an error."""
    lines = str(error.__cause__ or error).strip().splitlines() or [repr(error)]
    return ([line for line in lines if "error:" in line.lower()] or lines)[-1].strip()


def config_of(options):
    """The configuration of DeepSpeed's tutorial on ZeRO-Offload, for one process."""
    return {
        "train_micro_batch_size_per_gpu": options.tokens // options.sequence,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "contiguous_gradients": True,
            "overlap_comm": True,
        },
    }


def alone():
    """Sets what a launcher sets, for one process, and lets PyTorch find ninja."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        import ninja
    except ImportError:
        return
    os.environ["PATH"] = os.pathsep.join([ninja.BIN_DIR, os.environ["PATH"]])


def deepspeed(model, options):
    """Trains with ZeRO-Offload."""
    if options.clip or options.accumulate != 1:
        raise Missing("the run with DeepSpeed neither clips nor accumulates")
    try:
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except Exception as error:
        raise Missing(f"DeepSpeed cannot be imported: {last_error(error)}") from error
    alone()
    try:
        adam = DeepSpeedCPUAdam(model.parameters(), lr=1e-5, weight_decay=0.01)
    except Exception as error:
        raise Missing(f"DeepSpeed's CPU Adam does not build: {last_error(error)}") from error
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam, config=config_of(options))
    trained = DeepSpeed(engine, model.config)
    return finetune.train(trained, trained, options, backward=trained.backward)


def torchao(model, options):
    """Trains with CPUOffloadOptimizer."""
    rival = common.need("torchao.optim").CPUOffloadOptimizer
    optimizer = rival(
        model.parameters(), torch.optim.AdamW, offload_gradients=True, fused=True, lr=1e-5
    )
    return finetune.train(model, optimizer, options)


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rival", choices=("torchao", "deepspeed"), default="torchao")
    own, rest = parser.parse_known_args()
    options = finetune.parse(rest)
    model = finetune.make_model(options, common.need("transformers"))
    loss_by = "whole" if options.whole_loss else ravenstore.chunk_loss(model).how
    rival = {"torchao": torchao, "deepspeed": deepspeed}[own.rival]
    try:
        losses, seconds = rival(model, options)
    except Missing as error:
        print(json.dumps({"failed": str(error)}))
        return
    made = finetune.summary(model, options, loss_by, losses, seconds)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    print(json.dumps({"way": own.rival, **made}))


if __name__ == "__main__":
    main()
