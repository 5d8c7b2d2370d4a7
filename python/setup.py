"""Builds the package from a checkout: `pip install ./python`, or deploy/wheel.

Into the package go the programs, the libraries and native parts (ravenstore/_native.py), as
deploy/wheel puts them together: those of RAVENSTORE_PACKAGE_FILES, for every machine, else those
for this one, with a native part for the PyTorch that the installing Python imports, if it has one.
An unknown newer PyTorch gets none, and offload() copies then; an older one than
client/torch_version.h knows is refused.

    RAVENSTORE_PACKAGE_FILES      the folder with all of it, for the wheel
    RAVENSTORE_BIN                a folder with what deploy/bazel would build, see deploy/wheel
    RAVENSTORE_WITHOUT_TORCH=1    leave the native part out
"""

import atexit
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

# Made by deploy/wheel for others; tests/packages looks whether it is true.
PLATFORM = "manylinux_2_34_x86_64"

# Runs in the Python that installs: pip's build environment hides its packages from this one.
ASK_TORCH = """
import json, os
try:
    import torch
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
else:
    include = os.path.join(os.path.dirname(os.path.realpath(torch.__file__)), "include")
    print(json.dumps({"version": torch.__version__, "include": include}))
"""


def say(words):
    print(f"ravenstore: {words}", file=sys.stderr, flush=True)


def torch_here():
    """What ASK_TORCH says, or None with the reason said."""
    # -I: without pip's PYTHONPATH.
    command = [sys.executable, "-I", "-c", ASK_TORCH]
    asked = subprocess.run(command, capture_output=True, text=True)
    answer = json.loads(asked.stdout.strip().splitlines()[-1]) if asked.stdout.strip() else {}
    if "version" in answer:
        return answer
    why = answer.get("missing") or asked.stderr.strip().splitlines()[-1:]
    say(f"without the native part for PyTorch: {why}; install PyTorch first to have it")
    return None


def known_torches():
    """The oldest and the newest minor version of PyTorch that the native part can be built for."""
    text = (ROOT / "client/torch_version.h").read_text()
    for name in ("OLDEST", "NEWEST"):
        major, minor = re.search(rf"#define RAVENSTORE_TORCH_{name} (\d)(\d\d)\n", text).groups()
        yield int(major), int(minor)


def has_native_part(torch):
    """Whether one can be built for that PyTorch; says why not. An older one ends the program."""
    oldest, newest = known_torches()
    version = tuple(int(part) for part in torch["version"].split(".")[:2])
    if version < oldest:
        sys.exit(
            f"ravenstore: PyTorch {torch['version']} is too old: ravenstore.offload() needs "
            f"{oldest[0]}.{oldest[1]} or newer. Install a newer PyTorch, or set "
            "RAVENSTORE_WITHOUT_TORCH=1 to install the package without its native part"
        )
    if version > newest:
        say(
            f"warning: PyTorch {torch['version']} is newer than {newest[0]}.{newest[1]}, the last "
            "that is known here: without the native part, ravenstore.offload() makes copies"
        )
        return False
    say(f"with the native part for PyTorch {torch['version']}")
    return True


def files_for_this_machine():
    """A folder with them."""
    script = ROOT / "deploy/wheel"
    if not script.exists():
        sys.exit(
            f"ravenstore: {ROOT} is no checkout of Ravenstore: run pip install CHECKOUT/python"
        )
    command = [str(script), "--files", os.path.join(BUILD, "files")]
    if os.environ.get("RAVENSTORE_WITHOUT_TORCH") == "1":
        say("RAVENSTORE_WITHOUT_TORCH=1: without the native part for PyTorch")
    else:
        torch = torch_here()
        if torch is not None and has_native_part(torch):
            command += ["--torch", torch["include"]]
    environment = {"PYTHON": sys.executable, **os.environ}
    if subprocess.run(command, env=environment).returncode != 0:
        sys.exit("ravenstore: deploy/wheel could not put together what goes into the package")
    return command[2]


class BuildWithFiles(build_py):
    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            say("editable: set RAVENSTORE_LIBRARY and RAVENSTORED, nothing is copied into the tree")
            return
        files = os.environ.get("RAVENSTORE_PACKAGE_FILES") or files_for_this_machine()
        shutil.copytree(files, pathlib.Path(self.build_lib, "ravenstore"), dirs_exist_ok=True)


class WithPrograms(Distribution):
    """They are of one kind of machine."""

    def has_ext_modules(self):
        return True


class WheelForAnyPython(bdist_wheel):
    """A native part serves every CPython, and is chosen when it is used."""

    def get_tag(self):
        made_for_others = "RAVENSTORE_PACKAGE_FILES" in os.environ
        return "py3", "none", PLATFORM if made_for_others else super().get_tag()[2]


# Not into the checkout, which may be read-only and would keep what is stale.
BUILD = tempfile.mkdtemp(prefix="ravenstore-build-")
atexit.register(shutil.rmtree, BUILD, ignore_errors=True)

setup(
    distclass=WithPrograms,
    cmdclass={"build_py": BuildWithFiles, "bdist_wheel": WheelForAnyPython},
    options={"build": {"build_base": BUILD}, "egg_info": {"egg_base": BUILD}},
)
