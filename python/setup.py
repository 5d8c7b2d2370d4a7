"""Builds the package from a checkout: `pip install ./python`, or deploy/wheel.

Into the package go libravenstore.so, the daemon for `embedded`, and a native part for the PyTorch
that the installing Python imports, if it has one (ravenstore/_native.py). An unknown newer PyTorch
gets none, and offload() copies then; an older one than client/torch_version.h knows is refused.

    RAVENSTORE_LIBRARY, RAVENSTORED   take these instead of building them with deploy/bazel
    RAVENSTORE_WITHOUT_TORCH=1        leave the native part out
    RAVENSTORE_TORCH_PYTHONS          more Pythons, with colons between them, of the same CPython:
                                      native parts for their PyTorches as well
"""

import atexit
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

# What the native part is made of, relative to the checkout.
NATIVE_SOURCES = ["python/native/module.cc", "client/blocks.cc", "client/torch_*.cc"]

# What goes into the package: (variable that names it, Bazel's target, place below bazel-bin).
BINARIES = [
    ("RAVENSTORE_LIBRARY", "//client:libravenstore.so", "client/libravenstore.so"),
    ("RAVENSTORED", "//daemon:ravenstored", "daemon/ravenstored"),
]

# Runs in the Python that installs: pip's build environment hides its packages from this one.
ASK_TORCH = """
import json, os, sysconfig
try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
else:
    cuda = torch.version.cuda is not None
    includes = cpp_extension.include_paths()
    neighbours = os.path.join(os.path.dirname(torch.__file__), "..", "nvidia")
    for toolkit in ("cu13", "cuda_runtime"):
        folder = os.path.normpath(os.path.join(neighbours, toolkit, "include"))
        if os.path.exists(os.path.join(folder, "cuda_runtime_api.h")):
            includes.append(folder)
            break
    else:
        cuda = cuda and os.path.exists("/usr/local/cuda/include/cuda_runtime_api.h")
        includes += ["/usr/local/cuda/include"] * cuda
    print(json.dumps({
        "version": torch.__version__,
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "cuda": cuda,
        "abi": int(torch.compiled_with_cxx11_abi()),
        "includes": includes,
        "libraries": cpp_extension.library_paths(),
    }))
"""


def say(words):
    print(f"ravenstore: {words}", file=sys.stderr, flush=True)


def binaries():
    """The paths of BINARIES; what is missing is built."""
    paths = {}
    for variable, target, place in BINARIES:
        chosen = os.environ.get(variable)
        paths[target] = pathlib.Path(chosen) if chosen else ROOT / "bazel-bin" / place
    missing = [target for target, path in paths.items() if not path.exists()]
    if missing:
        if not (ROOT / "deploy/bazel").exists():
            sys.exit(
                f"ravenstore: {ROOT} is no checkout of Ravenstore: run pip install CHECKOUT/python"
            )
        say(f"building {' '.join(missing)} with deploy/bazel")
        built = subprocess.run([str(ROOT / "deploy/bazel"), "build", *missing])
        if built.returncode != 0 or not all(path.exists() for path in paths.values()):
            sys.exit(
                "ravenstore: deploy/bazel could not build it; run deploy/setup --for install first "
                "(it installs Bazel and the headers), or name built files by RAVENSTORE_LIBRARY "
                "and RAVENSTORED"
            )
    return list(paths.values())


def native_sources():
    """The native part's sources, relative to this folder; none where they are not in the tree."""
    if not (ROOT / NATIVE_SOURCES[0]).exists():
        return []
    found = [path for pattern in NATIVE_SOURCES for path in sorted(ROOT.glob(pattern))]
    return [os.path.relpath(path, HERE) for path in found]


def torch_of(python):
    """What ASK_TORCH says there, or None with the reason said."""
    # -I: without pip's PYTHONPATH.
    asked = subprocess.run([python, "-I", "-c", ASK_TORCH], capture_output=True, text=True)
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


def torches():
    """The PyTorches to have a native part for."""
    if os.environ.get("RAVENSTORE_WITHOUT_TORCH") == "1":
        say("RAVENSTORE_WITHOUT_TORCH=1: without the native part for PyTorch")
        return []
    if not native_sources():
        say(f"without the native part for PyTorch: there is no {NATIVE_SOURCES[0]}")
        return []
    own = torch_of(sys.executable)
    found = [own] if own is not None and has_native_part(own) else []
    for python in filter(None, os.environ.get("RAVENSTORE_TORCH_PYTHONS", "").split(":")):
        other = torch_of(python)
        if other is None or other["suffix"] != sysconfig.get_config_var("EXT_SUFFIX"):
            sys.exit(f"ravenstore: {python} has no PyTorch, or is another CPython than this one")
        if has_native_part(other):
            found.append(other)
    return found


def extension(torch):
    minor = "_".join(torch["version"].split(".")[:2])
    return Extension(
        f"ravenstore._torch_{minor}",
        native_sources(),
        language="c++",
        include_dirs=[str(ROOT), *torch["includes"]],
        library_dirs=torch["libraries"],
        libraries=["torch_python", "torch", "torch_cpu", "c10"]
        + (["torch_cuda", "c10_cuda"] if torch["cuda"] else []),
        define_macros=[("_GLIBCXX_USE_CXX11_ABI", str(torch["abi"]))]
        + ([("RAVENSTORE_TORCH_CUDA", None)] if torch["cuda"] else []),
        extra_compile_args=["-std=c++20", "-fvisibility=hidden"],
        # libravenstore.so lies beside it; PyTorch's libraries are loaded by `import torch`.
        extra_link_args=[
            str(binaries()[0]),
            "-Wl,-rpath,$ORIGIN",
            "-Wl,--allow-shlib-undefined",
        ],
    )


class BuildWithBinaries(build_py):
    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            say("editable: set RAVENSTORE_LIBRARY and RAVENSTORED, nothing is copied into the tree")
            return
        package = pathlib.Path(self.build_lib) / "ravenstore"
        package.mkdir(parents=True, exist_ok=True)
        for path in binaries():
            # Bazel's outputs cannot be written, and what pip installs should be replaceable.
            shutil.copyfile(path, package / path.name)
            (package / path.name).chmod(0o755)


class ForThisMachine(Distribution):
    """Its library is of this machine's kind."""

    def has_ext_modules(self):
        return True


class WheelForAnyPython(bdist_wheel):
    """Without the native part any CPython can use it."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        return (
            (python, abi, platform) if self.distribution.ext_modules else ("py3", "none", platform)
        )


# Not into the checkout, which may be read-only and would keep what is stale.
BUILD = tempfile.mkdtemp(prefix="ravenstore-build-")
atexit.register(shutil.rmtree, BUILD, ignore_errors=True)

setup(
    distclass=ForThisMachine,
    ext_modules=[extension(torch) for torch in torches()],
    cmdclass={"build_py": BuildWithBinaries, "bdist_wheel": WheelForAnyPython},
    options={"build": {"build_base": BUILD}, "egg_info": {"egg_base": BUILD}},
)
