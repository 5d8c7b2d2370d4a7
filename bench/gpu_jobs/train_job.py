"""Trains a perceptron for some steps, as a job that is admitted: --gib is roughly what it takes."""

import argparse
import time

import torch

WIDTH = 4096
LAYERS = 8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0, help="it goes on for so long")
    given = parser.parse_args()
    # Of each sample the layers and the activations keep their inputs; as much again for the states.
    batch = max(64, int(given.gib * 2**30 / (2 * LAYERS * WIDTH * 4)))
    layers = [
        layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
    ]
    model = torch.nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    begun, step = time.monotonic(), 0
    while step < given.steps or time.monotonic() - begun < given.seconds:
        loss = model(torch.randn(batch, WIDTH, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    print(f"{step} steps, loss {loss.item():.4f}, {torch.cuda.max_memory_reserved()} bytes")


if __name__ == "__main__":
    main()
