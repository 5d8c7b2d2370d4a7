"""offload_optimizer: the same numbers as the plain optimizer, with the states away."""

import collections
import contextlib
import copy
import functools
import gc
import io
import os
import pickle
import tempfile
import traceback
import warnings
import weakref

import harness
import torch
import xml_main
from harness import MIB, daemon
from ravenstore import OutOfMemory, Store, TimedOut, Unavailable
from ravenstore.optimizer import StatesLost, offload_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

KINDS = {
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adam with weight decay and amsgrad": (
        torch.optim.Adam,
        {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": True},
    ),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2}),
    "sgd": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "sgd with nesterov": (
        torch.optim.SGD,
        {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
}
WAYS = {
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
CHUNK = 512 << 10


def parameters(dtype=torch.float32):
    """Some larger than a chunk, some tiny, some odd."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(700, 1001), (501,), (), (7, 5, 3, 3), (600, 500), (200,), (0, 4), (90, 1001), (31,)]
    params = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    params[3] = params[3].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(p) for p in params]


def gradients(params, step, scale=1.0):
    generator = torch.Generator().manual_seed(100 + step)
    for p in params:
        grad = torch.randn(p.shape, generator=generator, dtype=torch.float32) * scale
        p.grad = torch.empty_like(p).copy_(grad)


def loss_of(params, step):
    """A loss whose gradients are those of gradients()."""
    generator = torch.Generator().manual_seed(100 + step)
    weights = [torch.randn(p.shape, generator=generator, dtype=torch.float32) for p in params]
    return sum((p * w.to(p.dtype)).sum() for p, w in zip(params, weights, strict=True))


class OptimizerCase(harness.StoreCase):
    def setUp(self):
        self.store = self.enterContext(self.connect(device_budget="4MiB"))

    def offload(self, opt, **options):
        same = offload_optimizer(opt, options.pop("store", self.store), chunk=CHUNK, **options)
        self.assertIs(same, opt)
        return opt

    def pair(self, make, **options):
        """Equal parameters under a plain optimizer and under an offloaded one."""
        plain, moved = parameters(), parameters()
        return plain, make(plain), moved, self.offload(make(moved), **options)

    def assertSame(self, plain, moved):
        for i, (a, b) in enumerate(zip(plain, moved, strict=True)):
            self.assertTrue(torch.equal(a, b), f"parameter {i}")

    def run_both(self, plain, a, moved, b, steps, first=0):
        for step in range(first, first + steps):
            gradients(plain, step)
            gradients(moved, step)
            a.step()
            b.step()
        self.assertSame(plain, moved)

    def assertSameStates(self, plain, moved):
        """Two state_dicts."""
        self.assertEqual(plain["param_groups"], moved["param_groups"])
        self.assertEqual(sorted(plain["state"]), list(moved["state"]))
        for number, state in plain["state"].items():
            self.assertEqual(list(state), list(moved["state"][number]))
            for key, value in state.items():
                other = moved["state"][number][key]
                self.assertTrue(torch.equal(value, other), f"{key} of {number}")
                self.assertEqual(value.dtype, other.dtype)
                self.assertEqual(value.stride(), other.stride())


def adamw(params, **options):
    return torch.optim.AdamW(params, lr=1e-2, **options)


class EqualityTest(OptimizerCase):
    def test_every_kind_of_step_gives_the_plain_bits_with_the_states_away(self):
        for kind, (base, options) in KINDS.items():
            for way, flags in WAYS.items():
                with self.subTest(kind=kind, way=way):
                    make = lambda params: base(params, **options, **flags)  # noqa: B023, E731
                    plain, a, moved, b = self.pair(make)
                    out = self.store.stats().bytes_out
                    back = self.store.stats().bytes_in
                    for step in range(6):
                        gradients(plain, step)
                        gradients(moved, step)
                        a.step()
                        b.step()
                    self.assertSame(plain, moved)
                    self.assertSameStates(a.state_dict(), b.state_dict())
                    stats = self.store.stats()
                    self.assertGreater(stats.bytes_out - out, 3 * MIB)
                    self.assertGreater(stats.bytes_in - back, 3 * MIB)
                    self.assertGreater(stats.prefetches, 0)
                    del a, b
                    gc.collect()

    def test_low_precision_and_complex_parameters(self):
        for dtype in (torch.bfloat16, torch.float64, torch.complex64):
            for way, flags in WAYS.items():
                if dtype.is_complex and way == "fused":
                    continue
                with self.subTest(dtype=dtype, way=way):
                    plain, moved = parameters(dtype), parameters(dtype)
                    a = adamw(plain, **flags)
                    b = self.offload(adamw(moved, **flags))
                    self.run_both(plain, a, moved, b, 3)
                    self.assertSameStates(a.state_dict(), b.state_dict())

    def test_parameters_that_get_no_gradient_stay_and_so_do_their_states(self):
        plain, a, moved, b = self.pair(adamw)
        for step in range(6):
            for params, opt in ((plain, a), (moved, b)):
                gradients(params, step)
                for i in ((0, 4, 7), (2,), (1, 3, 5), range(9), (0, 1), (7,))[step]:
                    params[i].grad = None
                opt.step()
        self.assertSame(plain, moved)
        self.assertSameStates(a.state_dict(), b.state_dict())

    def test_states_that_are_not_in_use_take_no_place_on_the_device(self):
        _, _, moved, b = self.pair(adamw)
        gradients(moved, 0)
        b.step()

        def waits(steps):
            before = self.store.stats()
            for step in range(steps):
                for p in moved:
                    p.grad = None
                gradients(moved[1:4], step)  # of one chunk
                b.step()
            after = self.store.stats()
            return after.misses + after.late_hits - before.misses - before.late_hits

        self.assertGreater(waits(1), 0)
        self.assertEqual(waits(5), 0)

    def test_gradients_of_another_layout(self):
        plain, a, moved, b = self.pair(adamw)
        for step in range(3):
            for params, opt in ((plain, a), (moved, b)):
                gradients(params, step)
                params[0].grad = params[0].grad.t().contiguous().t()
                params[3].grad = params[3].grad.contiguous()
                opt.step()
        self.assertSame(plain, moved)

    def test_a_learning_rate_that_is_a_tensor(self):
        make = lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False)  # noqa: E731
        self.run_both(*self.pair(make), 3)

    def test_empty_parameters_alone_in_a_chunk(self):
        plain, moved = ([torch.nn.Parameter(torch.empty(0, 5))] for _ in range(2))
        a, b = adamw(plain), self.offload(adamw(moved))
        self.run_both(plain, a, moved, b, 3)

    def test_an_optimizer_that_has_stepped_before(self):
        plain, moved = parameters(), parameters()
        a, b = adamw(plain), adamw(moved)
        self.run_both(plain, a, moved, b, 3)
        self.offload(b)
        self.assertSameStates(a.state_dict(), b.state_dict())
        self.run_both(plain, a, moved, b, 3, first=3)


class TrainingLoopTest(OptimizerCase):
    def test_schedulers_made_before_and_after(self):
        for before in (True, False):
            with self.subTest(before=before), warnings.catch_warnings():
                warnings.simplefilter("error")  # "scheduler.step() before optimizer.step()"
                plain, moved = parameters(), parameters()
                a, b = adamw(plain), adamw(moved)
                make = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.3)
                schedulers = [make(a)]
                if before:
                    schedulers.append(make(b))
                self.offload(b)
                if not before:
                    schedulers.append(make(b))
                for step in range(5):
                    self.run_both(plain, a, moved, b, 1, first=step)
                    for scheduler in schedulers:
                        scheduler.step()
                self.assertEqual(a.param_groups[0]["lr"], b.param_groups[0]["lr"])
                self.assertEqual(*[scheduler.last_epoch for scheduler in schedulers])

    def test_step_hooks_run_once_a_step_and_may_change_gradients(self):
        plain, a, moved, b = self.pair(adamw)
        calls = []

        def double(opt, args, kwargs):
            opt.param_groups[0]["params"][0].grad.mul_(2)

        for opt in (a, b):
            opt.register_step_pre_hook(double)
            opt.register_step_pre_hook(lambda opt, *_: calls.append(("before", opt)))
            opt.register_step_post_hook(lambda opt, *_: calls.append(("after", opt)))
        everywhere = register_optimizer_step_post_hook(
            lambda opt, *_: calls.append(("global", opt))
        )
        self.addCleanup(everywhere.remove)
        self.run_both(plain, a, moved, b, 2)
        mine = [name for name, opt in calls if opt is b]
        self.assertEqual(mine, ["before", "after", "global"] * 2)

    def test_a_scaler_skips_the_step_of_an_infinite_gradient(self):
        for way, flags in WAYS.items():
            with self.subTest(way=way):
                plain, a, moved, b = self.pair(lambda params: adamw(params, **flags))  # noqa: B023
                scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in range(2)]
                for step in range(5):
                    for params, opt, scaler in zip((plain, moved), (a, b), scalers, strict=True):
                        gradients(params, step, scale=8.0)
                        if step in (0, 3):
                            params[4].grad[5, 5] = float("inf")
                        scaler.scale(torch.ones(()))
                        scaler.step(opt)
                        scaler.update()
                self.assertSame(plain, moved)
                self.assertSameStates(a.state_dict(), b.state_dict())
                self.assertEqual(scalers[0].get_scale(), scalers[1].get_scale())
                self.assertLess(scalers[1].get_scale(), 8.0)
                # Fused kernels write the unscaled gradients back.
                self.assertSame([p.grad for p in plain], [p.grad for p in moved])

    def test_clipped_gradients(self):
        plain, a, moved, b = self.pair(adamw)
        for step in range(3):
            for params, opt in ((plain, a), (moved, b)):
                gradients(params, step)
                torch.nn.utils.clip_grad_norm_(params, 0.5)
                opt.step()
        self.assertSame(plain, moved)

    def test_parameter_groups_and_one_that_is_added_later(self):
        def make(params):
            return torch.optim.AdamW(
                [
                    {"params": params[:4], "lr": 1e-1},
                    {"params": params[4:6], "weight_decay": 0.0, "amsgrad": True},
                ]
            )

        plain, a, moved, b = self.pair(make)
        self.run_both(plain, a, moved, b, 2)
        for params, opt in ((plain, a), (moved, b)):
            opt.add_param_group({"params": params[6:], "lr": 1e-3, "fused": True})
        self.run_both(plain, a, moved, b, 3, first=2)
        self.assertSameStates(a.state_dict(), b.state_dict())

    def test_states_that_appear_later(self):
        """SGD whose momentum is turned on: chunks are laid out again."""

        def sgd(params):
            groups = [{"params": params[:5], "momentum": 0.0}, {"params": params[5:]}]
            return torch.optim.SGD(groups, momentum=0.9)

        store = self.enterContext(self.connect(device_budget="6MiB"))
        plain, a, moved, b = self.pair(sgd, store=store)
        self.run_both(plain, a, moved, b, 2)
        for opt in (a, b):
            opt.param_groups[0]["momentum"] = 0.5
        self.run_both(plain, a, moved, b, 2, first=2)
        self.assertSameStates(a.state_dict(), b.state_dict())

    def test_zero_grad_and_gradients_accumulated_over_passes(self):
        plain, a, moved, b = self.pair(adamw)
        for step in range(2):
            for params, opt in ((plain, a), (moved, b)):
                opt.zero_grad(set_to_none=step == 0)
                loss_of(params, step).backward()
                loss_of(params, step + 10).backward()
                opt.step()
        self.assertSame(plain, moved)

    def test_two_optimizers_share_a_store(self):
        plain, a, moved, b = self.pair(adamw)
        others, c, moved_others, d = self.pair(lambda p: torch.optim.SGD(p, momentum=0.9))
        for step in range(3):
            self.run_both(plain, a, moved, b, 1, first=step)
            self.run_both(others, c, moved_others, d, 1, first=step)

    def test_the_optimizers_end_frees_its_states(self):
        _, a, moved, b = self.pair(adamw)
        gradients(moved, 0)
        b.step()
        self.assertGreater(self.store.stats().tensors, 5)
        ended = weakref.ref(b)
        del a, b
        self.assertIsNone(ended())
        self.assertTensors(0)


class StateTest(OptimizerCase):
    def test_resume_from_the_plain_one_and_back(self):
        for way, flags in WAYS.items():
            with self.subTest(way=way):
                plain, a = parameters(), None
                a = adamw(plain, **flags)
                moved = copy.deepcopy(plain)
                first = adamw(moved, **flags)
                self.run_both(plain, a, moved, first, 3)
                saved = copy.deepcopy(first.state_dict())
                b = self.offload(adamw(moved, **flags))
                b.load_state_dict(saved)
                self.assertSameStates(a.state_dict(), b.state_dict())
                self.run_both(plain, a, moved, b, 3, first=3)
                # Through a file, into a plain one.
                file = io.BytesIO()
                torch.save(b.state_dict(), file)
                file.seek(0)
                last = adamw(moved, **flags)
                last.load_state_dict(torch.load(file))
                self.run_both(plain, a, moved, last, 2, first=6)

    def test_loading_into_states_that_are_away_replaces_them(self):
        plain, a, moved, b = self.pair(adamw)
        self.run_both(plain, a, moved, b, 2)
        saved = copy.deepcopy(b.state_dict())
        kept = copy.deepcopy(moved)
        self.run_both(plain, a, moved, b, 2, first=2)
        b.load_state_dict(saved)
        with torch.no_grad():
            for p, old in zip(moved, kept, strict=True):
                p.copy_(old)
        again = parameters()
        c = adamw(again)
        for step in range(2):
            gradients(again, step)
            c.step()
        self.assertSame(again, moved)
        self.assertSameStates(c.state_dict(), b.state_dict())

    def test_a_state_dict_is_on_the_cpu_and_hooks_see_it(self):
        _, _, moved, b = self.pair(adamw)
        gradients(moved, 0)
        b.step()
        seen = []
        b.register_state_dict_post_hook(lambda _, made: seen.append(made["state"][0]["exp_avg"]))
        saved = b.state_dict()
        before = saved["state"][0]["exp_avg"].clone()
        self.assertIs(seen[0], saved["state"][0]["exp_avg"])
        gradients(moved, 1)
        b.step()
        # As the plain one's, it is of the states as they are when it is used.
        self.assertTrue(torch.equal(b.state[moved[0]]["exp_avg"], saved["state"][0]["exp_avg"]))
        self.assertFalse(torch.equal(before, saved["state"][0]["exp_avg"]))
        self.assertEqual(before.device.type, "cpu")
        self.assertEqual(saved["state"][0]["step"], 1)

    def test_a_hook_may_change_what_is_loaded(self):
        plain, a, moved, b = self.pair(adamw)
        self.run_both(plain, a, moved, b, 1)

        def zeroed(_, given):
            state = {n: {**s, "exp_avg": s["exp_avg"] * 0} for n, s in given["state"].items()}
            return {**given, "state": state}

        for opt in (a, b):
            opt.register_load_state_dict_pre_hook(zeroed)
            opt.load_state_dict(opt.state_dict())
        self.run_both(plain, a, moved, b, 2, first=1)
        self.assertSameStates(a.state_dict(), b.state_dict())

    def test_a_state_dict_of_another_model_is_refused_and_changes_nothing(self):
        plain, a, moved, b = self.pair(adamw)
        self.run_both(plain, a, moved, b, 1)
        with self.assertRaisesRegex(ValueError, "doesn't match the size"):
            b.load_state_dict(adamw(parameters()[:3]).state_dict())
        self.run_both(plain, a, moved, b, 2, first=1)

    def test_a_state_that_is_read_is_right_and_what_is_written_counts(self):
        plain, a, moved, b = self.pair(adamw)
        self.run_both(plain, a, moved, b, 2)
        for i in (0, 1, 3, 6):
            for key, value in a.state[plain[i]].items():
                self.assertTrue(torch.equal(b.state[moved[i]][key], value))
        for params, opt in ((plain, a), (moved, b)):
            opt.state[params[0]]["exp_avg"].zero_()
            opt.state[params[4]]["exp_avg_sq"] = torch.ones_like(params[4])
            opt.state[params[7]]["step"] += 3
            del opt.state[params[5]]
        self.run_both(plain, a, moved, b, 2, first=2)
        self.assertSameStates(a.state_dict(), b.state_dict())

    def test_all_states_can_be_reset(self):
        plain, a, moved, b = self.pair(adamw)
        self.run_both(plain, a, moved, b, 2)
        a.state.clear()
        b.state.clear()
        self.run_both(plain, a, moved, b, 2, first=2)
        a.state = collections.defaultdict(dict)
        b.state = collections.defaultdict(dict)
        self.run_both(plain, a, moved, b, 2, first=4)


class RefusalTest(OptimizerCase):
    def assertRefused(self, words, function, kind=Exception):
        with self.assertRaisesRegex(kind, words):
            function()

    def test_other_classes(self):
        class Mine(torch.optim.Adam):
            pass

        for make in (torch.optim.LBFGS, torch.optim.RMSprop, torch.optim.NAdam, Mine):
            opt = make(parameters())
            offload = functools.partial(self.offload, opt)
            self.assertRefused("not .*" + make.__qualname__, offload)
            self.assertIs(type(opt), make)

    def test_capturable_and_differentiable(self):
        self.assertRefused("capturable", lambda: self.offload(adamw(parameters(), capturable=True)))
        for option in ("capturable", "differentiable"):
            b = self.offload(adamw(parameters()))
            add = functools.partial(b.add_param_group, {"params": [], option: True})
            self.assertRefused(option, add)
            self.assertEqual(len(b.param_groups), 1)
            b.param_groups[0][option] = True
            self.assertRefused(option, b.step)

    def test_closures(self):
        b = self.offload(adamw(parameters()))
        self.assertRefused("closure is not supported", lambda: b.step(lambda: 0.0))

    def test_a_compiled_step(self):
        moved = parameters()
        b = self.offload(adamw(moved))
        gradients(moved, 0)
        self.assertRefused("outside of that function", torch.compile(b.step, backend="eager"))

        def train():
            b.step()

        self.assertRefused("outside of that function", torch.compile(train, backend="eager"))
        self.assertSame(parameters(), moved)

    def test_nothing_to_move(self):
        self.assertRefused("no states", lambda: self.offload(torch.optim.SGD(parameters())))

    def test_sparse_gradients_before_anything_is_updated(self):
        moved = parameters()
        b = self.offload(torch.optim.SGD(moved, momentum=0.9))
        gradients(moved, 0)
        moved[7].grad = moved[7].grad.to_sparse()
        self.assertRefused("sparse", b.step)
        self.assertSame(parameters(), moved)

    def test_tensor_subclasses(self):
        class Special(torch.nn.Parameter):
            pass

        self.assertRefused("Special", lambda: self.offload(adamw([Special(torch.ones(3))])))

    def test_a_store_of_another_kind_of_memory(self):
        meta = torch.nn.Parameter(torch.ones(3, device="meta"))
        self.assertRefused("on meta", lambda: self.offload(adamw([meta])))

    def test_twice(self):
        b = self.offload(adamw(parameters()))
        self.assertRefused("already", lambda: self.offload(b))

    def test_copies_and_pickles(self):
        b = self.offload(adamw(parameters()))
        self.assertRefused("state_dict", lambda: copy.deepcopy(b))
        self.assertRefused("state_dict", lambda: pickle.dumps(b))

    def test_a_step_that_was_replaced(self):
        opt = adamw(parameters())
        opt.step = lambda: None
        self.assertRefused("was replaced", lambda: self.offload(opt))

    def test_the_plain_step_by_an_old_reference(self):
        moved = parameters()
        opt = adamw(moved)
        plain_step = opt.step
        self.offload(opt)
        gradients(moved, 0)
        self.assertRefused("reference from before", plain_step)
        self.assertSame(parameters(), moved)

    def test_chunks_of_no_size(self):
        self.assertRefused(
            "at least", lambda: offload_optimizer(adamw(parameters()), self.store, chunk=100)
        )


class InBackwardTest(OptimizerCase):
    def setUp(self):
        gc.collect()  # no other test's GradScaler or DDP
        super().setUp()

    def pair(self, make, **options):
        return super().pair(make, in_backward=True, **options)

    def train_both(self, plain, a, moved, b, steps, first=0, unused=()):
        for step in range(first, first + steps):
            for params, opt in ((plain, a), (moved, b)):
                used = [p for i, p in enumerate(params) if i not in unused]
                opt.zero_grad()
                loss_of(used, step).backward()
                opt.step()
        self.assertSame(plain, moved)

    def test_every_kind_of_step_gives_the_plain_bits_with_the_states_away(self):
        for kind, (base, options) in KINDS.items():
            for way, flags in WAYS.items():
                with self.subTest(kind=kind, way=way):
                    make = lambda params: base(params, **options, **flags)  # noqa: B023, E731
                    plain, a, moved, b = self.pair(make)
                    out = self.store.stats().bytes_out
                    self.train_both(plain, a, moved, b, 6)
                    self.assertSameStates(a.state_dict(), b.state_dict())
                    self.assertGreater(self.store.stats().bytes_out - out, 3 * MIB)
                    del a, b

    def test_parameters_are_updated_and_gradients_freed_within_the_backward_pass(self):
        plain, moved = parameters(), parameters()
        a, b = adamw(plain), adamw(moved)
        loss_of(plain, 0).backward()
        a.step()
        given, left = [], []
        for p in moved:
            p.register_post_accumulate_grad_hook(lambda p: given.append(weakref.ref(p.grad)))
        self.offload(b, in_backward=True)
        for p in moved:
            p.register_post_accumulate_grad_hook(
                lambda _: left.append([grad for grad in given if grad() is not None])
            )
        loss_of(moved, 0).backward()
        self.assertSame(plain, moved)
        self.assertEqual(len(given), len(moved))
        self.assertEqual(left, [[]] * len(moved))
        b.step()
        self.assertTrue(all(p.grad is None for p in moved))

    def test_each_chunk_is_updated_once_when_its_last_gradient_came(self):
        plain, a, moved, b = self.pair(adamw)
        self.train_both(plain, a, moved, b, 2)
        states = b._ravenstore
        updates, waiting = [], []
        plain_step = states._plain_step

        def step(opt):
            updates.append([p for group in opt.param_groups for p in group["params"]])
            plain_step(opt)

        states._plain_step = step
        for p in moved:
            p.register_post_accumulate_grad_hook(
                lambda _: waiting.append(sum(type(p.grad) is torch.Tensor for p in moved))
            )
        loss_of(moved, 2).backward()
        self.assertEqual(len(updates), len(states._chunks))
        self.assertGreater(max(map(len, updates)), 1)
        self.assertEqual(waiting[-1], 0)
        most = sorted(len(chunk.pieces) for chunk in states._chunks)[-2:]
        self.assertLess(max(waiting), sum(most))

    def test_a_model_with_shared_weights_and_checkpointing(self):
        from torch.utils.checkpoint import checkpoint

        for reentrant in (True, False):
            results = []
            for in_backward in (None, True):
                torch.manual_seed(3)
                first, middle = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
                params = [*first.parameters(), *middle.parameters()]
                opt = adamw(params)
                if in_backward:
                    self.offload(opt, in_backward=True)
                for _ in range(3):
                    x = torch.randn(8, 64, requires_grad=True)
                    y = checkpoint(middle, x, use_reentrant=reentrant).relu()
                    first(first(y)).square().mean().backward()
                    opt.step()
                    opt.zero_grad()
                results.append(params)
            self.assertSame(*results)

    def test_parameters_without_gradients_and_a_changing_order(self):
        plain, a, moved, b = self.pair(adamw)
        for step, unused in enumerate(((0, 4), (1, 2), (), (4,), (0, 7), ())):
            self.train_both(plain, a, moved, b, 1, first=step, unused=unused)
        self.assertSameStates(a.state_dict(), b.state_dict())

    def test_schedulers_hooks_and_groups(self):
        plain, a, moved, b = self.pair(lambda params: adamw(params[:5]))
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for opt in (a, b)]
        calls = []
        b.register_step_pre_hook(lambda *_: calls.append("before"))
        b.register_step_post_hook(lambda *_: calls.append("after"))
        for opt, params in ((a, plain), (b, moved)):
            opt.add_param_group({"params": params[5:], "lr": 1e-3})
        for step in range(3):
            self.train_both(plain, a, moved, b, 1, first=step)
            for scheduler in schedulers:
                scheduler.step()
        self.assertEqual(calls, ["before", "after"] * 3)

    def test_resume(self):
        plain, a, moved, b = self.pair(adamw)
        self.train_both(plain, a, moved, b, 2)
        file = io.BytesIO()
        torch.save(b.state_dict(), file)
        file.seek(0)
        del b
        gc.collect()
        moved = [torch.nn.Parameter(p.detach().clone()) for p in moved]
        c = self.offload(adamw(moved), in_backward=True)
        c.load_state_dict(torch.load(file))
        self.train_both(plain, a, moved, c, 2, first=2)
        self.assertSameStates(a.state_dict(), c.state_dict())

    def test_the_optimizers_end_frees_its_states_though_the_parameters_live(self):
        _, _, moved, b = self.pair(adamw)
        loss_of(moved, 0).backward()
        b.step()
        self.assertGreater(self.store.stats().tensors, 5)
        del b
        self.assertTensors(0)
        loss_of(moved, 0).backward()
        self.assertTrue(all(type(p.grad) is torch.Tensor for p in moved))

    def test_gradients_that_the_user_sets_are_taken_by_the_step(self):
        plain, a, moved, b = self.pair(adamw)
        self.train_both(plain, a, moved, b, 1)
        self.run_both(plain, a, moved, b, 2, first=1)

    def test_a_backward_pass_that_fails_leaves_nothing_open(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise ArithmeticError("on purpose")

        plain, a, moved, b = self.pair(adamw)
        self.train_both(plain, a, moved, b, 2)
        for params, opt in ((plain, a), (moved, b)):
            opt.zero_grad()
            with self.assertRaises(ArithmeticError):
                (loss_of(params[4:5], 2) + (Fails.apply(params[0]) * 2).sum()).backward()
        a.step()
        b.step()
        self.train_both(plain, a, moved, b, 2, first=3)

    def refused(self, words):
        return self.assertRaisesRegex(RuntimeError, words)

    def test_a_second_pass_before_the_step_is_refused(self):
        for between in (lambda opt: None, lambda opt: opt.zero_grad()):
            _, _, moved, b = self.pair(adamw)
            loss_of(moved, 0).backward()
            after = [p.detach().clone() for p in moved]
            between(b)
            with self.refused("in_backward=False"):
                loss_of(moved, 1).backward()
            self.assertSame(after, moved)
            del b

    def test_clipping_is_refused(self):
        _, _, moved, b = self.pair(adamw)
        loss_of(moved, 0).backward()
        for clip in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_):
            with self.refused("clipping them"):
                clip(moved, 1.0)
        with self.refused("clipping them"):
            moved[0].grad.norm()

    def test_a_scaler_is_refused_before_anything_is_updated(self):
        moved = parameters()
        b = self.offload(adamw(moved), in_backward=True)
        scaler = torch.amp.GradScaler("cpu")
        with self.refused("GradScaler is in use"):
            scaler.scale(loss_of(moved, 0)).backward()
        self.assertSame(parameters(), moved)
        with self.refused("GradScaler is in use"):
            self.offload(adamw(parameters()), in_backward=True)
        del scaler
        b.zero_grad()
        loss_of(moved, 0).backward()
        late = torch.amp.GradScaler("cpu")
        late.scale(torch.ones(()))
        with self.refused("GradScaler need in_backward=False"):
            late.step(b)

    def test_a_graph_of_the_backward_pass_is_refused(self):
        _, _, moved, b = self.pair(adamw)
        with self.refused("create_graph"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own, of the cycle
            sum(p.square().sum() for p in moved).backward(create_graph=True)
        self.assertSame(parameters(), moved)
        for p in moved:
            p.grad = None
        del b

    def test_ddp_is_refused(self):
        for early in (True, False):
            with process_group():
                model = torch.nn.Linear(8, 8)
                ddp = None
                if early:
                    ddp = torch.nn.parallel.DistributedDataParallel(model)
                    with self.refused("DistributedDataParallel"):
                        self.offload(adamw(model.parameters()), in_backward=True)
                    continue
                opt = self.offload(adamw(model.parameters()), in_backward=True)
                before = [p.detach().clone() for p in model.parameters()]
                ddp = torch.nn.parallel.DistributedDataParallel(model)
                with self.refused("DistributedDataParallel"):
                    ddp(torch.ones(2, 8)).sum().backward()
                self.assertSame(before, list(model.parameters()))
                del ddp, opt
                gc.collect()

    def test_fsdp_is_refused(self):
        p = torch.nn.Parameter(torch.ones(3))
        p._fsdp_flattened = True
        with self.assertRaisesRegex(TypeError, "FSDP"):
            self.offload(adamw([p]), in_backward=True)
        with process_group():
            mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
            model = torch.nn.Linear(8, 8)
            torch.distributed.fsdp.fully_shard(model, mesh=mesh)
            with self.assertRaisesRegex(TypeError, "FSDP2"):
                self.offload(adamw(model.parameters()), in_backward=True)


class FailureTest(OptimizerCase):
    def test_a_failure_in_the_middle_leaves_every_other_chunk_consistent(self):
        plain, a, moved, b = self.pair(lambda params: adamw(params, foreach=False))
        self.run_both(plain, a, moved, b, 2)
        b.state[moved[4]]["exp_avg"] = torch.ones(3)
        gradients(plain, 2)
        gradients(moved, 2)
        with self.assertRaises(RuntimeError) as caught:
            b.step()
        words = "".join(traceback.format_exception(caught.exception))
        self.assertRegex(words, r"finished [1-9]\d* of \d+ chunks")
        # Parameters before are as after a step, those after as before, and so are the states.
        before = copy.deepcopy(plain)
        a.step()
        done = [i for i, p in enumerate(moved) if torch.equal(p, plain[i]) and p.numel() > 1]
        same = [i for i, p in enumerate(moved) if torch.equal(p, before[i]) and p.numel() > 1]
        self.assertIn(0, done)
        self.assertIn(7, same)
        saved = b.state_dict()["state"]
        for i in done:
            self.assertTrue(torch.equal(saved[i]["exp_avg"], a.state[plain[i]]["exp_avg"]))
        for i in same:
            self.assertEqual(saved[i]["step"], 2)
        # And it goes on.
        del caught
        del b.state[moved[4]]
        b.step()

    def test_no_room_for_a_chunk_is_an_error_in_words_and_loses_nothing(self):
        store = Store.connect(socket=self.socket, device_budget="2MiB", timeout=0.5)
        plain, a, moved, b = self.pair(adamw, store=store)
        self.run_both(plain, a, moved, b, 2)
        held = store.create("2MiB")
        gradients(plain, 2)
        gradients(moved, 2)
        with self.assertRaisesRegex((OutOfMemory, TimedOut), "MiB"):
            b.step()
        held.free()
        a.step()
        b.step()
        self.assertSame(plain, moved)

    def test_the_daemons_death_is_an_error_that_says_what_is_lost(self):
        with contextlib.ExitStack() as first:
            store = Store.connect(socket=first.enter_context(daemon()), device_budget="6MiB")
            plain, a, moved, b = self.pair(lambda p: adamw(name_of(p)), store=store)
            self.run_both(plain, a, moved, b, 2)
            saved = copy.deepcopy(b.state_dict())
            checkpoint = copy.deepcopy(moved)
        gradients(moved, 2)
        with self.assertRaises(StatesLost) as caught:
            b.step()
        words = str(caught.exception)
        self.assertRegex(words, r"are lost: \d+\.\d MiB of 9 of 9 parameters \(p0, p1, ")
        self.assertRegex(words, r"finished \d+ of \d+ chunks")
        self.assertIn("load_state_dict", words)
        for again in (b.step, b.state_dict, lambda: b.load_state_dict(saved)):
            with self.assertRaises(StatesLost):
                again()
        self.assertIs(offload_optimizer(b, self.store), b)
        b.load_state_dict(saved)
        with torch.no_grad():
            for p, old in zip(moved, checkpoint, strict=True):
                p.copy_(old)
        self.run_both(plain, a, moved, b, 2, first=2)

    def test_with_a_store_of_its_own_loading_a_checkpoint_connects_again(self):
        with contextlib.ExitStack() as first:
            os.environ["RAVENSTORE_SOCKET"] = first.enter_context(daemon())
            self.addCleanup(os.environ.pop, "RAVENSTORE_SOCKET")
            plain, moved = parameters(), parameters()
            a, b = adamw(plain), adamw(moved)
            offload_optimizer(b, chunk=CHUNK, in_backward=True)
            self.run_both(plain, a, moved, b, 2)
            saved = copy.deepcopy(b.state_dict())
        with self.assertRaises(StatesLost):
            loss_of(moved[-1:], 2).backward()
        os.environ["RAVENSTORE_SOCKET"] = self.socket
        b.zero_grad()
        b.load_state_dict(saved)
        self.run_both(plain, a, moved, b, 2, first=2)

    def test_without_a_daemon_the_optimizer_is_left_as_it_is(self):
        opt = adamw(parameters())
        os.environ["RAVENSTORE_SOCKET"] = "/nowhere/s"
        self.addCleanup(os.environ.pop, "RAVENSTORE_SOCKET")
        with self.assertRaisesRegex(Unavailable, "ravenstored --socket"):
            offload_optimizer(opt)
        self.assertIs(type(opt), torch.optim.AdamW)


def name_of(params):
    return [(f"p{i}", p) for i, p in enumerate(params)]


@contextlib.contextmanager
def process_group():
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    xml_main.main()
