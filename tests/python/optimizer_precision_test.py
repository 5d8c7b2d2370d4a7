"""offload_optimizer with float32 states, master weights and stochastic rounding of bfloat16:
the bits of a plain loop that does the same."""

import copy
import gc

import harness
import torch
import xml_main
from ravenstore._precision import MASTER, Precision, joined, nearest, rest_of
from ravenstore.optimizer import offload_optimizer

STEPS = 4
WAYS = ({"foreach": False}, {"foreach": True}, {"fused": True})


def weights():
    """Some larger than a chunk, some tiny, some odd; one is float32."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(700, 1001), (501,), (), (7, 5, 3, 3), (600, 500), (31,)]
    made = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    made[3] = made[3].to(memory_format=torch.channels_last)
    made.append(torch.randn(40, 50, generator=generator))
    return [torch.nn.Parameter(p) for p in made]


def loss_of(params, step):
    generator = torch.Generator().manual_seed(100 + step)
    factors = [torch.randn(p.shape, generator=generator) for p in params]
    return sum((p * f.to(p.dtype)).sum() for p, f in zip(params, factors, strict=True))


class Plain:
    """A loop with float32 copies of the weights, as one writes it by hand."""

    def __init__(self, params, rounded, keeps, make):
        self.params = params
        self.rounded = rounded
        self.keeps = keeps
        self.copies = [torch.nn.Parameter(p.detach().float()) for p in params]
        self.opt = make(self.copies)

    def step(self, step):
        for p, own in zip(self.params, self.copies, strict=True):
            if not self.keeps:
                own.data.copy_(p.detach())
            own.grad = p.grad.float()
        self.opt.step()
        for number, (p, own) in enumerate(zip(self.params, self.copies, strict=True)):
            value = own.detach()
            if p.dtype == torch.bfloat16:
                value = self.rounded(value, step, number)
            p.data.copy_(value)
            p.grad = None


def to_nearest(value, _step, _number):
    return nearest(value)


def stochastic(seed):
    """As Precision's, on all of a parameter."""
    precision = Precision(True, rounding="stochastic", seed=seed)

    def rounded(value, step, number):
        made = torch.empty_like(value, dtype=torch.bfloat16)
        precision.lower(value, made, {}, None, (step, number, 0))
        return made

    return rounded


def adamw(params, **options):
    return torch.optim.AdamW(params, lr=1e-2, **options)


class PrecisionTest(harness.StoreCase):
    def setUp(self):
        self.store = self.enterContext(self.connect(device_budget="4MiB"))

    def offloaded(self, params, make=adamw, chunk=512 << 10, **options):
        self.addCleanup(gc.collect)
        return offload_optimizer(make(params), self.store, chunk=chunk, **options)

    def assertSame(self, plain, moved, words=""):
        for i, (a, b) in enumerate(zip(plain, moved, strict=True)):
            self.assertTrue(torch.equal(a, b), f"{i} {words}")

    def compare(self, rounded, keeps, make=adamw, first=0, **options):
        """Trains by hand and offloaded; both afterwards."""
        params = weights()
        plain = Plain(weights(), rounded, keeps, make)
        opt = self.offloaded(params, make, **options)
        for step in range(first, first + STEPS):
            for own in (plain.params, params):
                loss_of(own, step).backward()
            plain.step(step)
            opt.step()
            opt.zero_grad()
            self.assertSame(plain.params, params, f"step {step}")
        return plain, params, opt

    def test_master_weights_are_those_of_a_loop_with_copies(self):
        for in_backward, way in zip((False, True, "auto"), WAYS, strict=True):
            with self.subTest(in_backward=in_backward, **way):
                make = lambda params: adamw(params, **way)  # noqa: B023, E731
                options = {"master_weights": True, "in_backward": in_backward}
                plain, params, opt = self.compare(to_nearest, True, make, **options)
                saved = opt.state_dict()["state"]
                for number, (p, own) in enumerate(zip(params, plain.copies, strict=True)):
                    state, its = saved[number], plain.opt.state[own]
                    if p.dtype == torch.bfloat16:
                        self.assertTrue(torch.equal(state[MASTER], own), number)
                    for name in ("exp_avg", "exp_avg_sq"):
                        self.assertTrue(torch.equal(state[name], its[name]), (number, name))
                del opt

    def test_states_in_float32_alone(self):
        self.compare(to_nearest, False, float32_states=True)
        sgd = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)  # noqa: E731
        self.compare(to_nearest, False, sgd, float32_states=True, in_backward=True)

    def test_masters_take_two_bytes(self):
        sizes = []
        for options in ({"float32_states": True}, {"master_weights": True}):
            *_, opt = self.compare(to_nearest, "master_weights" in options, **options)
            sizes.append(sum(chunk.size for chunk in opt._ravenstore._chunks))
            del opt
        count = sum(p.numel() for p in weights() if p.dtype == torch.bfloat16)
        self.assertAlmostEqual((sizes[1] - sizes[0]) / count, 2.0, delta=0.3)

    def test_stochastic_rounding_is_a_function_of_seed_step_parameter_and_element(self):
        options = {"float32_states": True, "rounding": "stochastic", "seed": 3}
        _, params, opt = self.compare(stochastic(3), False, **options)
        del opt
        # Other chunks, the same bits; another seed, others.
        _, others, opt = self.compare(stochastic(3), False, chunk=200 << 10, **options)
        self.assertSame(params, others)
        del opt
        _, others, _ = self.compare(stochastic(4), False, **{**options, "seed": 4})
        self.assertFalse(torch.equal(params[0], others[0]))

    def test_stochastic_rounding_goes_to_a_neighbour_and_is_right_on_average(self):
        value = 1.0 + torch.arange(1 << 16) / (1 << 24)  # between two neighbours of bfloat16
        precision = Precision(True, rounding="stochastic", seed=1)
        made = torch.empty_like(value, dtype=torch.bfloat16)
        total = torch.zeros(())
        for step in range(64):
            precision.lower(value, made, {}, None, (step, 0, 0))
            self.assertEqual(set(made.float().tolist()), {1.0, 1.0 + 2**-7})
            total += made.float().mean()
        # The mean of 2^22 draws: five standard deviations.
        self.assertAlmostEqual((total / 64).item(), value.mean().item(), delta=5 * 2**-7 / 2**12)

    def test_the_rest_and_the_weight_give_the_master_for_every_pattern(self):
        generator = torch.Generator().manual_seed(0)
        bits = torch.randint(-(2**31), 2**31, (1 << 20,), generator=generator).to(torch.int32)
        low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
        upper = torch.arange(-(2**15), 2**15, 7, dtype=torch.int32) << 16
        bits = torch.cat([bits, (upper[:, None] | low).reshape(-1)])
        masters = bits.view(torch.float32)
        # Those that round to infinity do not come back, as with two copies they would.
        kept = masters.isfinite() & nearest(masters).isfinite()
        masters = masters[kept]
        again = joined(nearest(masters), rest_of(masters))
        self.assertTrue(torch.equal(again.view(torch.int32), masters.view(torch.int32)))
        tie = (masters.view(torch.int32) & 0xFFFF) == 0x8000
        self.assertTrue(torch.equal(nearest(masters)[~tie], masters.bfloat16()[~tie]))
        self.assertTrue((nearest(masters)[tie].abs().float() > masters[tie].abs()).all())
        odd = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0])
        self.assertTrue(torch.equal(nearest(odd)[:2].float(), odd[:2]))
        self.assertTrue(joined(nearest(odd), rest_of(odd))[2].isnan())

    def test_a_weight_that_is_set_is_its_own_master(self):
        for write in (
            lambda p: p.zero_(),
            lambda p: p.clamp_(min=0),
            lambda p: p.copy_(torch.full_like(p, 0.5)),
            lambda p: p.data.mul_(p.data > 0),  # changes no version
        ):
            params = weights()
            opt = self.offloaded(params, master_weights=True)
            for step in range(STEPS):
                loss_of(params, step).backward()
                opt.step()
                opt.zero_grad()
                with torch.no_grad():
                    for p in params:
                        write(p)
            before = [p.detach().float() for p in params]
            loss_of(params, STEPS).backward()
            opt.step()
            for p, old in zip(params, before, strict=True):
                self.assertTrue(p.isfinite().all())
                self.assertLess((p.float() - old).abs().max(), 0.1)
            for state in copy.deepcopy(opt.state_dict())["state"].values():
                self.assertTrue(state.get(MASTER, torch.zeros(1)).isfinite().all())
            del opt
            gc.collect()

    def test_stochastic_rounding_resumes_after_steps_without_gradients(self):
        options = {"float32_states": True, "rounding": "stochastic", "seed": 5}
        params = weights()
        opt = self.offloaded(params, **options)
        for step in range(3):
            if step != 1:
                loss_of(params, step).backward()
            opt.step()
            opt.zero_grad()
        again = [torch.nn.Parameter(p.detach().clone()) for p in params]
        other = self.offloaded(again, **options)
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
        for own, its in ((params, opt), (again, other)):
            loss_of(own, 3).backward()
            its.step()
        self.assertSame(params, again)

    def test_resume(self):
        for options in (
            {"master_weights": True},
            {"float32_states": True, "rounding": "stochastic", "seed": 9},
        ):
            with self.subTest(**options):
                rounded = stochastic(9) if "seed" in options else to_nearest
                _, params, opt = self.compare(rounded, "seed" not in options, **options)
                saved = copy.deepcopy(opt.state_dict())
                again = [torch.nn.Parameter(p.detach().clone()) for p in params]
                other = self.offloaded(again, **options)
                other.load_state_dict(saved)
                for step in range(STEPS, STEPS + 3):
                    for own, its in ((params, opt), (again, other)):
                        loss_of(own, step).backward()
                        its.step()
                        its.zero_grad()
                    self.assertSame(params, again, f"step {step}")
                del opt, other

    def test_checkpoints_of_and_for_the_plain_optimizer(self):
        params = weights()
        plain = adamw(params)
        loss_of(params, 0).backward()
        plain.step()
        plain.zero_grad()
        again = [torch.nn.Parameter(p.detach().clone()) for p in params]
        opt = self.offloaded(again, master_weights=True)
        opt.load_state_dict(plain.state_dict())
        state = opt.state_dict()["state"][0]
        self.assertEqual(state["exp_avg"].dtype, torch.float32)
        self.assertTrue(torch.equal(state["exp_avg"], plain.state[params[0]]["exp_avg"].float()))
        self.assertTrue(torch.equal(state[MASTER], params[0].float()))
        # PyTorch gives states the weights' type, and the plain step ignores the master.
        plain.load_state_dict(opt.state_dict())
        self.assertEqual(plain.state[params[0]]["exp_avg"].dtype, torch.bfloat16)
        loss_of(params, 1).backward()
        plain.step()

    def test_an_optimizer_that_has_stepped_goes_on_in_float32(self):
        params = weights()
        plain = adamw(params)
        loss_of(params, 0).backward()
        plain.step()
        before = plain.state[params[0]]["exp_avg"].float()
        plain.zero_grad()
        opt = offload_optimizer(plain, self.store, chunk=512 << 10, master_weights=True)
        self.assertTrue(torch.equal(opt.state[params[0]]["exp_avg"], before))
        loss_of(params, 1).backward()
        opt.step()
        self.assertEqual(opt.state[params[0]]["exp_avg"].dtype, torch.float32)

    def test_what_makes_no_sense_is_refused(self):
        full = [torch.nn.Parameter(torch.ones(3))]
        refused = (
            (weights(), {"rounding": "up"}, '"nearest" or "stochastic"'),
            (weights(), {"rounding": "stochastic"}, "pass float32_states=True"),
            (
                weights(),
                {"rounding": "stochastic", "master_weights": True},
                "pass one of the two",
            ),
            (full, {"master_weights": True}, "for bfloat16 weights, and there are none"),
        )
        for params, options, words in refused:
            with self.assertRaisesRegex(ValueError, words):
                self.offloaded(params, **options)


if __name__ == "__main__":
    xml_main.main()
