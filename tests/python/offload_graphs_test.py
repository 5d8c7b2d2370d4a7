"""Whatever a program does with a graph whose tensors are in the store, it is as without one."""

import contextlib
import gc

import harness  # noqa: F401 - the package's path
import offload_harness as offload
import ravenstore
import torch
import xml_main
from offload_harness import MIB, OffloadCase, bits, offloading, press, random


def layers(count=4):
    torch.manual_seed(0)
    blocks = [(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(count)]
    return torch.nn.Sequential(*[torch.nn.Sequential(*block) for block in blocks])


class GraphCase(OffloadCase):
    def both(self, run):
        """`run(scope)`, with a scope maker that does nothing and with the one under test; the bytes
        that came back."""
        plain = run(contextlib.nullcontext)
        before = offload.moved_back()
        ours = run(offloading)
        self.assertEqualBits(ours, plain)
        return offload.moved_back() - before

    def push_out(self):
        """What was saved before leaves the device."""
        with offloading():
            _, more = press()
        more.backward()


class BackwardTest(GraphCase):
    def test_two_backward_passes_over_a_retained_graph(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                loss = leaf.sin().exp().square().sum()
            if scope is offloading:
                self.push_out()
            loss.backward(retain_graph=True)
            if scope is offloading:
                self.push_out()
            loss.backward()
            return offload.results(loss, [leaf])

        self.assertGreaterEqual(self.both(run), 2 * 2 * MIB)

    def test_double_backward(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                value = leaf.sin()
                loss = (value * value.exp()).sum()
                if scope is offloading:
                    self.push_out()
                (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
                second = (first * first).sum()
            second.backward()
            return [*offload.results(second, [leaf]), bits(first)]

        self.assertGreater(self.both(run), 0)

    def test_accumulation_over_scopes(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            losses = []
            for number in range(3):
                with scope():
                    losses.append((leaf.sin() * number).exp().sum())
                if scope is offloading:
                    self.push_out()
                losses[-1].backward()
            return [bits(loss) for loss in losses] + [bits(leaf.grad)]

        self.assertGreater(self.both(run), 0)

    def test_a_scope_that_is_open_through_the_backward_pass(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                loss = leaf.sin().exp().square().sum()
                if scope is offloading:
                    self.push_out()
                loss.backward()
            return offload.results(loss, [leaf])

        self.assertGreater(self.both(run), 0)

    def test_nested_scopes(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                value = leaf.sin()
                with scope():
                    value = (value * value.exp()).square()
                loss = value.sin().sum()
            if scope is offloading:
                self.push_out()
            loss.backward()
            return offload.results(loss, [leaf])

        self.assertGreater(self.both(run), 0)

    def test_other_hooks_inside_and_outside_of_a_scope(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            with torch.autograd.graph.save_on_cpu(), scope():
                with torch.autograd.graph.save_on_cpu():
                    value = leaf.sin().exp()
                loss = value.square().sum()
            loss.backward()
            return offload.results(loss, [leaf])

        self.both(run)

    def test_no_grad_and_inference_mode_save_nothing(self):
        leaf = random(512, 1024, grad=True)
        with offloading():
            before = ravenstore.explain().saved
            with torch.no_grad():
                plain = leaf.sin().exp()
            with torch.inference_mode():
                inferred = leaf.sin().exp()
            self.assertEqual(ravenstore.explain().saved, before)
        self.assertTrue(torch.equal(plain, inferred))

    def test_what_inference_mode_made_can_be_saved(self):
        def run(scope):
            with torch.inference_mode():
                fixed = random(512, 1024).exp()
            leaf = random(512, 1024, seed=2, grad=True)
            with scope():
                loss = (leaf.sin() * fixed.clone()).sum()
            if scope is offloading:
                self.push_out()
            loss.backward()
            return offload.results(loss, [leaf])

        self.assertGreater(self.both(run), 0)

    def test_functorch_says_in_pytorchs_words_that_it_takes_no_hooks(self):
        def loss(value):
            return value.sin().exp().sum()

        value = random(512, 1024)
        with offloading(), self.assertRaisesRegex(RuntimeError, "saved tensor hooks"):
            torch.func.grad(loss)(value)
        # The scope is gone, and so is the error; vmap alone takes them.
        plain = torch.func.grad(loss)(value)
        leaf = value.clone().requires_grad_()
        loss(leaf).backward()
        self.assertTrue(torch.equal(leaf.grad, plain))

    def test_vmap_inside_of_a_scope(self):
        def run(scope):
            leaf = random(8, 256, 256, grad=True)
            with scope():
                loss = torch.vmap(lambda one: (one @ one.sin()).exp().mean())(leaf / 30).sum()
            loss.backward()
            return offload.results(loss, [leaf])

        self.both(run)


class InPlaceTest(GraphCase):
    def error_of(self, change, scope, *, retain=False):
        leaf = random(512, 1024, grad=True)
        with scope():
            value = leaf.exp()
            loss = value.sum()
        change(value)
        try:
            loss.backward(retain_graph=retain)
        except RuntimeError as error:
            return str(error)
        return None

    def test_a_change_after_the_save_is_pytorchs_own_error(self):
        for name, change in {
            "the tensor": lambda value: value.detach().add_(1),
            "a view": lambda value: value.detach()[3].zero_(),
            "without gradients": lambda value: value.data.add_(1),
        }.items():
            with self.subTest(name):
                plain = self.error_of(change, contextlib.nullcontext)
                self.assertEqual(self.error_of(change, offloading), plain)
                self.assertEqual(plain is None, name == "without gradients")

    def test_one_of_a_kept_tensor_as_well(self):
        def error(scope):
            leaf = random(16, 16, grad=True)
            with scope():
                value = leaf.exp()
                loss = value.sum()
            value.detach().zero_()
            with self.assertRaises(RuntimeError) as caught:
                loss.backward()
            return str(caught.exception)

        self.assertEqual(error(offloading), error(contextlib.nullcontext))

    def test_an_input_that_is_changed_names_its_producer(self):
        def error(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                value = leaf.exp()
                loss = (value.sin() * 2).sum()
            value.detach().zero_()
            with self.assertRaises(RuntimeError) as caught:
                loss.backward()
            return str(caught.exception)

        words = error(contextlib.nullcontext)
        self.assertRegex(words, r"which is output 0 of Exp(Backward0)?, is at version 1")
        self.assertEqual(error(offloading), words)

    def test_a_change_before_the_save_is_no_error(self):
        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                value = leaf.sin()
                value.add_(1).mul_(2)
                loss = value.exp().sum()
                value.detach()  # a view that changes nothing
            if scope is offloading:
                self.push_out()
            loss.backward()
            return offload.results(loss, [leaf])

        self.assertGreater(self.both(run), 0)

    def test_saved_before_and_after_a_change(self):
        """relu_ saves its result; the value that was saved before it is wrong from then on."""

        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                value = leaf.clone()
                first = value.sin()  # saves the value as it is now
                value = value.relu()
                value.mul_(2)
                loss = (first * value).sum()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()
            return []

        self.both(run)

    def test_what_a_backward_function_writes_into_its_saved_tensor_is_seen(self):
        class Writing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                ctx.save_for_backward(value)
                return value * 2

            @staticmethod
            def backward(ctx, gradient):
                (value,) = ctx.saved_tensors
                value.mul_(3)
                return gradient * value

        def run(scope):
            leaf = random(512, 1024, grad=True)
            with scope():
                loss = Writing.apply(leaf.exp().clone()).sum()
            if scope is offloading:
                self.push_out()
            loss.backward(retain_graph=True)
            gradient = bits(leaf.grad)
            with self.assertRaisesRegex(RuntimeError, "is at version 1; expected version 0"):
                loss.backward()
            return [gradient]

        self.both(run)


class ErrorTest(GraphCase):
    def step(self, model, scope, fail=None):
        value = random(512, 512)
        with scope():
            loss = value
            for number, layer in enumerate(model):
                loss = layer(loss)
                if fail == number:
                    raise ValueError("forward")
            loss = loss.square().mean()
        loss.backward()
        return [bits(loss)] + [bits(parameter.grad) for parameter in model.parameters()]

    def test_a_step_follows_an_exception_in_forward(self):
        plain = self.step(layers(), contextlib.nullcontext)
        for fail in (0, 3):
            with self.assertRaisesRegex(ValueError, "forward"):
                self.step(layers(), offloading, fail)
        self.assertEqual(offload.parked(), 0)
        self.assertEqualBits(self.step(layers(), offloading), plain)

    def test_a_step_follows_an_exception_in_backward(self):
        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                return value * 1

            @staticmethod
            def backward(ctx, gradient):
                raise ValueError("backward")

        model = layers()
        plain = self.step(layers(), contextlib.nullcontext)
        with offloading():
            loss = model(Failing.apply(random(512, 512, grad=True)).sin()).sum()
        with self.assertRaisesRegex(ValueError, "backward"):
            loss.backward()
        del loss
        self.assertEqual(offload.parked(), 0)
        model.zero_grad()
        self.assertEqualBits(self.step(model, offloading), plain)

    def test_a_graph_that_is_dropped_unused_gives_its_memory_back(self):
        leaf = random(512, 1024, grad=True)
        for _ in range(20):
            with offloading():
                loss = leaf.sin().exp().square().sum()
            self.push_out()
            del loss
            self.assertEqual(offload.parked(), 0)

    def test_out_of_memory_that_is_caught_can_be_retried(self):
        if offload.WAY != "allocator":
            self.skipTest("the budget is that of saved tensors alone")
        leaf = random(512, 1024, grad=True)
        with offloading():
            loss = leaf.sin().exp().sum()
            words = "out of memory.*device_budget is too small for this by at least"
            with self.assertRaisesRegex(torch.OutOfMemoryError, words):
                torch.empty(40 * MIB, dtype=torch.uint8)
        loss.backward()
        self.assertEqual(torch.empty(8 * MIB, dtype=torch.uint8).numel(), 8 * MIB)


class OutlivingTest(GraphCase):
    def test_tensors_that_outlive_the_scope_and_the_graph(self):
        leaf = random(512, 1024, grad=True)
        with offloading():
            value = leaf.exp()
            loss = value.sin().sum()
        want = leaf.detach().exp()
        self.push_out()
        loss.backward()
        del loss
        gc.collect()
        self.assertTrue(torch.equal(value.detach(), want))

    def test_a_saved_tensor_that_backward_hands_out_outlives_the_graph(self):
        seen = []

        class Showing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                ctx.save_for_backward(value)
                return value * 2

            @staticmethod
            def backward(ctx, gradient):
                seen.append(ctx.saved_tensors[0])
                return gradient

        leaf = random(512, 1024, grad=True)
        with offloading():
            loss = Showing.apply(leaf.exp()).sum()
        self.push_out()
        loss.backward()
        del loss
        self.push_out()
        self.assertTrue(torch.equal(seen[0].detach(), leaf.detach().exp()))
        # It is a tensor like any other: it can be saved, and changed.
        with offloading():
            again = (seen[0].detach().requires_grad_() * 1).sin().sum()
        again.backward()
        del again
        seen.clear()


if __name__ == "__main__":
    xml_main.main()
