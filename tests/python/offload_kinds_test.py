"""Every kind of tensor that autograd saves comes back bit for bit, or stays on purpose."""

import contextlib
import tempfile

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import ravenstore
import torch
import xml_main
from offload_harness import MIB, OffloadCase, random


def kept_since(before):
    """What was left alone since the explanation `before`: tensors by reason."""
    now = ravenstore.explain().kept
    counts = {
        reason: tally.tensors - (before.kept[reason].tensors if reason in before.kept else 0)
        for reason, tally in now.items()
    }
    return {reason: count for reason, count in counts.items() if count}


# More than the harness's: five blocks in use and the holes between them leave one of 4 MiB no room
# now and then.
offload.BUDGET = 40 * MIB


class KindsTest(OffloadCase):
    def unary(self, make, function=lambda value: (value * value).sum()):
        """A scene of one leaf of 2 MiB."""

        def scene():
            leaf = random(512, 1024, grad=True)
            return [leaf], lambda: function(make(leaf.exp()))

        return scene

    def test_plain(self):
        self.assertSame(self.unary(lambda value: value))

    def test_what_fits_does_not_move(self):
        self.assertSame(self.unary(lambda value: value), pressed=False)

    def test_not_contiguous(self):
        for name, make in {
            "transposed": lambda value: value.t(),
            "every other row": lambda value: value[::2],
            "every other column": lambda value: value[:, ::2],
            "flipped axes": lambda value: value.view(8, 64, 1024).permute(2, 0, 1),
            "channels last": lambda value: value.view(8, 16, 64, 64).contiguous(
                memory_format=torch.channels_last
            ),
            "an offset": lambda value: value.view(-1)[1000:],
            "a diagonal": lambda value: value.diagonal(3),
        }.items():
            with self.subTest(name):
                self.assertSame(self.unary(make))

    def test_overlapping_views(self):
        self.assertSame(self.unary(lambda value: value.view(-1).unfold(0, 1024, 512)))

    def test_zero_stride(self):
        self.assertSame(self.unary(lambda value: value[:, :1].expand(512, 1024)))

    def test_zero_dimensions_and_empty(self):
        self.assertSame(self.unary(lambda value: value[:0]))
        self.assertSame(self.unary(lambda value: value.sum()))
        self.assertSame(self.unary(lambda value: value[0, 0]))

    def test_half_precisions(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            with self.subTest(dtype):
                self.assertSame(
                    self.unary(
                        lambda value, to=dtype: value.to(to), lambda v: (v * v).double().sum()
                    )
                )

    def test_fp8_that_a_function_saves(self):
        class Rounded(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                ctx.save_for_backward(value.to(torch.float8_e4m3fn))
                return value * 2

            @staticmethod
            def backward(ctx, gradient):
                (value,) = ctx.saved_tensors
                assert value.dtype == torch.float8_e4m3fn
                return gradient * value.to(gradient.dtype)

        def scene():
            leaf = random(MIB, grad=True)
            return [leaf], lambda: Rounded.apply(leaf.sin()).sum()

        self.assertSame(scene)

    def test_integers_and_booleans(self):
        def scene():
            leaf = random(512, 1024, grad=True)
            places = torch.randint(0, 1024, (512, 1024), generator=torch.Generator().manual_seed(1))

            def function():
                value = leaf.exp()
                picked = value.gather(1, places)
                return torch.where(picked > 1.5, picked, value * 3).masked_fill(value < 1, 0).sum()

            return [leaf], function

        self.assertSame(scene)

    def test_complex(self):
        def function(value):
            turned = torch.view_as_complex(value.view(512, 512, 2))
            return (turned * turned.exp()).abs().sum()

        self.assertSame(self.unary(lambda value: value / 10, function))

    def test_conjugate_and_negative_views_stay(self):
        def scene():
            leaf = random(512, 512, 2, grad=True)

            def function():
                value = torch.view_as_complex(leaf.sin())
                return (value.conj() * value).real.sum() + (value.conj().imag * leaf[..., 0]).sum()

            return [leaf], function

        before = self.explained()
        self.assertSame(scene)
        self.assertGreaterEqual(kept_since(before)["not plain memory"], 2)

    def explained(self):
        with offload.offloading():
            pass
        return ravenstore.explain()

    def test_sparse_stays(self):
        def scene():
            leaf = random(1024, 512, grad=True)
            mask = (random(1024, 1024, seed=3) > 2).float()

            def function():
                return torch.sparse.mm(mask.to_sparse(), leaf.sin()).sin().sum()

            return [leaf], function

        before = self.explained()
        self.assertSame(scene)
        self.assertGreaterEqual(kept_since(before)["not plain memory"], 1)

    def test_parameters_their_views_and_frozen_ones_stay(self):
        def scene():
            frozen = torch.nn.Linear(512, 1024)
            trained = torch.nn.Linear(1024, 512)
            for number, parameter in enumerate([*frozen.parameters(), *trained.parameters()]):
                parameter.data = random(*parameter.shape, seed=number) / 30
                parameter.requires_grad_(number >= 2)
            leaf = random(512, 512, grad=True)
            return [leaf, *trained.parameters()], lambda: trained(frozen(leaf.sin()).sin()).sum()

        before = self.explained()
        self.assertSame(scene)
        kept = kept_since(before)
        # Both weights, transposed; the leaf and that of the pressure.
        self.assertEqual(kept["parameter"], 4)

    def test_tiny_tensors_stay(self):
        def scene():
            leaf = random(64, 64, grad=True)
            return [leaf], lambda: (leaf.sin() * leaf.cos()).exp().sum()

        before = self.explained()
        self.assertSame(scene)
        self.assertGreaterEqual(kept_since(before)["small"], 2)

    def test_aliases_are_taken_once(self):
        def scene():
            leaf = random(1024, 768, grad=True)

            def function():
                query, key, value = leaf.sin().split(256, dim=1)
                return (query * key * value).sum() + (query * value).sum()

            return [leaf], function

        before = self.explained()
        self.assertSame(scene)
        now = ravenstore.explain()
        self.assertGreaterEqual(now.shared.tensors - before.shared.tensors, 4)
        # One storage of the scene's, 27 of the pressure's, and the product of query and key.
        self.assertEqual(now.taken.tensors - before.taken.tensors, 29)

    def test_saved_twice_and_read_after_each_other(self):
        def scene():
            leaf = random(512, 1024, grad=True)

            def function():
                value = leaf.sin()
                return (value * value).sum() + value.exp().cos().sum() + (value * leaf).sum()

            return [leaf], function

        self.assertSame(scene)

    def test_a_tensor_of_a_subclass_with_its_own_functions(self):
        class Named(torch.Tensor):
            pass

        self.assertSame(self.unary(lambda value: value.as_subclass(Named)))

    def test_a_tensor_of_a_subclass_with_its_own_dispatch_stays(self):
        from torch.testing._internal.two_tensor import TwoTensor

        def scene():
            leaf = TwoTensor(random(512, 1024), random(512, 1024, seed=5)).requires_grad_()
            return leaf, lambda: (leaf * leaf.exp()).sin().sum()

        before = self.explained()
        self.assertSameInside(scene, lambda value: torch.stack([value.a, value.b]))
        self.assertGreaterEqual(kept_since(before)["subclass"], 3)

    def test_dtensors_stay(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, distribute_tensor

        folder = self.enterContext(tempfile.TemporaryDirectory())
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        self.addCleanup(torch.distributed.destroy_process_group)
        mesh = init_device_mesh("cpu", (1,))

        def scene():
            leaf = distribute_tensor(random(512, 1024), mesh).requires_grad_()
            return leaf, lambda: (leaf * leaf.exp()).sin().sum()

        before = self.explained()
        self.assertSameInside(scene, DTensor.to_local)
        self.assertGreaterEqual(kept_since(before)["subclass"], 3)

    def assertSameInside(self, scene, inside):
        """For a leaf whose bits are `inside` of it."""

        def run(scope):
            leaf, function = scene()
            with scope():
                loss = function()
            loss.backward()
            return [offload.bits(inside(loss.detach())), offload.bits(inside(leaf.grad))]

        self.assertEqualBits(run(offload.offloading), run(contextlib.nullcontext))

    def test_fake_and_meta_tensors_stay(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        before = self.explained()
        with FakeTensorMode(), offload.offloading():
            leaf = torch.empty(1024, 1024, requires_grad=True)
            loss = (leaf.sin() * 2).exp().sum()
        loss.backward()
        with offload.offloading():
            leaf = torch.empty(1024, 1024, requires_grad=True, device="meta")
            loss = (leaf.sin() * 2).exp().sum()
        loss.backward()
        kept = kept_since(before)
        self.assertEqual((kept["subclass"], kept["other device"]), (2, 2))

    def test_what_a_function_keeps_as_an_attribute_is_left_alone(self):
        class Keeping(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                ctx.kept = value.detach()
                return value * value

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2 * ctx.kept

        before = self.explained()
        self.assertSame(self.unary(lambda value: value, lambda value: Keeping.apply(value).sum()))
        # exp's result and the pressure's alone went through the hooks.
        now = ravenstore.explain()
        self.assertEqual(now.saved.tensors - before.saved.tensors, 1 + 28)

    def test_buffers_of_modules_stay(self):
        def scene():
            norm = torch.nn.BatchNorm1d(1024)
            leaf = random(512, 1024, grad=True)
            return [leaf, *norm.parameters()], lambda: norm(leaf.sin()).square().sum()

        self.assertSame(scene)

    def test_recurrent_and_attention_and_convolution(self):
        def attention():
            leaf = random(4, 8, 256, 64, grad=True)
            attend = torch.nn.functional.scaled_dot_product_attention
            return [leaf], lambda: attend(leaf.sin(), leaf.cos(), leaf.exp(), is_causal=True).sum()

        def convolution():
            layer = torch.nn.Conv2d(8, 8, 3, padding=1)
            leaf = random(8, 8, 64, 64, grad=True)
            return [leaf, *layer.parameters()], lambda: layer(layer(leaf.sin()).relu()).sum()

        def recurrent():
            layer = torch.nn.LSTM(64, 128)
            leaf = random(
                8, 64, 64, grad=True
            )  # it takes scratch for each step, some PyTorches more

            def function():
                output, _ = layer(leaf.sin())
                return output.sum()

            return [leaf, *layer.parameters()], function

        for scene in (attention, convolution, recurrent):
            with self.subTest(scene.__name__):
                self.assertSame(scene, min_bytes="64KiB")


if __name__ == "__main__":
    xml_main.main()
