"""state_dict() of an offloaded optimizer: read one tensor at a time by whatever saves it."""

import contextlib
import copy
import gc
import io
import os
import pickle
import tempfile
import unittest.mock
import warnings
import weakref

import harness
import torch
import xml_main
from ravenstore import StatesLost
from ravenstore._chunks import ParamState
from ravenstore._saved import SavedState
from ravenstore.optimizer import offload_optimizer


def made(dtype=torch.float32):
    torch.manual_seed(4)
    net = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(6)]).to(dtype)
    net.append(torch.nn.Conv2d(3, 5, 3).to(dtype).to(memory_format=torch.channels_last))
    return net


def step(net, opt, number):
    generator = torch.Generator().manual_seed(number)
    for p in net.parameters():
        grad = torch.randn(p.shape, generator=generator)
        p.grad = torch.empty_like(p).copy_(grad)
    opt.step()
    opt.zero_grad()


class SavedTest(harness.StoreCase):
    def setUp(self):
        self.store = self.enterContext(self.connect(device_budget="6MiB"))
        self.addCleanup(gc.collect)
        self.net, plain = made(), made()
        self.plain = torch.optim.AdamW(plain.parameters(), lr=1e-2)
        self.opt = self.offloaded(self.net)
        for number in range(3):
            step(self.net, self.opt, number)
            step(plain, self.plain, number)

    def offloaded(self, net, **options):
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        return offload_optimizer(opt, self.store, chunk=256 << 10, **options)

    def assertSame(self, mine, plain):
        """Two state_dicts."""
        self.assertEqual(mine["param_groups"], plain["param_groups"])
        self.assertEqual(list(mine["state"]), list(plain["state"]))
        for number, state in plain["state"].items():
            self.assertEqual(list(mine["state"][number]), list(state))
            for key, value in state.items():
                other = mine["state"][number][key]
                self.assertTrue(torch.equal(other, value), (number, key))
                self.assertEqual((other.dtype, other.stride()), (value.dtype, value.stride()))

    @staticmethod
    def saved(state_dict):
        file = io.BytesIO()
        torch.save(state_dict, file)
        file.seek(0)
        return file

    def test_what_torch_save_writes_is_what_it_writes_of_the_plain_one(self):
        mine = self.opt.state_dict()
        self.assertIsInstance(mine["state"][0]["exp_avg"], SavedState)
        for options in ({}, {"weights_only": False}):
            loaded = torch.load(self.saved(mine), **options)
            self.assertSame(loaded, self.plain.state_dict())
            self.assertIs(type(loaded["state"][0]["exp_avg"]), torch.Tensor)
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))
        path = os.path.join(folder, "states")
        torch.save(mine, path)
        self.assertSame(torch.load(path, mmap=True), self.plain.state_dict())
        plain = self.saved(self.plain.state_dict()).getbuffer().nbytes
        self.assertLess(abs(os.path.getsize(path) - plain), 4096)

    def test_one_tensor_at_a_time_is_in_memory(self):
        alive, most = [], []
        read = ParamState.on_cpu

        def counted(state, key, **how):
            value = read(state, key, **how)
            alive.append(weakref.ref(value.untyped_storage()))
            most.append(sum(storage() is not None for storage in alive))
            return value

        with unittest.mock.patch.object(ParamState, "on_cpu", counted):
            saved = self.opt.state_dict()
            self.assertEqual(alive, [])
            self.saved(saved)
        self.assertEqual(len(alive), 2 * len(list(self.net.parameters())))
        self.assertLessEqual(max(most), 2)

    def test_torch_distributed_checkpoint(self):
        import torch.distributed.checkpoint as dcp

        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))
        states = {str(n): state for n, state in self.opt.state_dict()["state"].items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a process without a group
            dcp.save(states, checkpoint_id=folder)
            plain = copy.deepcopy(self.plain.state_dict())
            back = {
                str(n): {k: torch.zeros_like(v) for k, v in state.items()}
                for n, state in plain["state"].items()
            }
            dcp.load(back, checkpoint_id=folder)
        self.assertSame({**plain, "state": {int(n): s for n, s in back.items()}}, plain)

    def test_copies_and_pickles_are_plain_tensors(self):
        mine = self.opt.state_dict()
        for copied in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
            self.assertSame(copied, self.plain.state_dict())
            self.assertIs(type(copied["state"][0]["exp_avg"]), torch.Tensor)

    def test_later_steps_change_it_as_the_plain_one(self):
        mine, plain = self.opt.state_dict(), self.plain.state_dict()
        kept = copy.deepcopy(mine)
        step(self.net, self.opt, 3)
        params = self.plain.param_groups[0]["params"]
        step(torch.nn.ParameterList(params), self.plain, 3)
        self.assertTrue(
            torch.equal(mine["state"][0]["exp_avg"], plain["state"][0]["exp_avg"]),
        )
        self.assertFalse(torch.equal(mine["state"][0]["exp_avg"], kept["state"][0]["exp_avg"]))

    def test_loaded_by_both_kinds_and_by_itself(self):
        mine = self.opt.state_dict()
        plain = torch.optim.AdamW(made().parameters(), lr=1e-2)
        plain.load_state_dict(mine)
        self.assertSame(plain.state_dict(), self.plain.state_dict())
        other = self.offloaded(made())
        other.load_state_dict(mine)
        self.assertSame(other.state_dict(), self.plain.state_dict())
        self.opt.load_state_dict(mine)
        self.assertSame(self.opt.state_dict(), self.plain.state_dict())
        with self.assertRaisesRegex(RuntimeError, "after load_state_dict"):
            mine["state"][0]["exp_avg"].sum()

    def test_master_weights(self):
        net = made(torch.bfloat16)
        opt = self.offloaded(net, master_weights=True)
        for number in range(2):
            step(net, opt, number)
        loaded = torch.load(self.saved(opt.state_dict()))
        self.assertSame(loaded, copy.deepcopy(opt.state_dict()))
        self.assertEqual(loaded["state"][0]["master"].dtype, torch.float32)
        self.assertTrue(torch.equal(loaded["state"][3]["master"].bfloat16(), net[1].bias))

    def test_a_terminal_shows_how_much_was_read(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        printed = []
        for out, least in ((Terminal(), 1), (Terminal(), 4 << 30), (io.StringIO(), 1)):
            with (
                contextlib.redirect_stderr(out),
                unittest.mock.patch("ravenstore._progress._REPORTED_BYTES_MIN", least),
            ):
                mine = self.opt.state_dict()
                for _ in range(2):
                    self.saved(mine)
            printed.append(out.getvalue())
        self.assertRegex(printed[0], r"\roptimizer states read from the store: .* of 4.1 MiB")
        self.assertEqual((printed[0].count("\n"), printed[1:]), (1, ["", ""]))

    def test_it_outlives_the_optimizer(self):
        mine = self.opt.state_dict()
        del self.opt
        gc.collect()
        self.assertSame(torch.load(self.saved(mine)), self.plain.state_dict())

    def test_what_would_be_lost_is_refused(self):
        state = self.opt.state_dict()["state"][0]["exp_avg"]
        uses = (
            lambda: state.mul_(2),
            state.zero_,
            lambda: state.__setitem__(0, 1.0),
            state.data_ptr,
            lambda: torch.add(state, 1, out=state),
            lambda: torch._foreach_mul_([state], 2.0),
        )
        for use in uses:
            with self.assertRaisesRegex(RuntimeError, "clone"):
                use()
        self.assertEqual((state + 1).sum(), state.clone().add_(1).sum())
        self.assertEqual(state.to(torch.float64).dtype, torch.float64)
        self.assertIs(state.to("cpu"), state)
        self.assertEqual(str(state), str(state.clone()))

    def test_a_dead_daemon_is_an_error_in_words(self):
        with harness.daemon() as socket:
            from ravenstore import Store

            store = Store.connect(socket=socket, timeout=10, device_budget="6MiB")
            net = made()
            opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
            offload_optimizer(opt, store, chunk=256 << 10)
            step(net, opt, 0)
            mine = opt.state_dict()
        with self.assertRaisesRegex(StatesLost, "Optimizer states were in the store and are lost"):
            self.saved(mine)


if __name__ == "__main__":
    xml_main.main()
