"""offload_optimizer(elementwise=...) with optimizers of other classes: the plain bits, or a refusal
that says what its step does which chunks would change."""

import gc

import harness
import torch
import xml_main
from ravenstore.optimizer import offload_optimizer

CHUNK = 256 << 10
STEPS = 4


class Lion(torch.optim.Optimizer):
    """As people have it in their repositories (Chen et al. 2023)."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                first, second = group["betas"]
                average = state["exp_avg"]
                update = (average * first + p.grad * (1 - first)).sign_()
                p.sub_(update, alpha=group["lr"])
                average.mul_(second).add_(p.grad, alpha=1 - second)


class CountsInGroup(Lion):
    """Keeps its number of steps in the group, as apex's fused ones do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        super().step(closure)


class CountsInItself(Lion):
    """Keeps its number of steps in an attribute."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        super().step(closure)


class Together(Lion):
    """Scales by a norm over all parameters."""

    @torch.no_grad()
    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        total = torch.nn.utils.get_total_norm([g for g in grads if g is not None])
        for group in self.param_groups:
            group["lr"] = 1e-3 / float(total)
        try:
            super().step(closure)
        finally:
            for group in self.param_groups:
                group["lr"] = 1e-3


class Eight(torch.Tensor):
    """As torchao has for states in 8 bits."""


class InEightBits(Lion):
    """Its states are a tensor subclass, of large parameters alone."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p] and p.numel() >= 4096:
                    self.state[p]["exp_avg"] = torch.zeros_like(p).as_subclass(Eight)
        super().step(closure)


ELEMENTWISE = {
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2, initial_accumulator_value=0.1),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
    "lion": Lion,
    "a subclass of AdamW": type("Mine", (torch.optim.AdamW,), {}),
}


def parameters(matrices=False):
    """Some larger than a chunk, some tiny."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(300, 1001), (500, 120), (40, 50)]
    if not matrices:
        shapes += [(501,), (), (7, 5, 3, 3)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def backward(params, step):
    generator = torch.Generator().manual_seed(100 + step)
    factors = [torch.randn(p.shape, generator=generator) for p in params]
    sum((p * f).sum() for p, f in zip(params, factors, strict=True)).backward()


class OthersTest(harness.StoreCase):
    def setUp(self):
        self.store = self.enterContext(self.connect(device_budget="8MiB"))
        self.addCleanup(gc.collect)

    def compare(self, make, matrices=False, **options):
        """Trains both; what the store moved."""
        plain, moved = parameters(matrices), parameters(matrices)
        a, b = make(plain), make(moved)
        offload_optimizer(b, self.store, chunk=CHUNK, **options)
        for step in range(STEPS):
            for params, opt in ((plain, a), (moved, b)):
                backward(params, step)
                opt.step()
                opt.zero_grad()
            for i, (p, q) in enumerate(zip(plain, moved, strict=True)):
                self.assertTrue(torch.equal(p, q), f"parameter {i} after step {step}")
        mine, its = b.state_dict()["state"], a.state_dict()["state"]
        for number, state in its.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self.assertTrue(torch.equal(mine[number][key], value), (number, key))
        return b

    def test_elementwise_ones_give_the_plain_bits_in_chunks(self):
        for name, make in ELEMENTWISE.items():
            for in_backward in (False, True):
                with self.subTest(name=name, in_backward=in_backward):
                    opt = self.compare(make, elementwise=True, in_backward=in_backward)
                    pieces = [piece for c in opt._ravenstore._chunks for piece in c.pieces]
                    self.assertGreater(len(pieces), len(parameters()))
                    del opt, pieces
                    gc.collect()

    def test_whole_parameters(self):
        muon = getattr(torch.optim, "Muon", None)
        makers = [(torch.optim.Adafactor, False), (Lion, False)]
        makers += [(muon, True)] if muon is not None else []
        for make, matrices in makers:
            with self.subTest(make=make.__name__):
                try:
                    opt = self.compare(make, matrices, elementwise=False)
                except TypeError as error:
                    # Of factored states there is nothing to move.
                    self.assertIs(make, torch.optim.Adafactor)
                    self.assertIn("nothing to move", str(error))
                    continue
                pieces = [piece for c in opt._ravenstore._chunks for piece in c.pieces]
                self.assertTrue(all(piece.whole for piece in pieces))
                del opt, pieces
                gc.collect()

    def test_with_a_store_of_its_own_whole_parameters_have_room(self):
        import os
        import unittest.mock

        with unittest.mock.patch.dict(os.environ, RAVENSTORE_SOCKET=self.socket):
            params = [torch.nn.Parameter(torch.ones(1000, 500))]
            opt = offload_optimizer(Lion(params), chunk=CHUNK, elementwise=False)
            backward(params, 0)
            opt.step()
            self.assertGreaterEqual(opt._ravenstore.store.stats().device_budget, 4 * 2_000_000)

    def refused(self, make, words, elementwise=True):
        params = parameters()
        opt = make(params)
        before = [p.detach().clone() for p in params]
        with self.assertRaisesRegex(TypeError, words):
            offload_optimizer(opt, self.store, chunk=CHUNK, elementwise=elementwise)
        self.assertTrue(all(map(torch.equal, params, before)))
        backward(params, 0)
        if not isinstance(opt, torch.optim.LBFGS):
            opt.step()  # it is as it was

    def test_what_is_not_so_is_found_out_before_anything_moves(self):
        self.refused(Lion, "say elementwise=True if it updates each element", None)
        for elementwise in (True, False):
            self.refused(CountsInGroup, "changes the group's count", elementwise)
            self.refused(CountsInItself, "changes the optimizer's count", elementwise)
            self.refused(Together, "over some of the parameters is not that step", elementwise)
            self.refused(torch.optim.LBFGS, "its step failed on a trial", elementwise)
            self.refused(InEightBits, "state exp_avg is a .*Eight, a tensor subclass", elementwise)
        self.refused(torch.optim.Adafactor, "Adafactor")
        sgd = type("Mine", (torch.optim.SGD,), {})
        self.refused(sgd, "nothing to move")

    def test_states_of_a_subclass_that_are_there_already_are_refused(self):
        params = parameters()
        opt = InEightBits(params)
        backward(params, 0)
        opt.step()
        with self.assertRaisesRegex(TypeError, "leave this optimizer as it is"):
            offload_optimizer(opt, self.store, chunk=CHUNK, elementwise=False)


if __name__ == "__main__":
    xml_main.main()
