#!/usr/bin/python3
"""The wheel for all: what is in it, what it needs, and that it works where nothing else is.

It is made once (deploy/wheel), unless $RAVENSTORE_WHEEL names one.
"""

import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import unittest
import zipfile

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/tidy"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

import bare_root  # noqa: E402
import doors_wheel  # noqa: E402
import xml_main  # noqa: E402

PROGRAMS = {"ravenctl", "ravenrun", "ravensim", "ravenstored"}
LIBRARIES = {"libravenstore.so", "libravenstore_elastic.so", "libravenstore_intercept.so"}

# Without PyTorch: the store by Python, and each program.
WITHOUT_TORCH = """
python - <<'END'
import ravenstore
with ravenstore.Store.connect(embedded=True) as store:
    tensor = store.create("1MiB")
    tensor.memory()[:4] = b"abcd"
    tensor.put()
    with tensor.get() as view:
        assert bytes(view.memory()[:4]) == b"abcd"
try:
    ravenstore._native.load()
except ravenstore.Unsupported as error:
    print(error)
END
for program in ravenctl ravenrun ravensim ravenstored; do $program --version; done
ravensim list >/dev/null
ravenstored --backend host --socket /tmp/s >/dev/null 2>&1 &
daemon=$!
export RAVENSTORE_SOCKET=/tmp/s
until ravenctl status >/dev/null 2>&1; do kill -0 $daemon; done
ravenctl status
ravenrun --budget 1GiB echo a job ran
python -m ravenstore doctor --json
"""
STUB = """
import types
__version__ = "2.99.0"
version = types.SimpleNamespace(cuda=None)
"""
ASK_FOR_PART = """
import ravenstore
from ravenstore import _native
try:
    _native.load()
except ravenstore.Unsupported as error:
    print(error)
"""


class WheelCase(unittest.TestCase):
    wheel = None

    @classmethod
    def setUpClass(cls):
        if WheelCase.wheel is None:
            # Bazel runs this test: another one cannot build meanwhile.
            os.environ.setdefault("RAVENSTORE_BIN", str(ROOT / "bazel-bin"))
            into = pathlib.Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
            WheelCase.wheel = doors_wheel.make_wheel(into)
        cls.folder = cls.enterClassContext(doors_wheel.unpacked(cls.wheel))
        cls.package = cls.folder / "ravenstore"

    def in_root(self, release, *arguments, **options):
        try:
            return doors_wheel.in_root(release, self.wheel, *arguments, **options)
        except bare_root.Missing as error:
            self.skipTest(f"no bare {release}: {error}")


class ContentsTest(WheelCase):
    def test_its_name_says_where_it_runs(self):
        self.assertRegex(
            self.wheel.name, r"^ravenstore-[\d.]+-py3-none-manylinux_2_34_x86_64\.whl$"
        )
        self.assertLessEqual(self.wheel.stat().st_size, 60e6)

    def test_it_has_all_programs_libraries_and_native_parts(self):
        names = {path.name for path in self.package.iterdir()}
        minors = [minor.replace(".", "_") for minor in doors_wheel.supported()[0]]
        parts = {f"_torch_{minor}.{kind}.so" for minor in minors for kind in ("abi3", "cuda")}
        self.assertLessEqual(PROGRAMS | LIBRARIES | parts | {"torch_errors"}, names)
        libraries = {name for name in names if name.endswith(".so")}
        self.assertEqual(libraries, LIBRARIES | parts)
        for name in PROGRAMS:
            self.assertTrue((self.package / name).stat().st_mode & stat.S_IXOTH, name)
        (points,) = self.folder.glob("*.dist-info/entry_points.txt")
        commands = set(re.findall(r"^(\w+) = ravenstore\._commands:\1$", points.read_text(), re.M))
        self.assertEqual(commands, PROGRAMS)

    def test_its_metadata_say_that_no_licence_is_granted(self):
        (metadata,) = self.folder.glob("*.dist-info/METADATA")
        self.assertIn("LicenseRef-None-Granted-Yet", metadata.read_text())

    def test_no_path_of_the_machine_that_made_it_is_in_it(self):
        own = str(ROOT).encode(), str(bare_root.CACHE).encode(), b"/tmp/raven"
        for path in self.folder.rglob("*"):
            for word in own if path.is_file() else ():
                self.assertNotIn(word, path.read_bytes(), path.name)


class NeedsTest(WheelCase):
    def test_every_file_is_content_with_an_old_system(self):
        for path in doors_wheel.elf_files(self.folder):
            with self.subTest(path.name):
                _, versions = doors_wheel.needs(path)
                self.assertLessEqual(versions["GLIBC"], doors_wheel.GLIBC)
                self.assertLessEqual(versions["GLIBCXX"], doors_wheel.GLIBCXX)
                self.assertLessEqual(versions["CXXABI"], (1, 3, 13))
                self.assertLessEqual(versions["GCC"], (11,))

    def test_no_file_needs_what_may_be_missing(self):
        for path in doors_wheel.elf_files(self.folder):
            allowed = doors_wheel.SYSTEM
            if path.name.endswith(".abi3.so"):
                allowed = allowed | doors_wheel.OURS | doors_wheel.TORCH
            elif path.name.endswith(".cuda.so"):
                part = path.name.replace(".cuda.", ".abi3.")
                allowed = allowed | {part} | doors_wheel.TORCH_CUDA
            with self.subTest(path.name):
                self.assertLessEqual(doors_wheel.needs(path)[0], allowed)

    def test_native_parts_keep_to_cpythons_stable_abi(self):
        # As CPython's own headers have it for an extension that keeps to that of 3.10.
        text = "#define Py_LIMITED_API 0x030a0000\n#include <Python.h>\n"
        include = "import sysconfig; print(sysconfig.get_paths()['include'])"
        include = subprocess.check_output(["python3", "-c", include], text=True).strip()
        command = ["g++", "-E", "-P", "-x", "c++", f"-I{include}", "-"]
        stable = set(re.findall(r"\w+", subprocess.check_output(command, input=text, text=True)))
        # And a function that every CPython has.
        stable.add("PyGILState_Check")
        for path in self.package.glob("*.abi3.so"):
            listed = subprocess.check_output(["nm", "-D", "--undefined-only", path], text=True)
            used = set(re.findall(r" U (_?Py\w+)", listed))
            self.assertGreater(len(used), 20)
            self.assertEqual(used - stable, set(), path.name)


class ReproducibleTest(WheelCase):
    def test_a_native_part_that_is_compiled_again_is_equal(self):
        choose = "choose_torch_python; choose_libtorch; choose_cuda"
        command = ["bash", "-c", f'source "$0"; {choose}; echo "$CUDA_HOME"']
        cuda = subprocess.check_output([*command, ROOT / "deploy/common.sh"], text=True)
        *_, version = doors_wheel.supported()[0].values()
        include = bare_root.CACHE / f"torch-headers/{version}/include"
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.check_output(
                [ROOT / "deploy/native_part", "--into", f"{folder}/parts",
                 "--cuda", f"{cuda.strip()}/include", include],
                env={**os.environ, "RAVENSTORE_CACHE": folder}, text=True,
            )  # fmt: skip
            for path in map(pathlib.Path, made.split()):
                self.assertEqual(path.read_bytes(), (self.package / path.name).read_bytes())

    def test_two_of_one_tree_are_equal(self):
        if os.environ.get("RAVENSTORE_WHEEL"):
            self.skipTest("the wheel is one that was there")
        with tempfile.TemporaryDirectory() as into:
            again = doors_wheel.make_wheel(pathlib.Path(into))
            self.assertEqual(again.read_bytes(), self.wheel.read_bytes())
            times = {info.date_time for info in zipfile.ZipFile(again).infolist()}
        self.assertEqual(len(times), 1)


class BareRootTest(WheelCase):
    """Without a compiler, a network, or rights."""

    def check_without_torch(self, release):
        said = self.in_root(release, WITHOUT_TORCH)
        self.assertIn("ravenstore.offload() needs PyTorch: No module named 'torch'", said)
        self.assertEqual(len(re.findall(r"^\d+\.\d+\.\d+$", said, re.M)), len(PROGRAMS), said)
        self.assertIn("backend host", said)
        self.assertIn("a job ran", said)
        doctor = json.loads(said.splitlines()[-1])
        self.assertTrue(doctor["healthy"], said)
        (clusters,) = [row for row in doctor["findings"] if row["check"] == "for clusters"]
        self.assertRegex(clusters["found"], r"missing: .*libucp\.so\.0")

    def test_without_pytorch_on_debian_12(self):
        self.check_without_torch("bookworm")

    def test_without_pytorch_on_debian_13(self):
        self.check_without_torch("trixie")

    def test_without_pytorch_on_ubuntu_22_04(self):
        self.check_without_torch("jammy")

    def test_an_unknown_newer_pytorch_is_refused_in_words(self):
        files = {"torch/__init__.py": STUB, "ask.py": ASK_FOR_PART}
        said = self.in_root("trixie", "PYTHONPATH=/files python /files/ask.py", files=files)
        minors = ", ".join(doors_wheel.supported()[0])
        self.assertIn(f"no native part for PyTorch 2.99.0 (only for {minors}): ", said)
        self.assertIn("a newer one may know this", said)

    def check_first_example(self, release):
        """doors.pip_s, and which way it took."""
        try:
            seconds, detail = doors_wheel.pip_seconds(release, self.wheel, fetch=True)
        except bare_root.Missing as error:
            self.skipTest(f"no bare {release}: {error}")
        print(f"doors.pip_s.{release}: {seconds:.1f} s; {detail}", flush=True)
        self.assertLessEqual(seconds, doors_wheel.PIP_SECONDS)
        self.assertIn("way allocator", detail)

    def test_the_first_example_on_debian_12(self):
        self.check_first_example("bookworm")

    def test_the_first_example_on_debian_13(self):
        self.check_first_example("trixie")

    def test_the_first_example_on_ubuntu_22_04(self):
        self.check_first_example("jammy")

    def test_the_first_example_on_ubuntu_24_04(self):
        self.check_first_example("noble")


class TorchTest(WheelCase):
    """The newest PyTorch; deploy/torch_versions has the others."""

    def setUp(self):
        *_, version = doors_wheel.supported()[0].values()
        self.part = "_torch_" + version.rpartition(".")[0].replace(".", "_")
        self.python = doors_wheel.torch_python(version)
        if self.python is None:
            self.skipTest(f"no PyTorch {version} in the cache: deploy/setup --for test")

    def test_the_packages_tests_pass(self):
        self.assertIsNone(doors_wheel.failure_with(self.python, self.folder))

    def symbols(self, path, which):
        command = ["nm", "--dynamic", f"--{which}-only", "--without-symbol-versions", path]
        listed = subprocess.check_output(command, text=True)
        return {line.split()[-1] for line in listed.splitlines() if " w " not in line}

    def test_a_pytorch_without_cuda_has_all_that_is_asked_of_it(self):
        libraries = self.python.parent.parent.glob("lib/python3*/site-packages/torch/lib")
        (folder,) = libraries
        has = set()
        for name in doors_wheel.TORCH:
            has |= self.symbols(folder / name, "defined")
        asked = self.symbols(self.package / f"{self.part}.abi3.so", "undefined")
        of_torch = {name for name in asked if re.search("2at|3c10|5torch|THP", name)}
        self.assertGreater(len(of_torch), 40)
        self.assertEqual(of_torch - has, set())
        self.assertFalse({name for name in asked if "cuda" in name.lower()})


if __name__ == "__main__":
    xml_main.main()
