"""@torch_python: a Python whose PyTorch the package's tests run with, and its headers.

$RAVENSTORE_TORCH_PYTHON names it (deploy's commands choose it, see choose_torch_python in
deploy/common.sh), else it is the `python3` that imports a PyTorch which is new enough. Without one,
or with RAVENSTORE_WITHOUT_TORCH=1, the targets that need it are skipped.
"""

_ASK = """
import sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit(1)
import numpy, torch
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
    sys.exit(1)
print(sys.executable)
print(sys.version.split()[0])
import importlib.metadata as m
models = ("accelerate", "torchvision", "transformers")
found = [d.name + " " + d.version for d in m.distributions() if d.name in models]
print(" ".join([torch.__version__, *sorted(found)]))
print(sysconfig.get_paths()["include"])
"""

_RUN = """#!/bin/sh
# CPython {python}, PyTorch {torch}: a test's result of another version is never taken from a cache.
exec {program} "$@"
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])
exports_files(["run.sh"])
cc_library(
    name = "headers",
    defines = ['RAVENSTORE_PYTHON_VERSION=\\\\"{python}\\\\"'],
    includes = ["include"],
    textual_hdrs = glob(["include/**/*.h"]),
)
"""

_MISSING_BUILD = """
package(default_visibility = ["//visibility:public"])
constraint_setting(name = "torch_python_setting")
constraint_value(name = "torch_python_present", constraint_setting = ":torch_python_setting")
exports_files(["run.sh"])
cc_library(name = "headers")
"""

def _find(ctx):
    if ctx.os.environ.get("RAVENSTORE_WITHOUT_TORCH", "") == "1":
        return None
    chosen = ctx.os.environ.get("RAVENSTORE_TORCH_PYTHON", "")
    python = chosen or ctx.which("python3")
    if not python:
        return None
    found = ctx.execute([python, "-c", _ASK], timeout = 120)
    if found.return_code == 0:
        return found.stdout.strip().split("\n")[-4:]
    if chosen:
        fail(("RAVENSTORE_TORCH_PYTHON=%s is no Python of 3.11 or newer with numpy and PyTorch " +
              "2.9 or newer: %s") % (chosen, found.stderr))
    return None

def _impl(ctx):
    found = _find(ctx)
    if found:
        program, python, torch, include = found
        has_headers = ctx.path(include + "/Python.h").exists
        if has_headers:
            ctx.symlink(include, "include")
        ctx.file("run.sh", _RUN.format(program = program, python = python, torch = torch))
        ctx.file("BUILD", _BUILD.format(python = python))
    else:
        has_headers = False
        ctx.file("run.sh", "#!/bin/sh\nexit 1\n")
        ctx.file("BUILD", _MISSING_BUILD)
    missing = ["@torch_python//:torch_python_present"]
    ctx.file("defs.bzl", "\n".join([
        # target_compatible_with of what runs with PyTorch, and of what is built for that Python.
        "TORCH_PYTHON_COMPATIBLE = %r" % ([] if found else missing),
        "TORCH_PYTHON_HEADERS = %r" % has_headers,
        "",
    ]))

torch_python_configure = repository_rule(
    implementation = _impl,
    environ = ["PATH", "RAVENSTORE_TORCH_PYTHON", "RAVENSTORE_WITHOUT_TORCH"],
    local = True,
)
