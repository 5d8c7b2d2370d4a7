"""offload_optimizer(in_backward="auto"): updates in the backward pass where nothing uses gradients
between it and the step, after the pass elsewhere, the plain bits in either."""

import gc

import harness
import torch
import xml_main
from ravenstore.optimizer import offload_optimizer

CHUNK = 512 << 10


def model(dtype=torch.float32):
    torch.manual_seed(5)
    layers = (torch.nn.Linear(300, 400), torch.nn.Tanh(), torch.nn.Linear(400, 300))
    return torch.nn.Sequential(*layers, torch.nn.Linear(300, 7)).to(dtype)


def batch(step, rows=16):
    return torch.randn(rows, 300, generator=torch.Generator().manual_seed(step))


def backward(net, step):
    (net(batch(step)).square().mean() * 3).backward()


def adamw(net, **options):
    return torch.optim.AdamW(net.named_parameters(), lr=1e-2, **options)


class AutoTest(harness.StoreCase):
    def setUp(self):
        self.store = self.enterContext(self.connect(device_budget="4MiB"))

    def offloaded(self, net, **options):
        opt = adamw(net, **options)
        return offload_optimizer(opt, self.store, in_backward="auto", chunk=CHUNK)

    def stepped(self, net):
        """Offloaded, after two steps. The last checkpoint is of the first."""
        opt = self.offloaded(net)
        for step in range(2):
            opt.zero_grad()
            backward(net, step)
            opt.step()
            if step == 0:
                opt.state_dict()
        return opt

    def train_both(self, loop, steps=4):
        """`loop(net, opt, step)` with a plain and an offloaded optimizer; the offloaded one's
        states, after their parameters were compared."""
        plain, moved = model(), model()
        a, b = adamw(plain), self.offloaded(moved)
        for step in range(steps):
            loop(plain, a, step)
            loop(moved, b, step)
            for (name, p), q in zip(plain.named_parameters(), moved.parameters(), strict=True):
                self.assertTrue(torch.equal(p, q), f"{name} after step {step}")
        return b._ravenstore

    def assertAfterThePass(self, states, words):
        self.assertFalse(states.in_backward)
        self.assertIn(words, states.why)
        self.assertFalse(states._hooked)

    def test_a_plain_loop_updates_in_the_backward_pass_from_the_second_step_on(self):
        freed = []

        def loop(net, opt, step):
            opt.zero_grad()
            backward(net, step)
            freed.append(all(type(p.grad) is not torch.Tensor for p in net.parameters()))
            opt.step()

        states = self.train_both(loop)
        self.assertTrue(states.in_backward)
        self.assertIn("nothing used a gradient", states.why)
        self.assertEqual(freed[1::2], [True] * 4)

    def test_what_reads_no_value_is_no_use(self):
        def loop(net, opt, step):
            backward(net, step)
            for p in net.parameters():
                self.assertEqual((p.grad.shape, p.grad.dtype), (p.shape, p.dtype))
                self.assertEqual((p.grad.device, p.grad.numel()), (p.device, p.numel()))
                self.assertFalse(p.grad.is_sparse or p.grad.requires_grad)
            opt.step()
            opt.zero_grad()

        self.assertTrue(self.train_both(loop, 1).in_backward)

    def test_every_use_between_pass_and_step_is_seen(self):
        clip = torch.nn.utils
        uses = {
            "clip_grad_norm_": lambda net: clip.clip_grad_norm_(net.parameters(), 0.1),
            "clip_grad_norm_, one by one": lambda net: clip.clip_grad_norm_(
                net.parameters(), 0.1, foreach=False
            ),
            "clip_grad_value_": lambda net: clip.clip_grad_value_(net.parameters(), 0.001),
            "a norm that is logged": lambda net: net[0].weight.grad.norm().item(),
            "in place": lambda net: net[2].bias.grad.mul_(0.5),
            "by data": lambda net: net[2].bias.grad.data.add_(0.5),
            "a list": lambda net: torch._foreach_mul_([p.grad for p in net.parameters()], 2.0),
            "as an out": lambda net: torch.mul(torch.ones(7), 2.0, out=net[3].bias.grad),
            "set": lambda net: setattr(net[3].bias, "grad", torch.ones(7)),
            "removed": lambda net: setattr(net[3].bias, "grad", None),
            "numpy": lambda net: net[3].bias.grad.numpy(),
            "by address": lambda net: net[3].bias.grad.data_ptr(),
            "printed": lambda net: repr(net[3].bias.grad),
        }
        for name, use in uses.items():
            with self.subTest(use=name):

                def loop(net, opt, step, use=use):
                    opt.zero_grad()
                    backward(net, step)
                    use(net)
                    opt.step()

                self.assertAfterThePass(self.train_both(loop, 3), "gradients are used between")
                gc.collect()

    def test_what_a_use_gives_is_a_plain_tensor(self):
        net = model()
        opt = self.offloaded(net)
        backward(net, 0)
        grad = net[0].weight.grad
        for made in (grad.norm(), grad + 1, grad.view(-1), *torch._foreach_norm([grad])):
            self.assertIs(type(made), torch.Tensor)
        opt.step()
        self.assertIs(type(net[0].weight.grad), torch.Tensor)

    def test_hooks_of_the_step_and_of_the_gradient_are_uses(self):
        def by_step(net, opt):
            def scale(*_):
                net[0].bias.grad.mul_(0.1)

            opt.register_step_pre_hook(scale)

        def by_gradient(net, _):
            def scale(p):
                p.grad.mul_(0.1)

            net[0].bias.register_post_accumulate_grad_hook(scale)

        for register in (by_step, by_gradient):
            known = set()

            def loop(net, opt, step, register=register, known=known):
                if net not in known:
                    known.add(net)
                    register(net, opt)
                opt.zero_grad()
                backward(net, step)
                opt.step()

            self.assertAfterThePass(self.train_both(loop, 3), "gradients are used between")

    def test_accumulation(self):
        def loop(net, opt, step):
            for part in range(3):
                backward(net, 3 * step + part)
            opt.step()
            opt.zero_grad()

        self.assertAfterThePass(self.train_both(loop), "a second backward pass added to them")

    def test_a_scaler(self):
        scalers = {}

        def loop(net, opt, step):
            scaler = scalers.setdefault(id(net), torch.amp.GradScaler("cpu"))
            opt.zero_grad()
            scaler.scale(net(batch(step)).square().mean()).backward()
            scaler.step(opt)
            scaler.update()

        self.assertAfterThePass(self.train_both(loop), "GradScaler")

    def test_gradients_set_by_hand(self):
        def loop(net, opt, _step):
            for p in net.parameters():
                p.grad = torch.full_like(p, 0.5)
            opt.step()
            opt.zero_grad()

        self.assertAfterThePass(self.train_both(loop), "set by hand")

    def test_a_step_without_gradients_decides_nothing(self):
        net = model()
        opt = self.offloaded(net)
        opt.step()
        self.assertEqual(opt._ravenstore.why, "the first step shows how")
        backward(net, 0)
        opt.step()
        self.assertTrue(opt._ravenstore.in_backward)

    def test_a_graph_of_the_backward_pass(self):
        net = model()
        opt = self.offloaded(net)
        loss = net(batch(0)).square().mean()
        with self.assertWarns(UserWarning):
            loss.backward(create_graph=True)
        opt.step()
        self.assertAfterThePass(opt._ravenstore, "create_graph=True")
        opt.zero_grad()

    def test_a_checkpoint_from_before_decides_again(self):
        net = model()
        opt = self.offloaded(net)
        backward(net, 0)
        opt.step()
        saved = opt.state_dict()
        other = self.offloaded(net)
        other.load_state_dict(saved)
        opt.zero_grad()
        del opt
        backward(net, 1)
        other.step()
        self.assertTrue(other._ravenstore.in_backward)

    def test_a_later_use_says_what_has_moved_and_the_way_back(self):
        words = (
            r'in_backward="auto" nothing used .* In step 3 these are updated already: .*0\.weight'
            r".* \(optimizer\.state_dict\(\): made after step 1\) and pass in_backward=False"
        )
        uses = (
            lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0),
            lambda net: net[0].weight.grad.norm(),
            lambda net: backward(net, 7),
        )
        for use in uses:
            net = model()
            opt = self.stepped(net)
            opt.zero_grad()
            backward(net, 2)
            before = [p.detach().clone() for p in net.parameters()]
            with self.assertRaisesRegex(RuntimeError, words):
                use(net)
            for p, q in zip(net.parameters(), before, strict=True):
                self.assertTrue(torch.equal(p, q))
            del opt

    def test_gradients_that_are_used_after_the_step_are_reported(self):
        uses = (
            lambda net, _: net[0].weight.grad.norm(),
            lambda net, _: backward(net, 7),  # without zero_grad()
            lambda net, _: torch.optim.SGD(net.parameters(), lr=0.1).step(),
        )
        for use in uses:
            net = model()
            opt = self.stepped(net)
            with self.assertRaisesRegex(RuntimeError, r"step 2 used the gradients up"):
                use(net, opt)
            opt.zero_grad()
            backward(net, 2)
            opt.step()
            del opt

    def test_a_backward_pass_without_a_step_is_reported(self):
        net = model()
        opt = self.stepped(net)
        opt.zero_grad()
        backward(net, 2)
        with self.assertRaisesRegex(
            RuntimeError, r"no optimizer\.step\(\) followed: .*in_backward=False"
        ):
            opt.zero_grad()

    def test_another_value_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'True, False or "auto"'):
            offload_optimizer(adamw(model()), self.store, in_backward="always")


if __name__ == "__main__":
    xml_main.main()
