"""The allocator on a GPU, compared with PyTorch's own: graphs, pools, streams, figures.

It needs a GPU and is skipped without; bench/gpu_pytorch runs it where there is one. All of its
tests share one process, whose allocator stays.
"""

import io
import os
import unittest

import harness
import ravenstore
import torch

MIB = harness.MIB
BUDGET = 900 * MIB


def offloading():
    return ravenstore.offload(device_budget=BUDGET, embedded=True, way="allocator")


def layers():
    torch.manual_seed(0)
    pairs = [(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(8)]
    return torch.nn.Sequential(*[layer for pair in pairs for layer in pair]).cuda()


class OnTwo(torch.nn.Module):
    """The second half of the layers is on the second GPU."""

    def __init__(self):
        super().__init__()
        halves = layers()
        self.first, self.second = halves[:8], halves[8:].to("cuda:1")

    def forward(self, batch):
        return self.second(self.first(batch).to("cuda:1"))


def convolutions():
    torch.manual_seed(0)
    pairs = [(torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU()) for _ in range(16)]
    stem = torch.nn.Unflatten(1, (64, 64, 64))
    return torch.nn.Sequential(stem, *[layer for pair in pairs for layer in pair]).cuda()


def train(batch, offloaded, make=layers, steps=4):
    """Losses and parameters of a few steps; 2 GiB are saved in each."""
    model, losses = make(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        if offloaded:
            with offloading():
                loss = model(batch).square().mean()
        else:
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


# What is trained with the store and without, by name: the kind of model, and the batch's rows.
JOBS = {"one": (layers, 12288), "two": (OnTwo, 20480)}
# Of each job that fits on this machine's GPUs: what its plain run gave, had before the store came.
plainly = {}


def run(name, offloaded):
    make, rows = JOBS[name]
    torch.manual_seed(1)
    return train(torch.randn(rows, 2048, device="cuda:0"), offloaded, make)


def setUpModule():
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    for name in list(JOBS)[: torch.cuda.device_count()]:
        plainly[name] = run(name, offloaded=False)


class Trains(unittest.TestCase):
    def trains_as_plainly(self, name):
        moved = ravenstore.explain().bytes_in
        ours = run(name, offloaded=True)
        self.assertGreater(ravenstore.explain().bytes_in, moved)
        self.assertEqual(ours[0], plainly[name][0])
        for one, other in zip(ours[1], plainly[name][1], strict=True):
            self.assertTrue(torch.equal(one, other))


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class OffloadOnAGpu(Trains):
    @classmethod
    def setUpClass(cls):
        with offloading():
            pass

    def test_steps_under_a_budget_are_bit_equal_to_plain_ones(self):
        self.trains_as_plainly("one")

    def test_algorithms_that_cudnn_tries_take_their_room_from_the_budget(self):
        batch = torch.randn(64, 64 * 64 * 64, device="cuda")
        torch.backends.cudnn.benchmark = True
        try:
            moved = ravenstore.explain().bytes_in
            tried, _ = train(batch, offloaded=True, make=convolutions)
            self.assertGreater(ravenstore.explain().bytes_in, moved)
        finally:
            torch.backends.cudnn.benchmark = False
        untried, _ = train(batch, offloaded=True, make=convolutions)
        for one, other in zip(tried, untried, strict=True):
            self.assertAlmostEqual(one, other, places=4)

    def test_a_graph_captured_after_eager_work_replays(self):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            square = torch.randn(1024, 1024, device="cuda")
            (square @ square).relu()
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                result = (square @ square).relu()
        for _ in range(8):
            torch.randn(4096, 1024, device="cuda")
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(result, (square @ square).relu()))

    def test_a_memory_pool_is_filled_by_pytorchs_own_allocator(self):
        pool = torch.cuda.MemPool()
        before = torch.cuda.memory_allocated()
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(torch.cuda.memory_allocated() - before, tensor.nbytes)

    def test_too_much_is_pytorchs_error_in_words_and_a_retry_works(self):
        with self.assertRaisesRegex(torch.OutOfMemoryError, "^CUDA out of memory.*too small") as no:
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        self.assertIn("device_budget", str(no.exception))
        self.assertEqual(
            torch.ones(16 * MIB, dtype=torch.uint8, device="cuda").sum().item(), 1 << 24
        )

    def test_figures_count_the_stores_blocks(self):
        before, events = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["num_ooms"]
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(torch.cuda.memory_allocated() - before, 64 * MIB)
        self.assertGreaterEqual(torch.cuda.max_memory_allocated(), before + 64 * MIB)
        self.assertGreaterEqual(torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
        addresses = {segment["address"] for segment in torch.cuda.memory_snapshot()}
        self.assertIn(tensor.data_ptr(), addresses)
        self.assertEqual(torch.cuda.memory_stats()["num_ooms"], events)
        del tensor
        self.assertEqual(torch.cuda.memory_allocated(), before)
        self.assertIn("Allocated memory", torch.cuda.memory_summary())
        torch.cuda.empty_cache()

    def test_a_recorded_stream_is_done_before_the_block_serves_again(self):
        side = torch.cuda.Stream()
        for _ in range(20):
            block = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                seen = block.clone()
            block.record_stream(side)
            del block
            other = torch.full((32 * MIB,), 1, dtype=torch.uint8, device="cuda")
            side.synchronize()
            self.assertEqual(int(seen.max()), 0)
            del other, seen

    def test_a_backward_pass_on_a_side_stream_reads_the_right_bytes(self):
        side = torch.cuda.Stream()
        leaf = torch.randn(8 * MIB, device="cuda", requires_grad=True)
        with torch.cuda.stream(side), offloading():
            side.wait_stream(torch.cuda.default_stream())
            value = leaf
            for _ in range(40):
                value = value.sin()
            value.sum().backward()
        torch.cuda.synchronize()
        # The same in pieces that fit: 40 sines would save more than the budget.
        values = [leaf.detach()]
        for _ in range(39):
            values.append(values[-1].sin().cpu().cuda())
            values[-2] = values[-2].cpu()
        expected = torch.ones_like(leaf)
        for value in reversed(values):
            expected = expected * value.cuda().cos()
        self.assertTrue(torch.equal(leaf.grad, expected))

    def test_cuda_ipc_is_refused_in_words(self):
        tensor = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
        with self.assertRaisesRegex(RuntimeError, "Ravenstore's"):
            tensor.untyped_storage()._share_cuda_()


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class StatesOnAGpu(unittest.TestCase):
    def optimizer(self):
        """Of states in several chunks, after a step; the largest is cut."""
        torch.manual_seed(2)
        shapes = ((1024, 1000), (17,), (64, 64, 3, 3), (5000, 1024))
        params = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in shapes]
        params[2].data = params[2].data.contiguous(memory_format=torch.channels_last)
        opt = torch.optim.AdamW(params, fused=True)
        return params, opt

    def test_what_torch_save_writes_is_what_it_writes_of_the_plain_one(self):
        plain, mine = self.optimizer(), self.optimizer()
        with harness.daemon("--backend", "cuda", pool_size="256MiB") as socket:
            store = ravenstore.Store.connect(socket=socket, device_budget="16MiB")
            ravenstore.offload_optimizer(mine[1], store, chunk="2MiB")
            for params, opt in (plain, mine):
                generator = torch.Generator("cuda").manual_seed(3)
                for p in params:
                    grad = torch.randn(p.shape, device="cuda", generator=generator)
                    p.grad = torch.empty_like(p).copy_(grad)
                opt.step()
            files = [io.BytesIO(), io.BytesIO()]
            for file, (_, opt) in zip(files, (plain, mine), strict=True):
                torch.save(opt.state_dict(), file)
                file.seek(0)
            expected, got = (torch.load(file, map_location="cpu")["state"] for file in files)
            for number, states in expected.items():
                for key, value in states.items():
                    self.assertTrue(torch.equal(got[number][key], value), (number, key))
                    self.assertEqual(got[number][key].stride(), value.stride())
            del mine
            store.close()


@unittest.skipUnless(torch.cuda.device_count() > 1, "no two GPUs")
class OffloadOnTwoGpus(Trains):
    @classmethod
    def setUpClass(cls):
        with offloading():
            pass

    def test_a_model_on_two_devices_trains_as_plainly(self):
        self.trains_as_plainly("two")

    def test_a_block_is_copied_to_another_gpu_and_back(self):
        here = torch.arange(8 * MIB, device="cuda:0")
        there = here.to("cuda:1", non_blocking=True)
        back = there.to("cuda:0")
        self.assertEqual(there.device.index, 1)
        self.assertTrue(torch.equal(back, here))
        self.assertTrue(torch.equal(there.cpu(), here.cpu()))


if __name__ == "__main__":
    unittest.main()
