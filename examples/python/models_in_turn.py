"""Several models take turns on a GPU that holds one of them: what is not used leaves it.

    python3 examples/python/models_in_turn.py                     # a GPU, the node's daemon
    python3 examples/python/models_in_turn.py --device cpu --layers 2 --width 64

Each model's weights are a safetensors file, which is written first. They are loaded once, and
shared by all processes that load them. A request wakes its model's weights. Another model's make
room, and are copied once: they do not change. `--limit` leaves that much of the GPU free for them,
by default what one model and a half take.
"""

import argparse
import contextlib
import json
import pathlib
import struct
import tempfile
import time

import ravenstore
import torch
from torch import nn

MIB = 1 << 20
# Of one tensor: a client's addresses are bounded.
LARGEST = 64 << 30


def build(options, seed):
    torch.manual_seed(seed)
    layers = []
    for _ in range(options.layers):
        layers += [nn.Linear(options.width, options.width), nn.GELU()]
    return nn.Sequential(*layers)


def write(path, tensors):
    """A safetensors file."""
    header, data = {}, []
    end = 0
    for name, tensor in tensors.items():
        memory = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        offsets = [end, end + len(memory)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        data.append(memory)
        end += len(memory)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data)


class Served:
    """A model whose weights are in turn with others'."""

    def __init__(self, path, options):
        self.weights = ravenstore.load_safetensors(path)
        with torch.device("meta"):
            self.model = build(options, 0)
        self.model.load_state_dict(dict(self.weights), assign=True)
        self.model.requires_grad_(requires_grad=False)
        self.weights.sleep()

    def answer(self, request):
        self.weights.wake()
        try:
            answer = self.model(request).cpu()
        finally:
            # The work that reads the weights has ended: the answer is here.
            self.weights.sleep()
        return answer


def take_all_but(limit, stack):
    """Takes the GPU's memory until `stack` ends, as others do."""
    while (room := torch.cuda.mem_get_info()[0] - limit) > MIB:
        store = stack.enter_context(ravenstore.Store.connect(name="others"))
        stack.enter_context(store.create(min(room, LARGEST)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--limit", default=None, help="of the GPU's memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        served, wanted = [], []
        request = torch.randn(4, options.width)
        for number in range(options.models):
            model = build(options, number)
            wanted.append(model(request).detach())
            path = pathlib.Path(folder) / f"{number}.safetensors"
            write(path, model.state_dict())
            served.append(Served(path, options))
        size = served[0].weights.bytes
        limit = ravenstore.bytes_of(options.limit) if options.limit else size * 3 // 2
        with contextlib.ExitStack() as others:
            if options.device == "cuda":
                take_all_but(limit, others)
            request = request.to(options.device)
            for number in range(options.requests):
                which = number % options.models
                began = time.perf_counter()
                answer = served[which].answer(request)
                took = time.perf_counter() - began
                torch.testing.assert_close(answer, wanted[which], rtol=1e-3, atol=1e-3)
                print(f"request {number}: model {which}, {took * 1e3:.1f} ms")
        print(f"{options.models} models of {size / MIB:.1f} MiB each answered right")
        for each in served:
            each.weights.close()


if __name__ == "__main__":
    main()
