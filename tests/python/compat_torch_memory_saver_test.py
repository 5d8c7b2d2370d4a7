#!/usr/bin/python3
"""torch_memory_saver's interface, as SGLang and its own examples call it, on the host backend."""

import contextlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import threading
from unittest import mock

import harness
import ravenstore
import torch
import xml_main
from harness import MIB
from ravenstore.compat import torch_memory_saver as module

tms = module.torch_memory_saver
IN_A_CHILD = "import torch_memory_saver as t; print(t.torch_memory_saver.__class__.__module__)"


def is_ours():
    """Runs in a process that multiprocessing starts."""
    import torch_memory_saver

    return type(torch_memory_saver.torch_memory_saver).__module__


class SaverCase(harness.StoreCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, RAVENSTORE_SOCKET=self.socket))
        self.enterContext(mock.patch.object(module.TorchMemorySaver, "timeout", 10))
        self.addCleanup(tms.resume)

    def tag(self):
        return self.id().rsplit(".", 1)[-1]

    def states(self, tag):
        """What is asleep: memory without a backup, with one."""
        found = ravenstore.tags()
        return [found[name].asleep for name in (f"tms:{tag}", f"tms+bytes:{tag}")]


class TorchMemorySaverTest(SaverCase):
    def test_what_has_a_backup_keeps_its_bytes_in_one_tag_with_what_has_none(self):
        tag = self.tag()
        with tms.region(tag=tag, enable_cpu_backup=True):
            kept = torch.full((4 * MIB,), 10, dtype=torch.uint8)
        with tms.region(tag=tag, enable_cpu_backup=False):
            dropped = torch.full((8 * MIB,), 20, dtype=torch.uint8)
        addresses = [kept.data_ptr(), dropped.data_ptr()]
        with mock.patch.object(module.regions, "sleep", wraps=ravenstore.sleep) as sleep:
            tms.pause(tag)
        kinds = {call.args[0]: call.kwargs["keep"] for call in sleep.call_args_list}
        self.assertEqual(kinds, {f"tms+bytes:{tag}": "bytes", f"tms:{tag}": "nothing"})
        self.assertEqual(self.states(tag), [True, True])
        tms.resume(tag)
        self.assertEqual([kept.data_ptr(), dropped.data_ptr()], addresses)
        self.assertEqual(int(kept.sum()), 10 * 4 * MIB)
        dropped.fill_(3)
        self.assertEqual(int(dropped.sum()), 3 * 8 * MIB)

    def test_all_are_paused_or_one(self):
        one, other = self.tag() + "_one", self.tag() + "_other"
        tensors = []
        for tag in (one, other):
            for backup in (False, True):
                with tms.region(tag, enable_cpu_backup=backup):
                    tensors.append(torch.ones(MIB))
        tms.pause(one)
        self.assertEqual(self.states(one) + self.states(other), [True, True, False, False])
        tms.pause()  # what is paused stays so
        self.assertEqual(self.states(one) + self.states(other), [True] * 4)
        tms.resume(other)
        self.assertEqual(self.states(one) + self.states(other), [True, True, False, False])
        tms.resume()
        tms.resume()
        self.assertEqual(self.states(one) + self.states(other), [False] * 4)
        tms.pause("unknown")
        tms.resume("unknown")
        self.assertEqual(self.states(one) + self.states(other), [False] * 4)

    def test_others_tags_are_not_paused(self):
        with ravenstore.region(self.tag()):
            others = torch.ones(MIB)
        with tms.region():
            own = torch.ones(MIB)
        tms.pause()
        self.assertTrue(ravenstore.tags()["tms:default"].asleep)
        self.assertEqual(float(others.sum()), MIB)
        tms.resume()
        own.zero_()

    def test_an_inner_region_counts_and_disable_is_of_none(self):
        tag = self.tag()
        with tms.region(tag, enable_cpu_backup=True):
            weight = torch.full((MIB,), 42.0)
            with tms.region(tag + "_gradients"):
                gradient = torch.full((MIB,), 99.0)
            with tms.disable():
                own = torch.full((MIB,), 53.0)
            more = torch.full((MIB,), 7.0)
        found = ravenstore.tags()
        self.assertEqual(found[f"tms+bytes:{tag}"].allocations, 2)
        self.assertEqual(found[f"tms:{tag}_gradients"].allocations, 1)
        tms.pause()
        with tms.disable():  # outside a region
            self.assertEqual(float(own.mean()), 53)
        tms.resume()
        self.assertEqual(float(weight.mean() + more.mean()), 49)
        gradient.zero_()

    def test_a_paused_tensor_with_a_backup_is_read(self):
        tag = self.tag()
        with tms.region(tag, enable_cpu_backup=True, cpu_backup_backend="pinned"):
            kept = torch.full((10, 20, 30), 1.5, dtype=torch.float32)
        with tms.region(tag):
            dropped = torch.ones(10)
        self.assertIsNone(tms.get_cpu_backup(kept), "it is not paused")
        tms.pause(tag)
        for zero_copy in (False, True):
            backup = tms.get_cpu_backup(kept, zero_copy=zero_copy)
            self.assertEqual((backup.shape, backup.dtype), (kept.shape, kept.dtype))
            self.assertEqual(backup.flatten()[:3].tolist(), [1.5] * 3)
        self.assertIsNone(tms.get_cpu_backup(dropped))
        self.assertIsNone(tms.get_cpu_backup(torch.ones(10)))
        tms.resume(tag)
        self.assertEqual(float(kept.sum()), 1.5 * 6000)

    def test_a_resume_without_room_may_be_tried_again(self):
        with tms.region(self.tag(), enable_cpu_backup=True):
            weights = torch.arange(8 * MIB, dtype=torch.int32)
        tms.pause(self.tag())
        with (
            ravenstore.Store.connect(socket=self.socket) as other,
            mock.patch.object(module.TorchMemorySaver, "timeout", 0.05),
            other.create(48 * MIB),
            self.assertRaises((ravenstore.OutOfMemory, ravenstore.TimedOut)),
        ):
            tms.resume(self.tag())
        tms.resume(self.tag())
        self.assertTrue(torch.equal(weights, torch.arange(8 * MIB, dtype=torch.int32)))

    def test_settings(self):
        self.assertTrue(tms.enabled)
        for mode in ("preload", "torch"):
            tms.hook_mode = mode
            self.assertEqual(tms.hook_mode, mode)
        with self.assertRaisesRegex(ValueError, "'preload' or 'torch', not 'other'"):
            tms.hook_mode = "other"
        tms.memory_margin_bytes = 1 << 30
        self.assertEqual(tms.memory_margin_bytes, 1 << 30)
        tms.retain_cpu_backup = True
        tms.set_disk_backup_dir("/nowhere")
        with tms.region(self.tag(), enable_disk_backup=True):
            kept = torch.ones(MIB)
        tms.pause()
        tms.resume()
        self.assertEqual(float(kept.sum()), MIB)
        for options in (
            {"enable_cpu_backup": True, "enable_disk_backup": True},
            {"cpu_backup_backend": "pinned"},
            {"enable_cpu_backup": True, "cpu_backup_backend": "cloud"},
        ):
            with self.assertRaises(ValueError):
                tms.region(**options).__enter__()

    def test_a_region_is_the_threads(self):
        with tms.region(self.tag()):
            made = []
            thread = threading.Thread(target=lambda: made.append(torch.ones(MIB)))
            thread.start()
            thread.join()
        tms.pause()
        self.assertEqual(float(made[0].sum()), MIB)

    def test_a_graph_is_captured_in_the_tag_with_its_options(self):
        captured = mock.MagicMock()
        with (
            mock.patch.object(module.regions, "capture_graph", captured),
            tms.cuda_graph(cuda_graph="graph", pool="pool", stream="side", tag="graphs"),
        ):
            pass
        options = {"pool": "pool", "stream": "side", "capture_error_mode": "global"}
        captured.assert_called_once_with("graph", "tms:graphs", **options)


class InstallTest(SaverCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(sys, "path", list(sys.path)))
        self.enterContext(mock.patch.dict(sys.modules))
        sys.modules.pop("torch_memory_saver", None)

    def child(self):
        path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(harness.ROOT / "python")])
        return subprocess.run(
            [sys.executable, "-c", IN_A_CHILD],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    def test_it_is_what_the_others_import(self):
        module.install()
        module.install()
        import torch_memory_saver
        from torch_memory_saver import TorchMemorySaver

        self.assertIs(torch_memory_saver.torch_memory_saver, tms)
        self.assertIs(TorchMemorySaver, module.TorchMemorySaver)
        self.assertIs(torch_memory_saver.configure_subprocess, module.configure_subprocess)

    def test_processes_that_multiprocessing_starts_have_it(self):
        module.install()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.apply(is_ours), "ravenstore.compat.torch_memory_saver")

    def test_processes_that_are_configured_have_it(self):
        for before in (None, "/elsewhere"):
            with contextlib.ExitStack() as stack:
                stack.enter_context(mock.patch.dict(os.environ))
                os.environ.pop("PYTHONPATH", None)
                if before is not None:
                    os.environ["PYTHONPATH"] = before
                with module.configure_subprocess():
                    self.assertEqual(self.child().stdout, "ravenstore.compat.torch_memory_saver\n")
                self.assertEqual(os.environ.get("PYTHONPATH"), before)

    def test_the_folder_is_printed(self):
        name = "ravenstore.compat.torch_memory_saver"
        run = harness.run_python(f"import runpy; runpy.run_module('{name}', None, '__main__')")
        folder = run.stdout.strip()
        self.assertTrue(pathlib.Path(folder, "torch_memory_saver/__init__.py").exists(), folder)

    def test_after_the_other_is_imported_it_is_too_late(self):
        sys.modules["torch_memory_saver"] = mock.Mock(__file__="/site/torch_memory_saver.py")
        with self.assertRaisesRegex(ImportError, "is imported already"):
            module.install()

    def test_a_whole_process_is_refused_in_words(self):
        with (
            mock.patch.dict(os.environ, TMS_INIT_ENABLE="1"),
            self.assertRaisesRegex(ravenstore.Unsupported, "TMS_INIT_ENABLE=1"),
        ):
            module.install()


if __name__ == "__main__":
    xml_main.main()
