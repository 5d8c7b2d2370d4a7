#!/usr/bin/python3
"""Tensors by name, and safetensors files that several processes share, against the host backend."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading

import harness
import ravenstore
import torch
import xml_main
from harness import MIB


class NamedCase(harness.StoreCase):
    def setUp(self):
        super().setUp()
        os.environ["RAVENSTORE_SOCKET"] = self.socket
        self.addCleanup(os.environ.pop, "RAVENSTORE_SOCKET")
        self.name = self.id().rsplit(".", 1)[-1]

    def connect_reader(self):
        store = ravenstore.Store.connect(socket=self.socket, name="reader")
        self.addCleanup(store.close)
        return store


def weights(seed=0):
    torch.manual_seed(seed)
    return {
        "layer.weight": torch.randn(300, 1000),
        "layer.bias": torch.randn(1000).half(),
        "step": torch.tensor(seed),
        "empty": torch.empty(0, 5),
        "mask": torch.rand(17) > 0.5,
        "transposed": torch.randn(50, 40).T,
    }


class NamedTest(NamedCase):
    def assert_holds(self, opened, tensors):
        self.assertEqual(list(opened), list(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(opened[name].dtype, tensor.dtype)
            self.assertTrue(torch.equal(opened[name], tensor), name)

    def test_others_see_the_tensors(self):
        store = self.connect_reader()
        with store.publish(self.name, weights(1)) as published:
            self.assertEqual(published.version, 1)
            with store.open(self.name) as opened:
                self.assert_holds(opened, weights(1))
                self.assertGreater(opened.bytes, 1_200_000)

    def test_a_publisher_leaves_no_thread_behind(self):
        threads = []
        for version in range(3):
            store = self.connect_reader()
            published = store.publish(self.name, weights(version))
            with store.open(self.name):
                published.close()
            store.close()
            threads.append(len(os.listdir("/proc/self/task")))
        self.assertEqual(len(set(threads)), 1, threads)

    def test_another_process_sees_them(self):
        store = self.connect_reader()
        script = (
            "import ravenstore, torch\n"
            f"with ravenstore.Store.connect() as store, store.open({self.name!r}) as opened:\n"
            "    print(float(opened['layer.weight'].double().sum()))"
        )
        with store.publish(self.name, weights(2)):
            path = os.pathsep.join([str(harness.ROOT / "python"), *sys.path])
            said = subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=True,
            )
        want = float(weights(2)["layer.weight"].double().sum())
        self.assertAlmostEqual(float(said.stdout), want, places=6)

    def test_tensors_follow_the_versions(self):
        store = self.connect_reader()
        published = [store.publish(self.name, weights(1))]
        opened = store.open(self.name)
        tensor = opened["layer.weight"]
        view = tensor[3]
        for version in range(2, 6):
            published.append(store.publish(self.name, weights(version)))
            self.assertTrue(torch.equal(tensor, weights(version - 1)["layer.weight"]))
            self.assertEqual(opened.advance(version), version)
            self.assertTrue(torch.equal(view, weights(version)["layer.weight"][3]))
        other = weights(6)
        other["renamed.weight"] = other.pop("layer.weight")
        published.append(store.publish(self.name, other))
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "another layout"):
            opened.advance()
        self.assert_holds(opened, weights(5))
        with self.assertRaises(ravenstore.TimedOut):
            opened.advance(100, timeout=0.001)
        del tensor, view
        opened.close()
        for each in published:
            each.close()

    def test_a_set_that_sleeps_makes_room_and_comes_back(self):
        store = self.connect_reader()
        big = {"big": torch.arange(8 * MIB, dtype=torch.float32)}  # 32 of 64 MiB
        with store.publish(self.name, big), store.open(self.name) as opened:
            tensor = opened["big"]
            for _ in range(3):
                opened.sleep()
                self.assertTrue(opened.asleep)
                with self.assertRaisesRegex(ravenstore.WrongState, "asleep"):
                    opened["big"]
                refused = self.assertRaisesRegex(ravenstore.OutOfMemory, "holds 50")
                with store.create(50 * MIB), refused:
                    opened.wake(timeout=0.001)
                opened.wake()
                self.assertTrue(torch.equal(tensor, big["big"]))
            del tensor

    def test_the_tensors_of_a_closed_set_stay_valid(self):
        store = self.connect_reader()
        with store.publish(self.name, weights(1)), store.open(self.name) as opened:
            tensor = opened["layer.weight"]
        self.assertTrue(torch.equal(tensor, weights(1)["layer.weight"]))
        with self.assertRaisesRegex(ravenstore.WrongState, "closed"):
            opened["layer.weight"]
        del tensor
        with self.assertRaises(ravenstore.NotFound):
            store.open(self.name, fail_fast=True)

    def test_bad_input_is_refused_in_words(self):
        store = self.connect_reader()
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "at least one"):
            store.publish(self.name, {})
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "dense"):
            store.publish(self.name, {"sparse": torch.eye(3).to_sparse()})
        with self.assertRaisesRegex(ravenstore.NotFound, self.name):
            store.open(self.name, fail_fast=True)
        with self.assertRaisesRegex(ravenstore.TimedOut, self.name):
            store.open(self.name, timeout=0.001)
        with self.assertRaisesRegex(ravenstore.NotFound, self.name):
            store.drop(self.name)
        with self.assertRaisesRegex(ravenstore.OutOfMemory, "budget"):
            store.publish(self.name, {"large": torch.empty(100 * MIB, dtype=torch.uint8)})
        with store.publish(self.name, weights(1)):
            store.drop(self.name)
            with self.assertRaises(ravenstore.NotFound):
                store.open(self.name, fail_fast=True)


def model(seed=0, layers=3):
    torch.manual_seed(seed)
    tensors = {"embedding": torch.randn(4000, 700), "scale": torch.randn(3).bfloat16()}
    for i in range(layers):
        tensors[f"layers.{i}.weight"] = torch.randn(500, 301).half()
        tensors[f"layers.{i}.bias"] = torch.randn(301)
    tensors["nothing"] = torch.empty(0)
    return tensors


class SafetensorsTest(NamedCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "model.safetensors"

    def assert_loads(self, path, want, **options):
        with ravenstore.load_safetensors(path, **options) as loaded:
            self.assertEqual(set(loaded), set(want))
            for name, tensor in want.items():
                self.assertEqual(loaded[name].dtype, tensor.dtype)
                self.assertTrue(torch.equal(loaded[name], tensor), name)

    def test_a_file_is_loaded(self):
        harness.write_safetensors(self.file, model())
        self.assert_loads(self.file, model())
        self.assert_loads(str(self.folder), model())

    def test_chunks_begin_and_end_anywhere(self):
        from ravenstore import safetensors

        self.addCleanup(setattr, safetensors, "_CHUNK", safetensors._CHUNK)
        harness.write_safetensors(self.file, model())
        for chunk in (4096, 3 * 4096, 1 << 20):
            safetensors._CHUNK = chunk
            self.assert_loads(self.file, model())

    def test_shards_are_loaded_by_their_index(self):
        whole = model()
        names = list(whole)
        where = {}
        for i in range(2):
            shard = self.folder / f"model-{i}.safetensors"
            harness.write_safetensors(shard, {name: whole[name] for name in names[i::2]})
            where.update(dict.fromkeys(names[i::2], shard.name))
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": where}))
        self.assert_loads(index, whole)
        self.assert_loads(self.folder, whole)

    def test_slices_and_names(self):
        harness.write_safetensors(self.file, model())
        whole = model()
        want = {
            "embedding": whole["embedding"][1000:3000],
            "layers.1.weight": whole["layers.1.weight"][:, 100:201],
            "layers.0.bias": whole["layers.0.bias"],
        }
        self.assert_loads(
            self.file,
            want,
            names=want,
            slices={"embedding": (0, 1000, 3000), "layers.1.weight": (1, 100, 201)},
        )

    def test_many_concurrent_openers_read_it_once(self):
        harness.write_safetensors(self.file, model())
        opened, errors = [], []

        def load():
            try:
                opened.append(ravenstore.load_safetensors(self.file))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=load) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        for each in opened:
            self.assertEqual(each.version, 1)
            self.assertTrue(torch.equal(each["embedding"], model()["embedding"]))
            each.close()

    def test_a_file_that_was_written_again_is_another_entry(self):
        harness.write_safetensors(self.file, model(1))
        with ravenstore.load_safetensors(self.file) as first:
            other = self.folder / "other"
            harness.write_safetensors(other, model(2))
            other.replace(self.file)
            self.assert_loads(self.file, model(2))
            self.assertTrue(torch.equal(first["embedding"], model(1)["embedding"]))

    def test_a_file_that_changes_meanwhile_is_refused_and_loaded_again(self):
        from ravenstore import safetensors

        harness.write_safetensors(self.file, model(1))
        read = safetensors._Reader.run

        def run(reader):
            read(reader)
            os.utime(self.file, ns=(0, 0))

        safetensors._Reader.run = run
        try:
            with self.assertRaisesRegex(ravenstore.InvalidArgument, "changed while"):
                ravenstore.load_safetensors(self.file)
        finally:
            safetensors._Reader.run = read
        self.assert_loads(self.file, model(1))

    def test_what_is_no_such_file_is_refused_in_words(self):
        harness.write_safetensors(self.file, model())
        good = self.file.read_bytes()
        bad = {
            "header is cut off": [b"", b"12345678", good[:100]],
            "no JSON object": [struct.pack("<Q", 5) + b"[1,2]", struct.pack("<Q", 4) + b"nope"],
            "not all there": [good[:-10], good.replace(b'"F32"', b'"F99"', 1)],
            "no tensors": [struct.pack("<Q", 2) + b"{}"],
        }
        for words, contents in bad.items():
            for content in contents:
                self.file.write_bytes(content)
                with self.assertRaisesRegex(ravenstore.InvalidArgument, words):
                    ravenstore.load_safetensors(self.file)
        with self.assertRaisesRegex(ravenstore.NotFound, "no file"):
            ravenstore.load_safetensors(self.folder / "absent")
        self.file.write_bytes(good)
        with self.assertRaisesRegex(ravenstore.NotFound, "'absent'"):
            ravenstore.load_safetensors(self.file, names=["absent"])
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "no slice"):
            ravenstore.load_safetensors(self.file, slices={"scale": (0, 2, 4)})


if __name__ == "__main__":
    xml_main.main()
