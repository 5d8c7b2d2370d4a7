"""Captures: what a job allocates on a GPU that is not there, and in what order."""

import copy
import io
import unittest

import harness  # noqa: F401 - the package's path
import torch
import xml_main
from harness import MIB
from ravenstore import estimate
from ravenstore.estimate import _overheads
from ravenstore.estimate._capture import record
from ravenstore.estimate._fake import FakeGpu
from ravenstore.estimate._recorder import Recorder
from torch import nn
from torch.nn import functional

GPU = estimate.GPU
WORKSPACE = _overheads.of(GPU).matmul_workspace
K = 1000


def fake(recorder=None):
    return FakeGpu(recorder or Recorder(), GPU, 80 << 30)


def between(recorder, mark):
    """The events from one mark to the next; sizes of what came (+) and went (-)."""
    places = [*recorder.marks, (len(recorder.events), "end")]
    for (begin, name), (end, _) in zip(places, places[1:], strict=False):
        if name == mark:
            return [size for size, _ in recorder.events[begin:end]]
    raise AssertionError(mark)


def attention(dtype, mask=None, width=64, **options):
    """The peak in addition to query, key and value, and the backward function's name."""
    recorder = Recorder()
    with fake(recorder):
        q, k, v = (
            torch.randn(2, 4, 512, width, device="cuda", dtype=dtype, requires_grad=True)
            for _ in range(3)
        )
        mask = None if mask is None else torch.ones(512, 512, dtype=mask, device="cuda")
        before = recorder.used
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
        way = type(out.grad_fn).__name__
        out.sum().backward()
    return recorder.used_peak - before, way


class EventsTest(unittest.TestCase):
    """Against what a GPU is known to do, computed by hand."""

    def test_a_linear_layers_step(self):
        def build():
            layer = nn.Linear(K, K, bias=False).to("cuda")
            data = torch.randn(3 * K, K, device="cuda")
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

            def step():
                layer(data).relu().sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        recorder = record(build, steps=3, gpu=GPU, total_memory=80 << 30)
        weight, rows = 4 * K * K, 12 * K * K
        self.assertEqual(between(recorder, "build"), [weight, rows])
        forward = [rows, WORKSPACE, rows, -rows, 4]
        backward = [4, rows, -rows, weight, WORKSPACE, -rows, -4, -4]
        first = between(recorder, "step 1")
        self.assertEqual(sorted(first[:5]), sorted(forward))
        self.assertEqual(sorted(first[5:]), sorted([*backward, -weight]))
        # The workspaces stay.
        second = between(recorder, "step 2")
        self.assertEqual(sorted(second), sorted(x for x in first if x != WORKSPACE))

    def test_autograd_sums_gradients_in_place(self):
        recorder = Recorder()
        with fake(recorder):
            x = torch.randn(K, K, device="cuda", requires_grad=True)
            y = x * 1.0
            total = (y.sin() + y.cos()).sum()
            recorder.mark("backward")
            total.backward()
            recorder.mark("end")
        allocated = [size for size in between(recorder, "backward") if size == 4 * K * K]
        # sin(x) and its negative, cos(x), a product for each, and x's gradient.
        self.assertEqual(len(allocated), 6)

    def test_views_and_in_place_operators_allocate_nothing(self):
        recorder = Recorder()
        with fake(recorder):
            x = torch.zeros(8, 8, device="cuda")
            recorder.mark("views")
            x.view(64).t().add_(1).relu_()
            x[2:5].mul_(2)
            x.to("cuda").cuda().contiguous()
            recorder.mark("end")
        self.assertEqual(between(recorder, "views"), [])

    def test_what_is_dropped_is_freed_immediately(self):
        recorder = Recorder()
        with fake(recorder):
            x = torch.zeros(K, K, device="cuda")
            view = x[0]
            del x
            self.assertEqual(recorder.used, 4 * K * K)
            del view
            self.assertEqual(recorder.used, 0)

    def test_a_model_moved_to_the_gpu_stays_the_same_parameters(self):
        with fake():
            layer = nn.Linear(4, 4)
            layer.tied = layer.weight
            weight = layer.weight
            optimizer = torch.optim.Adam(layer.parameters())
            self.assertEqual(weight.device.type, "cpu")
            layer.to("cuda")
            self.assertIs(layer.weight, weight)
            self.assertIs(layer.tied, weight)
            self.assertIs(optimizer.param_groups[0]["params"][0], weight)
            self.assertIsInstance(weight, nn.Parameter)
            self.assertTrue(weight.is_cuda)
            self.assertEqual(copy.deepcopy(layer).weight.device.type, "cuda")

    def test_real_tensors_stay_real(self):
        with fake():
            x = torch.arange(6)
            self.assertEqual((x * 2).tolist(), [0, 2, 4, 6, 8, 10])
            self.assertEqual(torch.tensor([1, 2]).sum().item(), 3)


class OperatorsTest(unittest.TestCase):
    def test_attention_takes_no_square_matrix(self):
        square = 2 * 4 * 512 * 512
        for dtype, way in (
            (torch.bfloat16, "ScaledDotProductFlashAttentionBackward0"),
            (torch.float32, "ScaledDotProductEfficientAttentionBackward0"),
        ):
            size, name = attention(dtype, is_causal=True)
            self.assertEqual(name, way)
            one = 2 * 4 * 512 * 64 * dtype.itemsize
            self.assertLess(size, 8 * one)
            self.assertLess(size, square * dtype.itemsize * 4)
        self.assertEqual(attention(torch.bfloat16, torch.bool)[1][:24], "ScaledDotProductEfficien")
        self.assertGreater(attention(torch.float64)[0], square * 8)

    def test_attention_heads_of_any_width(self):
        self.assertEqual(attention(torch.float16, width=60)[1], "SliceBackward0")
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            self.assertGreater(attention(torch.float32)[0], 2 * 4 * 512 * 512 * 4)

    def test_dropout_keeps_one_byte_for_each_value(self):
        recorder = Recorder()
        with fake(recorder):
            x = torch.zeros(K, K, device="cuda")
            recorder.mark("dropout")
            kept = functional.dropout(x, 0.1)
            recorder.mark("end")
            del kept
        self.assertEqual(sorted(between(recorder, "dropout")), [-K * K, K * K, 4 * K * K])

    def test_autocast_casts_and_keeps_weights(self):
        recorder = Recorder()
        with fake(recorder):
            layer = nn.Linear(K, K, bias=False).to("cuda")
            x = torch.zeros(10, K, device="cuda")
            recorder.mark("autocast")
            with torch.autocast("cuda", torch.bfloat16):
                a, b = layer(x), layer(x)
                self.assertEqual(a.dtype, torch.bfloat16)
                self.assertEqual(a.softmax(-1).dtype, torch.float32)
                self.assertEqual(a.sum().dtype, torch.float32)
                self.assertEqual((a + x).dtype, torch.float32)
                self.assertEqual(functional.mse_loss(a, b).dtype, torch.float32)
            recorder.mark("end")
        self.assertEqual(between(recorder, "autocast").count(2 * K * K), 1)

    def test_softmax_of_fp16_widens_without_a_copy(self):
        recorder = Recorder()
        with fake(recorder):
            x = torch.zeros(K, K, device="cuda", dtype=torch.float16)
            recorder.mark("softmax")
            y = x.log_softmax(-1, dtype=torch.float32)
            recorder.mark("end")
        del y
        self.assertEqual(between(recorder, "softmax"), [4 * K * K])

    def test_recurrent_layers(self):
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            for options in ({}, {"bidirectional": True, "batch_first": True, "dropout": 0.1}):
                with fake():
                    layer = kind(8, 16, 2, **options).to("cuda")
                    out, _ = layer(torch.randn(5, 3, 8, device="cuda"))
                    out.sum().backward()
                    self.assertEqual(out.shape, (5, 3, 32 if options else 16))
                    self.assertEqual(layer.weight_ih_l0.grad.shape, layer.weight_ih_l0.shape)
                    with torch.autocast("cuda"):
                        self.assertEqual(
                            layer(torch.randn(5, 3, 8, device="cuda"))[0].dtype, torch.float16
                        )

    def test_packed_sequences(self):
        with fake():
            layer = nn.LSTM(8, 16, proj_size=4).to("cuda")
            data = torch.randn(5, 3, 8, device="cuda", requires_grad=True)
            packed = nn.utils.rnn.pack_padded_sequence(data, [5, 4, 1])
            out, (state, cell) = layer(packed)
            self.assertEqual(out.data.shape, (10, 4))
            nn.utils.rnn.pad_packed_sequence(out)[0].sum().backward()
            self.assertEqual(data.grad.shape, data.shape)
            self.assertEqual((state.shape, cell.shape), ((1, 3, 4), (1, 3, 16)))

    def test_every_kind_of_optimizer_step(self):
        for optimizer, states in ((torch.optim.SGD, 0), (torch.optim.Adam, 2)):
            for options in ({}, {"foreach": False}, {"fused": True}):

                def build(optimizer=optimizer, options=options):
                    layer = nn.Linear(K, K, bias=False).to("cuda")
                    steps = optimizer(layer.parameters(), lr=0.1, **options)

                    def step():
                        layer(torch.zeros(1, K, device="cuda")).sum().backward()
                        steps.step()
                        steps.zero_grad()

                    return step

                recorder = record(build, steps=3, gpu=GPU, total_memory=80 << 30)
                self.assertEqual(between(recorder, "step 1").count(4 * K * K) >= 1 + states, True)
                least = 4 * K * K * (2 + states)
                self.assertGreaterEqual(recorder.used_peak, least)
                self.assertLess(recorder.used_peak, least + 2 * WORKSPACE + 12 * K * K)

    def test_optimizers_go_through_lists_as_on_a_gpu(self):
        """Adam's denominators are there for all weights together, unless it is asked not to."""

        def passing(**options):
            recorder = Recorder()
            with fake(recorder):
                weights = [nn.Parameter(torch.zeros(K, K, device="cuda")) for _ in range(4)]
                optimizer = torch.optim.Adam(weights, **options)
                for step in range(2):
                    for weight in weights:
                        weight.grad = torch.zeros_like(weight)
                    recorder.mark(f"step {step}")
                    before, recorder.used_peak = recorder.used, recorder.used
                    optimizer.step()
                return (recorder.used_peak - before) // (4 * K * K)

        self.assertEqual(passing(), 4)
        self.assertLessEqual(passing(foreach=False), 3)
        self.assertEqual(passing(fused=True), 0)

    def test_sizes_that_depend_on_data_are_the_largest(self):
        recorder = Recorder()
        with fake(recorder):
            x = torch.randn(6, 4, device="cuda")
            self.assertEqual(x[x > 0].shape, (24,))
            self.assertEqual((x > 0).nonzero().shape, (24, 2))
            self.assertEqual(torch.masked_select(x, x > 0).shape, (24,))
            self.assertEqual(x.unique().shape, (24,))
        self.assertIn("aten::nonzero", " ".join(recorder.notes))

    def test_channels_last_stays(self):
        order = torch.channels_last
        with fake():
            layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
            layer.to("cuda", memory_format=order)
            out = layer(torch.randn(2, 3, 8, 8, device="cuda"))
            self.assertTrue(out.is_contiguous(memory_format=order))
            out.sum().backward()
            self.assertTrue(layer[0].weight.grad.is_contiguous(memory_format=order))

    def test_every_way_to_make_a_tensor_there(self):
        with fake():
            here = torch.zeros(3)
            there = here.cuda()
            for made in (
                torch.tensor([1, 2], device="cuda"),
                torch.as_tensor(here, device="cuda:0"),
                here.to("cuda", torch.float16),
                here.to(there),
                here.type(torch.cuda.HalfTensor),
                here.type("torch.cuda.HalfTensor"),
                torch.cuda.FloatTensor(2, 3).fill_(1.0),
                torch.cuda.LongTensor([1, 2]),
                there.new_tensor([1]),
                there.new_zeros(3),
                torch.zeros_like(there),
                there.double().half(),
            ):
                self.assertEqual(made.device, torch.device("cuda", 0))
            with torch.device("cuda"):
                self.assertTrue(nn.Linear(2, 2).weight.is_cuda)
                self.assertTrue(torch.arange(3).is_cuda)
                self.assertEqual(torch.ones(2).tolist(), [1.0, 1.0])
                self.assertEqual((torch.ones(2) > 0).any().item(), True)
            self.assertEqual(here.new_tensor([1]).tolist(), [1.0])

    def test_a_device_that_a_program_sets_holds_for_tensors_of_data(self):
        with torch.device("meta"):  # PyTorch remembers from here on whom it asks for a device
            torch.ones(1)
        with fake(), torch.device("cuda"):
            for made in (torch.tensor([1.0, 2.0]), torch.as_tensor([1]), torch.asarray([1])):
                self.assertTrue(made.is_cuda)
            self.assertEqual(torch.tensor([1], device="cpu").device.type, "cpu")
            self.assertTrue(torch.linspace(0, 1, 3).is_cuda)

    def test_sparse_tensors_are_refused(self):
        with fake():
            layer = nn.Embedding(10, 4, sparse=True).to("cuda")
            out = layer(torch.zeros(3, dtype=torch.int64, device="cuda"))
            with self.assertRaisesRegex(estimate.CaptureRefused, "has dense tensors alone"):
                out.sum().backward()

    def test_an_operator_without_a_shape_rule_runs_on_zeros(self):
        recorder = Recorder()
        with fake(recorder):
            x = torch.zeros(4, 4, device="cuda")
            self.assertEqual(torch.geqrf(x)[0].shape, (4, 4))
            with torch.library._scoped_library("raven_test", "DEF") as library:
                library.define("twice(Tensor x) -> Tensor")
                library.impl("twice", lambda x: torch.cat([x, x]), "CPU")
                twice = torch.ops.raven_test.twice
                self.assertEqual(twice(x).shape, (8, 4))
                self.assertTrue(twice(x).is_cuda)
                with self.assertRaisesRegex(estimate.CaptureRefused, "give a smaller batch"):
                    twice(torch.zeros(1 << 26, device="cuda"))
        self.assertIn("raven_test.twice", " ".join(recorder.notes))


class WorkspacesTest(unittest.TestCase):
    """Bytes that an H100 was seen to allocate in a kernel's call (bench/recorded)."""

    def passing_in(self, call):
        """Allocations that end within the call, the largest first."""
        recorder = Recorder()
        with fake(recorder):
            recorder.mark("before")
            call(recorder)
            recorder.mark("end")
        sizes = between(recorder, "call")
        return sorted((-size for size in sizes if size < 0 and -size in sizes), reverse=True)

    def sum_over_rows(self, rows, columns):
        def call(recorder):
            x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
            recorder.mark("call")
            x.sum(0)

        return self.passing_in(call)[0]

    def test_a_biass_gradient(self):
        self.assertEqual(self.sum_over_rows(16384, 4096), 138412032)
        self.assertEqual(self.sum_over_rows(16384, 3072), 138412032)
        self.assertEqual(self.sum_over_rows(16384, 1024), 134217728)
        self.assertEqual(self.sum_over_rows(64, 4096), 2 * 4096)  # the sum itself

    def test_an_embeddings_gradient(self):
        def call(recorder, count=16384):
            table = torch.zeros(50304, 1024, device="cuda", requires_grad=True)
            out = functional.embedding(torch.zeros(count, dtype=torch.int64, device="cuda"), table)
            gradient = torch.zeros_like(out)
            recorder.mark("call")
            out.backward(gradient)
            recorder.mark("after")

        self.assertEqual(self.passing_in(call)[0], 73818112)
        self.assertEqual(self.passing_in(lambda recorder: call(recorder, 1024)), [])

    def convolution(self, width, channels, kernel, order=torch.contiguous_format, **options):
        def call(recorder):
            layer = nn.Conv2d(channels, 64, kernel, bias=False, **options)
            layer.to("cuda", torch.bfloat16, memory_format=order)
            x = torch.zeros(32, channels, width, width, dtype=torch.bfloat16, device="cuda")
            x = x.to(memory_format=order)
            recorder.mark("call")
            kept = layer(x)
            recorder.mark("after")
            del kept

        return max(self.passing_in(call), default=0)

    def gradients(self, shape, channels, kernel, dtype=torch.bfloat16, **options):
        """The workspaces for the gradient of a convolution's input and for that of its weight."""

        def call(recorder):
            layer = nn.Conv2d(shape[1], channels, kernel, bias=False, **options).to("cuda", dtype)
            out = layer(torch.zeros(shape, dtype=dtype, device="cuda", requires_grad=True))
            gradient = torch.zeros_like(out)
            recorder.mark("call")
            out.backward(gradient)
            recorder.mark("after")

        return self.passing_in(call)

    def test_a_convolution(self):
        # Seen: 25763984 and 77120528.
        self.assertEqual(self.convolution(56, 64, 3, padding=1), 25763840)
        self.assertEqual(self.convolution(224, 3, 7, padding=3, stride=2), 77120512)
        self.assertEqual(self.convolution(56, 64, 1), 0)
        self.assertEqual(self.convolution(56, 64, 3, groups=64), 0)
        self.assertEqual(self.convolution(56, 64, 3, torch.channels_last), 0)

    def test_a_convolution_that_needs_no_copies(self):
        self.assertEqual(self.convolution(96, 3, 3, padding=1), 0)
        self.assertEqual(self.convolution(32, 64, 1, stride=2), 0)
        self.assertGreater(self.convolution(32, 128, 1, stride=2), 0)

    def test_a_convolutions_gradients(self):
        # Seen in MiB: 95.485 and 99.142; 9.1875 for the weight alone; 384.0 and 385.5.
        self.assertEqual(
            self.gradients((113, 64, 48, 48), 128, 3, padding=1), [103956480, 100122624]
        )
        self.assertEqual(self.gradients((336, 112, 16, 16), 64, 1), [9633792])
        self.assertEqual(self.gradients((2048, 64, 32, 32), 128, 1, stride=2), [384 * MIB] * 2)
        # Each sample has a small product: copies for both, seen 47.5 and 55.5 MiB.
        self.assertEqual(
            self.gradients((304, 2048, 4, 4), 512, 1, torch.float32), [49807360, 49807360]
        )

    def lstm(self, shape, layers, dtype, *, train, **options):
        """What allocations there are in the call of an LSTM, and which of them end in it."""

        def call(recorder):
            layer = nn.LSTM(shape[-1], shape[-1], layers, batch_first=True, **options)
            layer.to("cuda", dtype).train(train)
            given = torch.zeros(shape, dtype=dtype, device="cuda")
            recorder.mark("call")
            with torch.set_grad_enabled(train):
                kept = layer(given)
            recorder.mark("after")
            seen.extend(size for size in between(recorder, "call") if size > 0)
            del kept

        seen = []
        return seen, self.passing_in(call)

    def test_an_lstm(self):
        # Seen in MiB: a workspace of 3176.03 and a reserve of 2560; of inference 1028.27.
        seen, passing = self.lstm((4096, 64, 512), 1, torch.float32, train=True)
        self.assertIn(2560 * MIB, seen)
        self.assertAlmostEqual(passing[0] / (3176.03 * MIB), 1, delta=0.003)
        _, passing = self.lstm((2128, 32, 512), 4, torch.float32, train=False)
        self.assertAlmostEqual(passing[0] / (1028.27 * MIB), 1, delta=0.001)
        # The copy with the steps first.
        self.assertIn(133 * MIB, passing)

    def test_an_lstm_of_which_the_last_state_is_used(self):
        recorder = Recorder()
        with fake(recorder):
            layer = nn.LSTM(8, 16, batch_first=True).to("cuda")
            _, (state, _) = layer(torch.zeros(4, 64, 8, device="cuda"))
            recorder.mark("call")
            state.sum().backward()
            recorder.mark("after")
        # Zeros for the gradient of all steps.
        self.assertIn(4 * 4 * 64 * 16, between(recorder, "call"))

    def test_an_lstms_dropout(self):
        # Seen: 6488064 for good, and 1316.44 MiB kept for backward.
        seen, _ = self.lstm((952, 512, 128), 2, torch.bfloat16, train=True, dropout=0.2)
        self.assertIn(6488064, seen)
        self.assertIn(11 * 952 * 512 * 128 * 2 + 952 * 512 * 128 // 8, seen)

    def test_a_biass_product_has_a_workspace_of_its_own(self):
        def kept(**options):
            recorder = Recorder()
            with fake(recorder):
                layer = nn.Linear(K, K, **options).to("cuda")
                given = torch.zeros(8, K, device="cuda")
                recorder.mark("call")
                out = layer(given)
                recorder.mark("after")
                del out
            return between(recorder, "call")

        self.assertIn(MIB, kept())
        self.assertNotIn(MIB, kept(bias=False))

    def backward_of(self, function):
        """The allocations of backward, the first first."""
        recorder = Recorder()
        with fake(recorder):
            given = torch.zeros(MIB, 1, device="cuda", requires_grad=True)
            out = function(given)
            gradient = torch.zeros_like(out)
            recorder.mark("call")
            out.backward(gradient)
            recorder.mark("after")
        return [size for size in between(recorder, "call") if size > 0]

    def test_a_gradient_in_one_kernel(self):
        self.assertEqual(self.backward_of(functional.silu), [4 * MIB])
        self.assertEqual(self.backward_of(functional.mish), [4 * MIB])

    def test_a_softmaxs_gradient_needs_a_product(self):
        self.assertEqual(self.backward_of(lambda x: x.softmax(-1)), [4 * MIB] * 2)
        self.assertEqual(self.backward_of(lambda x: x.log_softmax(-1)), [4 * MIB])

    def test_attention_written_out(self):
        """Scores, their softmax, where it is masked, and the copy without those rows."""

        def call(recorder):
            shape = (1, 4, 512, 64)
            query, key = (torch.zeros(shape, device="cuda", requires_grad=True) for _ in range(2))
            recorder.mark("call")
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
                kept = functional.scaled_dot_product_attention(query, key, key, is_causal=True)
            recorder.mark("after")
            del kept

        scores = 4 * 4 * 512 * 512
        self.assertEqual(self.passing_in(call)[:3], [scores, scores, scores // 4])

    def test_dropout_makes_its_mask_first(self):
        recorder = Recorder()
        with fake(recorder):
            given = torch.zeros(MIB, device="cuda", requires_grad=True)
            recorder.mark("call")
            out = functional.dropout(given, 0.5)
            recorder.mark("after")
            del out
        self.assertEqual(between(recorder, "call"), [MIB, 4 * MIB])

    def test_the_margin_is_that_of_the_models_sort(self):
        def share(layer, *shape):
            def build():
                inner = layer.to("cuda")
                return lambda: inner(torch.zeros(shape, device="cuda"))

            estimated = estimate.capture(build)
            return round(estimated.margin / estimated.reserved, 3)

        known = _overheads.of(GPU).capture_margin
        self.assertEqual(share(nn.Linear(K, K), 2, K), known["other"])
        self.assertEqual(share(nn.Conv2d(3, 8, 3), 2, 3, 32, 32), known["convolutional"])
        self.assertEqual(share(nn.LSTM(8, 8), 2, 3, 8), known["recurrent"])


class HostTest(unittest.TestCase):
    """What a program reads of the GPU is plausible, and never an error."""

    def setUp(self):
        self.enterContext(fake())
        self.loss = torch.randn(5, 5, device="cuda").square().mean()

    def test_numbers(self):
        self.assertEqual(self.loss.item(), 1.0)
        self.assertEqual(float(self.loss), 1.0)
        self.assertEqual(f"{self.loss:.2f} {self.loss}"[:4], "1.00")
        self.assertEqual(self.loss.detach().cpu().numpy(), 1.0)
        self.assertEqual(torch.zeros(2, device="cuda").tolist(), [0.0, 0.0])
        self.assertEqual(torch.ones(3, 4, device="cuda").sum(1).tolist(), [4.0, 4.0, 4.0])

    def test_a_loss_is_finite(self):
        self.assertFalse(torch.isnan(self.loss))
        self.assertFalse(torch.isnan(torch.zeros(3, device="cuda")).any())
        self.assertTrue(torch.isfinite(self.loss))
        self.assertTrue(torch.isfinite(torch.zeros(3, device="cuda")).all())
        self.assertFalse(self.loss > 1e9)

    def test_a_mask_of_ones_masks_nothing(self):
        """Models then leave it out, and attention takes another kernel."""
        mask = torch.ones(2, 3, dtype=torch.int64, device="cuda")
        self.assertTrue(mask.to(torch.bool).all())
        self.assertTrue(torch.ones_like(mask).bool()[:, None].all())
        self.assertTrue(mask.to(torch.bool).sum() == mask.numel())
        self.assertFalse(torch.zeros_like(mask).bool().any())
        # Where a text ends and another begins within a sample, by its positions: nowhere.
        positions = torch.arange(8, device="cuda")[None]
        breaks = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
        self.assertTrue((breaks.cumsum(-1)[:, -1] == 0).all())

    def test_what_checks_its_arguments_is_content(self):
        logits = torch.zeros(3, 4, device="cuda")
        torch.distributions.Categorical(logits=logits).sample()
        torch.distributions.Normal(logits, torch.ones_like(logits)).rsample()
        self.assertTrue(torch.allclose(logits, logits))
        self.assertTrue(torch.equal(logits, logits))

    def test_a_cuda_tensor_is_no_array(self):
        with self.assertRaisesRegex(TypeError, "Tensor.cpu"):
            self.loss.numpy()

    def test_models_can_be_saved_and_loaded(self):
        layer = nn.Linear(4, 4).to("cuda")
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        layer.load_state_dict(copy.deepcopy(layer.state_dict()))
        self.assertTrue(layer.weight.is_cuda)

    def test_torch_cuda_is_there(self):
        cuda = torch.cuda
        self.assertTrue(cuda.is_available())
        self.assertEqual((cuda.device_count(), cuda.current_device()), (1, 0))
        self.assertEqual(cuda.get_device_name(), GPU)
        self.assertEqual(cuda.get_device_properties(0).total_memory, 80 << 30)
        before = cuda.memory_allocated()
        kept = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(cuda.memory_allocated() - before, kept.numel())
        self.assertEqual(sum(cuda.mem_get_info()[:1]) + cuda.memory_allocated(), 80 << 30)
        with cuda.stream(cuda.Stream()):
            event = cuda.Event(enable_timing=True)
            event.record()
        cuda.synchronize()
        cuda.manual_seed_all(1)
        generator = torch.Generator(device="cuda").manual_seed(3)
        self.assertTrue(torch.randn(3, device="cuda", generator=generator).is_cuda)
        self.assertEqual(torch.randperm(3, generator=torch.Generator("cpu")).sum().item(), 3)
        self.assertGreater(event.elapsed_time(event), 0)


class LifeTest(unittest.TestCase):
    def test_everything_is_as_before_when_it_ends(self):
        names = ("to", "cuda", "pin_memory")
        before = [getattr(torch.Tensor, name) for name in names]
        available, make = torch.cuda.is_available, torch.nn.Parameter.__new__
        with self.assertRaises(ZeroDivisionError), fake():
            raise ZeroDivisionError
        self.assertEqual([getattr(torch.Tensor, name) for name in names], before)
        self.assertIs(torch.cuda.is_available, available)
        self.assertIs(torch.nn.Parameter.__new__, make)
        self.assertEqual(type(nn.Linear(2, 2).weight), nn.Parameter)
        self.assertEqual(functional.dropout(torch.ones(3), 1.0).sum(), 0)

    def test_tensors_may_outlive_it(self):
        recorder = Recorder()
        with fake(recorder):
            kept = torch.zeros(3, device="cuda")
        events = len(recorder.events)
        self.assertEqual(kept.device.type, "meta")
        del kept
        self.assertEqual(len(recorder.events), events)

    def test_a_second_one_runs_after_the_first(self):
        for _ in range(2):
            with fake():
                self.assertTrue(torch.zeros(3, device="cuda").is_cuda)


class CaptureTest(unittest.TestCase):
    def build(self):
        model = nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, 10)).to("cuda")
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            for _ in range(2):  # accumulates
                with torch.autocast("cuda", torch.float16):
                    out = torch.utils.checkpoint.checkpoint(
                        model, torch.randn(8, K, device="cuda"), use_reentrant=False
                    )
                    loss = functional.cross_entropy(out, torch.zeros(8, 10, device="cuda"))
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            self.states = len(optimizer.state)

        return step

    def test_a_whole_recipe(self):
        estimated = estimate.capture(self.build)
        self.assertEqual(self.states, 4)
        self.assertEqual(estimated.source, "capture")
        self.assertEqual(estimated.total, estimated.reserved + estimated.context)
        parameters = 4 * (K * K + 11 * K + 10)
        self.assertGreater(estimated.used, 4 * parameters)
        self.assertLessEqual(estimated.used, estimated.reserved)
        self.assertGreater(estimated.seconds, 0)
        self.assertEqual(estimated.as_dict()["total"], estimated.total)
        self.assertIn("are the margin (capture", str(estimated))

    def test_allocators_differ(self):
        sizes = {
            name: estimate.capture(self.build, allocator=name).reserved
            for name in estimate.ALLOCATORS
        }
        self.assertEqual(len(set(sizes.values())), 4, sizes)

    def test_says_what_does_not_fit_and_what_was_not_measured(self):
        estimated = estimate.capture(self.build, gpu="GeForce", gpu_memory="256MiB")
        self.assertIn("was not measured on GeForce", estimated.notes[0])
        self.assertIn("does not fit: the GPU has 256.0 MiB", estimated.notes[1])

    def test_compiled_models_are_captured_eagerly(self):
        def build():
            model = torch.compile(nn.Linear(4, 4)).to("cuda")
            return lambda: model(torch.zeros(2, 4, device="cuda"))

        self.assertIn("torch.compile was left out", estimate.capture(build).notes[0])

    def test_inference_keeps_no_activations(self):
        def build(context):
            model = nn.Sequential(*[nn.Linear(K, K) for _ in range(8)]).to("cuda").eval()

            def step():
                with context():
                    model(torch.zeros(K, K, device="cuda"))

            return step

        keeps = estimate.capture(lambda: build(torch.enable_grad)).used
        for context in (torch.no_grad, torch.inference_mode):
            used = estimate.capture(lambda context=context: build(context)).used
            self.assertLessEqual(used, keeps - 6 * 4 * K * K)

    def test_refusals(self):
        for call, words in (
            (lambda: estimate.capture(lambda: None), "build gave a NoneType: it has to give"),
            (lambda: estimate.capture(self.build, steps=0), "steps is 0: give at least 1"),
            (lambda: estimate.capture(self.build, allocator="x"), "give one of native"),
        ):
            with self.assertRaisesRegex(estimate.CaptureRefused, words):
                call()


if __name__ == "__main__":
    xml_main.main()
