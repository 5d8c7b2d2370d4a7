"""pip install ./python from a checkout: into a fresh virtual environment, with no network. PyTorch,
pip and setuptools are those of the Python that runs this. tests/packages has the wheel for all."""

import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import tempfile
import unittest

import harness
import setuptools
import xml_main
from ravenstore import _native

OLD = ""
if int(setuptools.__version__.split(".")[0]) < 77:
    OLD = f"setuptools of {sys.executable} is older than 77, and one is not fetched here"

# What a user's shell has not set.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("RAVENSTORE", "PYTHON", "PIP_"))
}
BUILT = {"RAVENSTORE_BIN": str(harness.CARRIED or harness.BUILT)}

USE = """
import os, sys, ravenstore
assert ravenstore.__file__.startswith(sys.prefix), ravenstore.__file__
with ravenstore.Store.connect(embedded=True) as store:
    tensor = store.create("1MiB")
    tensor.memory()[:4] = b"abcd"
    tensor.put()
    with tensor.get() as view:
        assert bytes(view.memory()[:4]) == b"abcd"
assert ravenstore.embedded.find_daemon().startswith(sys.prefix)
print("used")
"""

# A native part that needs its sources, PyTorch's libraries and libravenstore.so.
MODULE = """
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <c10/core/DeviceType.h>
#include "client/ravenstore.h"
int FromBlocks();
int FromTorch();
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_torch", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__torch() {
  PyObject* made = PyModule_Create(&module);
  PyModule_AddIntConstant(made, "sum", FromBlocks() + FromTorch());
  PyModule_AddStringConstant(made, "device", c10::DeviceTypeName(c10::DeviceType::CPU).c_str());
  PyModule_AddStringConstant(made, "version", ravenstore_version());
  return made;
}
"""

SOURCES = {
    "python/native/module.cc": MODULE,
    "python/native/torch_python.cc": "",
    "client/blocks.cc": "int FromBlocks() { return 40; }\n",
    "client/torch_allocator.cc": "",
    "client/torch_allocator_cuda.cc": "",
    "client/torch_regions.cc": "",
    "client/torch_saved.cc": "int FromTorch() { return 2; }\n",
}


@unittest.skipIf(OLD, OLD)
class InstallTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="raven-")))
        self.venv = self.folder / "venv"
        self.run_ok([sys.executable, "-m", "venv", "--without-pip", self.venv], CLEAN)
        self.python = self.venv / "bin/python"
        place = self.run_ok(
            [self.python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], CLEAN
        )
        folders = "\n".join(site.getsitepackages()) + "\n"
        pathlib.Path(place.strip(), "borrowed.pth").write_text(folders)

    def run_ok(self, command, environment, **options):
        done = subprocess.run(
            [str(word) for word in command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def pip_install(self, what, **variables):
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir", "-v"]
        command = [self.python, "-m", "pip", "install", *options, what]
        return self.run_ok(command, {**CLEAN, **BUILT, **variables})

    def checkout(self):
        """A small one, with a native part that is quickly built."""
        root = self.folder / "checkout"
        shutil.copytree(harness.ROOT / "python/ravenstore", root / "python/ravenstore")
        names = [f"python/{name}" for name in ("pyproject.toml", "setup.py", "native/part.lds")]
        names += [f"client/{name}" for name in ("ravenstore.h", "torch_version.h")]
        names += [f"deploy/{name}" for name in ("wheel", "native_part", "common.sh", "ravenrun")]
        for name in (*names, "deploy/torch_errors/sitecustomize.py"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(harness.ROOT / name, root / name)
        for name, text in SOURCES.items():
            (root / name).write_text(text)
        return root

    def test_an_install_from_a_checkout_works_and_leaves_it_clean(self):
        root = self.checkout()
        before = sorted(root.rglob("*"))
        words = self.pip_install(root / "python", RAVENSTORE_WITHOUT_TORCH="1")
        self.assertIn("RAVENSTORE_WITHOUT_TORCH=1: without the native part", words)
        self.assertEqual(sorted(root.rglob("*")), before)
        self.assertEqual(self.run_ok([self.python, "-c", USE], CLEAN, cwd="/"), "used\n")

    def test_the_native_part_is_built_for_the_pytorch_that_is_there(self):
        words = self.pip_install(self.checkout() / "python")
        self.assertIn("with the native part for PyTorch 2.", words)
        text = (
            "import torch; from ravenstore import _native\n"
            "t = _native.find(torch.__version__); print(t.sum, t.device, t.version)"
        )
        said = self.run_ok([self.python, "-c", text], CLEAN, cwd="/")
        self.assertEqual(said, "42 CPU 0.1.0\n")

    def test_the_programs_become_commands(self):
        self.pip_install(self.checkout() / "python", RAVENSTORE_WITHOUT_TORCH="1")
        for name in ("ravenctl", "ravenrun", "ravensim", "ravenstored"):
            said = self.run_ok([self.venv / "bin" / name, "--version"], CLEAN, cwd="/")
            self.assertEqual(said, "0.1.0\n", name)

    def put_torch(self, text):
        """A torch of that text in the place of the one that the Python imports."""
        folder = self.folder / "another"
        folder.mkdir()
        (folder / "torch.py").write_text(text)
        (pth,) = self.venv.rglob("borrowed.pth")
        pth.write_text(f"{folder}\n{pth.read_text()}")

    def build_with(self, version, **variables):
        """The result of setup.py in a Python whose PyTorch has that version."""
        self.put_torch(f'__version__ = "{version}.3+cu1"\n')
        command = [self.python, "setup.py", "build", "--build-lib", self.folder / "built"]
        return subprocess.run(
            command,
            env={**CLEAN, **variables},
            cwd=self.checkout() / "python",
            capture_output=True,
            text=True,
        )

    def test_an_unknown_newer_pytorch_gets_no_native_part_and_one_warning(self):
        done = self.build_with("2.99", **BUILT)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [line for line in done.stderr.splitlines() if "PyTorch" in line]
        self.assertEqual(len(found), 1, done.stderr)
        wanted = r"warning: PyTorch 2\.99\.3\+cu1 is newer than 2\.\d+, .* makes copies$"
        self.assertRegex(found[0], wanted)
        names = {path.name for path in (self.folder / "built").rglob("*.so")}
        self.assertIn("libravenstore.so", names)
        self.assertFalse([name for name in names if name.startswith("_torch")])

    def test_an_older_pytorch_is_refused_before_anything_is_built(self):
        done = self.build_with("2.8")
        self.assertEqual(done.returncode, 1, done.stderr)
        wanted = r"PyTorch 2\.8\.3\+cu1 is too old: .*offload\(\) needs 2\.9 or newer"
        self.assertRegex(done.stderr, wanted)
        self.assertIn("RAVENSTORE_WITHOUT_TORCH=1", done.stderr)
        # The checkout has no deploy/bazel, which would be asked for next.
        self.assertNotIn("is no checkout", done.stderr)

    def test_the_package_knows_the_bounds_of_the_header(self):
        text = (harness.ROOT / "client/torch_version.h").read_text()
        found = re.findall(r"#define RAVENSTORE_TORCH_(?:OLDEST|NEWEST) (\d)(\d\d)\n", text)
        bounds = [(int(major), int(minor)) for major, minor in found]
        self.assertEqual(bounds, [_native.OLDEST, _native.NEWEST])

    def test_without_pytorch_it_is_left_out_in_words(self):
        self.put_torch("raise ImportError('no torch today')\n")
        words = self.pip_install(self.checkout() / "python")
        self.assertRegex(words, "without the native part for PyTorch: no torch today; install Py")
        self.assertEqual(self.run_ok([self.python, "-c", USE], CLEAN, cwd="/"), "used\n")

    def test_a_folder_that_is_no_checkout_is_reported(self):
        root = self.checkout()
        shutil.rmtree(root / "deploy")
        command = [self.python, root / "python/setup.py", "--version"]
        environment = {**CLEAN, "RAVENSTORE_WITHOUT_TORCH": "1"}
        self.run_ok(command, environment, cwd=self.folder / "checkout/python")
        done = subprocess.run(
            [*map(str, command[:2]), "build"],
            env=environment,
            cwd=self.folder / "checkout/python",
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("is no checkout of Ravenstore", done.stderr)


if __name__ == "__main__":
    xml_main.main()
