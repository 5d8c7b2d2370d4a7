"""Two ranks of one training, with gloo: DDP and FSDP under a scope are what they are without."""

import contextlib
import datetime
import os
import signal
import tempfile

import harness
import offload_harness as offload
import ravenstore
import torch
import torch.distributed as dist
import xml_main
from offload_harness import MIB, Child, OffloadCase, bits, offloading
from ravenstore._demo_model import Gpt, Shape, batches
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
STEPS = 2
# Weights and what is saved are larger than 1 MiB, so that nothing of either is left as small.
SHAPE = Shape(layers=3, width=256, heads=4, length=256, batch=8, vocabulary=256)
DEVICE_TOTAL = "256MiB"
# The allocator's is for gradients and buckets as well.
BUDGET = (96 if offload.WAY == "allocator" else 48) * MIB


def with_ddp(model):
    return DistributedDataParallel(model)


def with_fsdp(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def alone(model):
    return model


def train(wrap, rank, scope):
    """The losses of some steps, and the first one's gradients."""
    torch.manual_seed(0)
    model = wrap(Gpt(SHAPE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for tokens in batches(SHAPE, STEPS * RANKS, torch.device("cpu"))[rank::RANKS]:
        with scope():
            loss = model(tokens)
        loss.backward()
        if not out:
            for parameter in model.parameters():
                gradient = parameter.grad
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                out.append(None if local is None else bits(local))
        out.append(bits(loss))
        optimizer.step()
        optimizer.zero_grad()
    return out


class RanksTest(OffloadCase):
    @classmethod
    def setUpClass(cls):
        flags = {"device_total": DEVICE_TOTAL, "pool_size": "512MiB"}
        cls.socket = cls.enterClassContext(harness.daemon(**flags))

    def scope(self):
        return offloading(socket=self.socket, embedded=False, device_budget=BUDGET, timeout=20)

    def run_ranks(self, function):
        """(exit code, result) of `function(rank)` in each of the ranks."""
        folder = self.enterContext(tempfile.TemporaryDirectory())

        def run(rank):
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=RANKS,
                timeout=datetime.timedelta(seconds=40),
            )
            return function(rank)

        children = [Child(lambda rank=rank: run(rank)) for rank in range(RANKS)]
        return [child.wait() for child in children]

    def assertSameOnRanks(self, wrap):
        """Each rank's explanation, and what was taken with `wrap` and without."""

        def run(rank):
            plain = train(wrap, rank, contextlib.nullcontext)
            ours = train(wrap, rank, self.scope)
            explained = ravenstore.explain()
            train(alone, rank, self.scope)
            taken = explained.taken.bytes, ravenstore.explain().taken.bytes - explained.taken.bytes
            dist.barrier()
            return plain, ours, explained, taken

        explanations = []
        for rank, (code, result) in enumerate(self.run_ranks(run)):
            self.assertEqual(code, 0, f"rank {rank}")
            plain, ours, explained, taken = result
            self.assertEqualBits(ours, plain)
            self.assertTrue(explained.moved, explained)
            self.assertEqual(explained.way, offload.WAY_IN_USE)
            explanations.append((explained, taken))
        return explanations

    def test_ddp(self):
        self.assertSameOnRanks(with_ddp)

    def test_fsdp_with_its_unsharded_parameters_left_alone(self):
        for explained, taken in self.assertSameOnRanks(with_fsdp):
            # Those of 1 MiB and more, each saved once in a step.
            weights = SHAPE.layers * 2 * 4 * SHAPE.width**2 * 4
            self.assertGreaterEqual(explained.kept["parameter"].bytes, STEPS * weights)
            self.assertRegex(str(explained), "left alone, parameter: ")
            self.assertEqual(*taken)

    def test_a_rank_that_is_killed_in_backward(self):
        def run(rank):
            torch.manual_seed(0)
            model = with_ddp(Gpt(SHAPE))
            if rank == 1:
                weight = model.module.blocks[1].up.weight
                weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            with self.scope():
                loss = model(batches(SHAPE, 1, torch.device("cpu"))[0])
            words = ""
            try:
                loss.backward()
            except RuntimeError as error:
                words = str(error)
            del loss, model
            # The daemon serves this one as before.
            leaf = offload.random(512, 1024, grad=True)
            with self.scope():
                value = leaf.sin().exp().sum()
            value.backward()
            assert torch.equal(leaf.grad, leaf.detach().cos() * leaf.detach().sin().exp())
            return words

        (code, words), (killed, _) = self.run_ranks(run)
        self.assertEqual((code, killed), (0, -signal.SIGKILL))
        self.assertRegex(words, "(?i)peer|connection|closed|timed out")
        # Both are gone, and so is what they held: all of the device is there.
        with ravenstore.Store.connect(socket=self.socket, timeout=20) as store:
            store.create(240 * MIB).free()


if __name__ == "__main__":
    xml_main.main()
