"""@libtorch: $LIBTORCH, else the torch wheel that `python3` imports, else the distribution's.

$LIBTORCH names a folder that holds include/ and lib/: a wheel's `torch` folder, or /usr for the
distribution's package. Without any of them the targets that use it are skipped.

Only libtorch's own headers are exposed, never the whole include folder of a wheel: that also holds
the headers of an old protobuf, and a file that saw those beside a generated message of ours would
mix two versions of one class. (tests/tidy checks the targets as well, since libtorch_cpu.so also
exports protobuf's symbols.)
"""

_HEADER = "torch/csrc/api/include/torch/torch.h"

_FIND_WHEEL = """
import importlib.util, os, sys
spec = importlib.util.find_spec("torch")
if spec is None or not spec.origin:
    sys.exit(1)
import torch
print(os.path.dirname(os.path.realpath(torch.__file__)))
"""

_WHEEL_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "libtorch",
    # A string, so that objects and programs of another version are never taken from a cache.
    defines = ['RAVENSTORE_LIBTORCH_VERSION=\\\\"{version}\\\\"'],
    includes = [{includes}],
    linkopts = [
        "-L{lib}",
        "-Wl,-rpath,{lib}",
        # The wheel's own dependencies (cuDNN, NCCL, ...) are found by its rpath when it runs.
        "-Wl,--allow-shlib-undefined",
        {cuda_libs}
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
        "-pthread",
    ],
    textual_hdrs = glob([
        folder + "/**/*." + kind
        for folder in [{globs}]
        for kind in ["h", "hpp", "cuh", "inc"]
    ]),
)
"""

_DEBIAN_BUILD = """
package(default_visibility = ["//visibility:public"])

# /usr/include itself is a builtin folder of the toolchain; only torch/torch.h's is named.
cc_library(
    name = "libtorch",
    defines = ['RAVENSTORE_LIBTORCH_VERSION=\\\\"{version}\\\\"'],
    includes = ["api"],
    linkopts = ["-ltorch", "-ltorch_cpu", "-lc10", "-pthread"],
    textual_hdrs = glob(["api/**/*.h"]),
)
"""

_MISSING_BUILD = """
package(default_visibility = ["//visibility:public"])
constraint_setting(name = "libtorch_setting")
constraint_value(name = "libtorch_present", constraint_setting = ":libtorch_setting")
cc_library(name = "libtorch")
"""

def _define(text, name):
    for line in text.split("\n"):
        words = [word for word in line.split(" ") if word]
        if len(words) == 3 and words[0] == "#define" and words[1] == name:
            return words[2]
    return "0"

def _version(ctx, include):
    for header in ["torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"]:
        path = ctx.path(include + "/" + header)
        if path.exists:
            text = ctx.read(path)
            parts = ["MAJOR", "MINOR", "PATCH"]
            numbers = [_define(text, "TORCH_VERSION_" + part) for part in parts]
            if numbers[0] != "0":
                return ".".join(numbers)
    return "unknown"

def _has_headers(ctx, root):
    return ctx.path(root + "/include/" + _HEADER).exists

def _find(ctx):
    root = ctx.os.environ.get("LIBTORCH", "")
    if root:
        if not _has_headers(ctx, root):
            fail("LIBTORCH=%s holds no include/%s" % (root, _HEADER))
        return root
    python = ctx.which("python3")
    if python:
        # Importing is the honest question: a wheel without its CUDA libraries links, and fails
        # when it runs.
        found = ctx.execute([python, "-c", _FIND_WHEEL], timeout = 60)
        root = found.stdout.strip()
        if found.return_code == 0 and _has_headers(ctx, root):
            return root
    return "/usr" if _has_headers(ctx, "/usr") else None

def _quote(names):
    return ", ".join(['"%s"' % name for name in names])

def _wheel(ctx, root):
    folders = []
    for folder in ["ATen", "c10", "caffe2", "pybind11", "torch"]:
        if ctx.path(root + "/include/" + folder).exists:
            ctx.symlink(root + "/include/" + folder, "include/" + folder)
            folders.append("include/" + folder)
    includes = ["include", "include/torch/csrc/api/include"]
    cuda = ctx.path(root + "/lib/libtorch_cuda.so").exists

    # c10/cuda's headers want the CUDA runtime's, which a wheel brings as a neighbour.
    for toolkit in ["nvidia/cu13", "nvidia/cuda_runtime"]:
        neighbour = root + "/../" + toolkit + "/include"
        if cuda and ctx.path(neighbour + "/cuda_runtime_api.h").exists:
            ctx.symlink(neighbour, "cuda_include")
            folders.append("cuda_include")
            includes.append("cuda_include")
            break

    # Nothing names a symbol of these two: they register their kernels as they are loaded.
    cuda_libs = ["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda", "-Wl,--as-needed"]
    ctx.file("BUILD", _WHEEL_BUILD.format(
        cuda_libs = _quote(cuda_libs) + "," if cuda else "",
        globs = _quote(folders),
        includes = _quote(includes),
        lib = root + "/lib",
        version = _version(ctx, root + "/include"),
    ))
    return cuda

def _impl(ctx):
    root = _find(ctx)
    kind, cuda, version = "none", False, ""
    if root == "/usr":
        kind = "debian"
        version = _version(ctx, "/usr/include")
        ctx.symlink("/usr/include/torch/csrc/api/include", "api")
        ctx.file("BUILD", _DEBIAN_BUILD.format(version = version))
    elif root:
        kind = "wheel"
        version = _version(ctx, root + "/include")
        cuda = _wheel(ctx, root)
    else:
        ctx.file("BUILD", _MISSING_BUILD)
    ctx.file("defs.bzl", "\n".join([
        "LIBTORCH_KIND = %r" % kind,  # "debian", "wheel" or "none"
        "LIBTORCH_CUDA = %r" % cuda,
        "LIBTORCH_VERSION = %r" % version,
        # target_compatible_with of whatever needs libtorch: skipped where there is none.
        "LIBTORCH_COMPATIBLE = %r" % ([] if root else ["@libtorch//:libtorch_present"]),
        "",
    ]))

libtorch_configure = repository_rule(
    implementation = _impl,
    environ = ["LIBTORCH", "PATH"],
    local = True,
)
