"""Tests of the Python package: unittest files, NAME.py beside the BUILD file."""

load("//third_party:full_test.bzl", "full_sh_test")
load("@torch_python//:defs.bzl", "TORCH_PYTHON_COMPATIBLE")

def python_test(
        name,
        script = None,
        torch = False,
        native_part = False,
        daemon = True,
        size = "medium",
        data = [],
        tags = [],
        short = None,
        **kwargs):
    """Runs `script` (NAME.py), with the Python that has PyTorch if `torch`, else the system's.

    daemon: it starts ravenstored. Without, a change of the daemon does not run it again.
    native_part: it needs ravenstore._torch, and is skipped where that cannot be built.
    short: the cases that deploy/test runs; all run in deploy/test --full (see full_test.bzl).
    """
    script = script or name + ".py"
    data = data + [
        "harness.py",
        "//client:libravenstore.so",
        "//client:ravenstore.h",
        "//python:package",
        "//tests/tidy:xml_main.py",
        "//tests/timing:timing.py",
    ]
    if daemon:
        data.append("//daemon:ravenstored")
    if native_part:
        data.append("//python:native_part")
    if torch:
        kwargs["srcs"] = ["@torch_python//:run.sh"]
        kwargs["args"] = ["$(location %s)" % script]
        kwargs["target_compatible_with"] = TORCH_PYTHON_COMPATIBLE
        data = data + [script]
        tags = tags + ["torch"]
    else:
        kwargs["srcs"] = [script]
    if short == None:
        native.sh_test(name = name, size = size, data = data, tags = tags + ["notsan"], **kwargs)
    else:
        full_sh_test(
            name = name,
            short = short,
            size = size,
            data = data,
            tags = tags + ["notsan"],
            **kwargs
        )
