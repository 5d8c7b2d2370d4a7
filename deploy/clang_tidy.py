#!/usr/bin/python3
"""Runs clang-tidy on every C++ source but the tests.

A file that passed is remembered by the contents of everything it includes from this tree, so that
a second run looks only at what changed. Prints complaints and appends the counts to the results
file (see test_report.py).
"""

import argparse
import hashlib
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import test_report

# clang 14 rejects libtorch's headers in C++20; the next one that was tried does not.
READS_LIBTORCH = 19
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include"
LIBTORCH = (os.environ.get("LIBTORCH") or "/usr") + "/include"


def compiler_flags(root: pathlib.Path, bazel_bin: str) -> list[str]:
    flags = ["-std=c++20", f"-I{root}", f"-I{bazel_bin}", "-DSPDLOG_FMT_EXTERNAL"]
    flags += ["-DSPDLOG_HEADER_ONLY", "-DFMT_HEADER_ONLY"]
    return flags + [f"-isystem{CUDA}"]


def libtorch_flags() -> list[str]:
    """Only for the files that use it: a wheel also has the headers of an old protobuf."""
    folders = [LIBTORCH, LIBTORCH + "/torch/csrc/api/include"]
    # The system's own folder is searched anyway, and last.
    return [f"-isystem{folder}" for folder in folders if folder != "/usr/include"]


def sources(root: pathlib.Path) -> list[pathlib.Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", "*.cc", ":!tests", ":!third_party"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [path for path in map(root.joinpath, sorted(set(listed))) if path.exists()]


def included(root: pathlib.Path, source: pathlib.Path, flags: list[str]) -> list[str]:
    """What `source` includes, itself first, without the system's; also what was not found."""
    listed = subprocess.run(
        ["g++", "-MM", "-MG", *flags, str(source)], cwd=root, capture_output=True, text=True
    )
    return listed.stdout.replace("\\\n", " ").split()[1:]


def fingerprint(root: pathlib.Path, names: list[str], flags: list[str]) -> str:
    digest = hashlib.sha256((root / ".clang-tidy").read_bytes())
    digest.update("\0".join([VERSION, *flags]).encode())
    for name in names:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:24]


def uses_libtorch(root: pathlib.Path, names: list[str]) -> bool:
    pattern = re.compile(r"#include <(torch|ATen|c10)/")
    return any(pattern.search((root / name).read_text()) for name in names)


# What may be missing on a machine, what would be there, and how clang says so.
MAY_BE_MISSING = [
    ("the CUDA headers", CUDA + "/cuda.h", r"'(cuda\w*|nvml)\.h' file not found"),
    (
        "libtorch",
        LIBTORCH + "/torch/csrc/api/include/torch/torch.h",
        r"'(torch|ATen|c10)/\S+' file not found",
    ),
]
VERSION = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True).stdout
MAJOR = int((re.search(r"version (\d+)", VERSION) or [0, 0])[1])


def check(root, source, flags, stamps) -> tuple[str, str]:
    """Returns ("passed" | "failed" | "skipped", words)."""
    names = included(root, source, flags)
    found = [name for name in names if (root / name).exists()]
    if MAJOR < READS_LIBTORCH and uses_libtorch(root, found or [str(source)]):
        return "skipped", f"clang-tidy {MAJOR} does not read libtorch's headers in C++20"
    if uses_libtorch(root, found or [str(source)]):
        flags = flags + libtorch_flags()
        names = included(root, source, flags)
        found = [name for name in names if (root / name).exists()]
    stamp = stamps / fingerprint(root, names, flags) if names and found == names else None
    if stamp and stamp.exists():
        return "passed", ""
    command = ["clang-tidy", "--quiet", str(source), "--", *flags, "-Wno-everything"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    words = run.stdout + run.stderr
    for what, header, complaint in MAY_BE_MISSING:
        if not os.path.exists(header) and re.search(complaint, words):
            return "skipped", f"{what} could not be had"
    if run.returncode:
        return "failed", words
    if stamp:
        stamp.touch()
    return "passed", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--bazel-bin", required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    stamps = options.cache / "clang-tidy"
    stamps.mkdir(parents=True, exist_ok=True)
    flags = compiler_flags(options.root, options.bazel_bin)
    files = sources(options.root)
    results = test_report.Stage("clang-tidy")

    def one(source):
        return source, check(options.root, source, flags, stamps)

    with ThreadPoolExecutor(options.jobs) as pool:
        for done, (source, (verdict, words)) in enumerate(pool.map(one, files), 1):
            name = str(source.relative_to(options.root))
            results.add(verdict, name, words if verdict == "skipped" else "")
            if verdict == "failed":
                print(words, flush=True)
            if done % 10 == 0 or done == len(files):
                print(f"  clang-tidy {done}/{len(files)}", flush=True)
    results.append_to(options.results)
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
