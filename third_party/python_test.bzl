"""Tests of the Python package: unittest files, NAME.py beside the BUILD file."""

load("@torch_python//:defs.bzl", "TORCH_PYTHON_COMPATIBLE")

def python_test(
        name,
        script = None,
        torch = False,
        native_part = False,
        size = "medium",
        data = [],
        tags = [],
        **kwargs):
    """Runs `script` (NAME.py), with the Python that has PyTorch if `torch`, else the system's.

    native_part: it needs ravenstore._torch, and is skipped where that cannot be built.
    """
    script = script or name + ".py"
    data = data + [
        "harness.py",
        "//client:libravenstore.so",
        "//client:ravenstore.h",
        "//daemon:ravenstored",
        "//python:package",
        "//tests/tidy:xml_main.py",
    ]
    if native_part:
        data.append("//python:_torch.so")
    if torch:
        native.sh_test(
            name = name,
            size = size,
            srcs = ["@torch_python//:run.sh"],
            args = ["$(location %s)" % script],
            data = data + [script],
            tags = tags + ["notsan", "torch"],
            target_compatible_with = TORCH_PYTHON_COMPATIBLE,
            **kwargs
        )
    else:
        native.sh_test(
            name = name,
            size = size,
            srcs = [script],
            data = data,
            tags = tags + ["notsan"],
            **kwargs
        )
