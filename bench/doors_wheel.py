#!/usr/bin/env python3
"""Installing the wheel and nothing else: the time from `pip install` to README's first example,
the PyTorches it works with, and the glibc it needs.

    bench/doors_wheel.py [--wheel FILE] [--fetch]

Makes the wheel (deploy/wheel) unless one is named, here or by $RAVENSTORE_WHEEL. Prints figures,
one JSON object a line. --fetch: what deploy's cache lacks of PyTorches is fetched, 3 GB each, and
deleted again but for those of other Pythons.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent

import bare_root  # noqa: E402

GLIBC, GLIBCXX = (2, 34), (3, 4, 29)
# What a wheel for manylinux may need of the system, and what PyTorch has loaded before.
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
OURS = {"libravenstore.so"}
TORCH = {"libtorch_python.so", "libtorch_cpu.so", "libc10.so"}
TORCH_CUDA = {"libc10_cuda.so", "libc10.so"}
# Python: (the last PyTorch that there is for it, what else that wants).
LAST_FOR = {"3.10": ("2.14.1", ["numpy==2.2.6", "nvidia-curand"])}
# Those of the package's tests that say most of a native part in little time.
TESTS = ("offload_training_test", "offload_life_test", "offload_faults_test", "regions_test")
PIP_SECONDS = 60
HANGS_AFTER = 600


# --- The wheel ---


def make_wheel(into):
    """The path of the wheel that $RAVENSTORE_WHEEL names, else of a new one."""
    if os.environ.get("RAVENSTORE_WHEEL"):
        return pathlib.Path(os.environ["RAVENSTORE_WHEEL"])
    command = [ROOT / "deploy/wheel", "--into", into]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return pathlib.Path(made.stdout.splitlines()[-1])


@contextlib.contextmanager
def unpacked(wheel):
    """A folder with its files; they may be run."""
    with tempfile.TemporaryDirectory(prefix="raven-wheel-") as folder:
        with zipfile.ZipFile(wheel) as files:
            for info in files.infolist():
                path = pathlib.Path(files.extract(info, folder))
                path.chmod(info.external_attr >> 16 & 0o777 or 0o644)
        yield pathlib.Path(folder)


def elf_files(folder):
    """Programs and libraries in it, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.open("rb").read(4) == b"\x7fELF":
            yield path


def needs(path):
    """({library}, {"GLIBC": the highest version, ...}) of a program or a library."""
    said = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True)
    libraries = set(re.findall(r"NEEDED +(\S+)", said.stdout))
    versions = collections.defaultdict(tuple)
    # Of the versions that it needs; those that a library defines stand elsewhere.
    wanted = said.stdout.partition("Version References:")[2]
    for name, version in re.findall(r" (\w+)_(\d+(?:\.\d+)*)$", wanted, re.M):
        versions[name] = max(versions[name], tuple(int(part) for part in version.split(".")))
    return libraries, versions


def symbols_figure(folder):
    """The highest versions of all files."""
    all_versions = [needs(path)[1] for path in elf_files(folder)]
    glibc = max(versions["GLIBC"] for versions in all_versions)
    glibcxx = max(versions["GLIBCXX"] for versions in all_versions)
    return figure(
        "doors.symbols", float("{}.{}".format(*glibc)), "GLIBC", 2.34,
        glibc <= GLIBC and glibcxx <= GLIBCXX,
        f"GLIBCXX {'.'.join(map(str, glibcxx))}, at most 3.4.29; {len(all_versions)} files",
    )  # fmt: skip


def figure(name, value, unit, target, ok, detail=""):
    return {
        "name": name, "value": value, "unit": unit, "bound": None, "target": target, "ok": ok,
        "machine": f"{os.cpu_count()} cores", "detail": detail,
    }  # fmt: skip


# --- PyTorch ---


@functools.cache
def supported():
    """{minor: version} of the PyTorches, of deploy/common.sh."""
    command = 'source "$0" && echo "${TORCH_VERSIONS[@]} ${TORCH_WHEELS[0]}"'
    asked = subprocess.run(
        ["bash", "-c", command, ROOT / "deploy/common.sh"],
        capture_output=True,
        text=True,
        check=True,
    )
    *versions, numpy = asked.stdout.split()
    return {version.rpartition(".")[0]: version for version in versions}, numpy


def torch_python(version):
    """deploy/setup's Python with that PyTorch, or None."""
    python = bare_root.CACHE / f"torch-{version}/bin/python3"
    return python if python.exists() else None


def torch_folders(python, fetch):
    """The folders with the newest PyTorch for a Python "3.13". Raises Missing.

    Only PyTorch itself and numpy are for one Python: the rest is that of deploy/setup's.
    """
    versions, numpy = supported()
    newest = list(versions.values())[-1]
    version, others = LAST_FOR.get(python, (newest, [numpy]))
    base = bare_root.CACHE / f"torch-{newest}"
    (rest, *_) = [*base.glob("lib/python3*/site-packages"), None]
    if rest is None:
        raise bare_root.Missing(f"no {base}: deploy/setup --for test fetches it")
    if rest.parent.name == f"python{python}":
        return [rest]
    own = base.with_name(f"torch-{version}-cp{python.replace('.', '')}")
    if not own.exists():
        if not fetch:
            raise bare_root.Missing(f"no {own}: bench/doors_wheel.py --fetch fetches it")
        part = own.with_name(own.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        command = [
            base / "bin/python3",
            "-m",
            "pip",
            "install",
            "-q",
            "--no-cache-dir",
            "--no-deps",
        ]
        command += ["--only-binary", ":all:", "--python-version", python, "--target", part]
        if subprocess.run([*command, f"torch=={version}", *others]).returncode:
            shutil.rmtree(part, ignore_errors=True)
            raise bare_root.Missing(f"torch=={version} for Python {python} cannot be fetched")
        # PyTorch finds CUDA's libraries next to itself. Hard links avoid a second copy on the disk.
        shutil.copytree(rest / "nvidia", part / "nvidia", copy_function=os.link, dirs_exist_ok=True)
        part.rename(own)
    return [own, rest]


# --- In a bare system ---

# What README's first example takes for granted, and the loop that it leaves as it is.
PREAMBLE = """
import time
begin = time.monotonic()
import torch
imported = time.monotonic() - begin
import ravenstore
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU())
optimizer = torch.optim.AdamW(model.parameters())
"""
END = """
for _ in range(2):
    model(torch.randn(4096, 1024)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("SECONDS_OF_IMPORT", imported)
print("WAY", ravenstore.explain().way)
"""


def first_example():
    """README's, as it stands there."""
    blocks = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    return next(block for block in blocks if "ravenstore." in block)


INSTALL = """
python3 -m venv venv
printf '%s\n' $TORCH >$(echo venv/lib/python3*/site-packages)/torch.pth
begin=$EPOCHREALTIME
venv/bin/pip install -q --no-index --disable-pip-version-check /wheel/*.whl
export PATH=$PWD/venv/bin:$PATH
"""


def in_root(release, wheel, script, folders=(), files=()):
    """What the script prints in a bare system, once the wheel is installed. `folders`: behind those
    where its Python looks for packages, `files`: {name: text} in /files."""
    with tempfile.TemporaryDirectory(prefix="raven-doors-") as outside:
        outside = pathlib.Path(outside)
        outside.chmod(0o755)
        for name, text in dict(files).items():
            (outside / name).parent.mkdir(parents=True, exist_ok=True)
            (outside / name).write_text(text)
        mounts = {str(wheel.resolve()): f"/wheel/{wheel.name}", str(outside): "/files"}
        places = [f"/torch{i}" for i in range(len(folders))]
        mounts |= {str(folder): place for folder, place in zip(folders, places, strict=True)}
        return bare_root.run(release, INSTALL + script, mounts, HANGS_AFTER, TORCH=" ".join(places))


def pip_seconds(release, wheel, fetch):
    """(seconds, their detail) of the way from the wheel to README's first example."""
    folders = torch_folders(bare_root.RELEASES[release][1], fetch)
    files = {"first.py": PREAMBLE + first_example() + END}
    if len(folders) > 1:
        # That of another Python, whose library would crash this one. PyTorch does without.
        files["triton.py"] = 'raise ImportError("it is for another Python")\n'
    said = in_root(
        release,
        wheel,
        "python /files/first.py; echo END $begin $EPOCHREALTIME; ! command -v g++ gcc cc",
        folders,
        files,
    )
    begin, end = map(float, re.search(r"^END (\S+) (\S+)$", said, re.M).groups())
    imported = float(re.search(r"^SECONDS_OF_IMPORT (\S+)$", said, re.M)[1])
    way = re.search(r"^WAY (.+)$", said, re.M)[1]
    python = bare_root.RELEASES[release][1]
    detail = f"Python {python}, way {way}; PyTorch's import took {imported:.1f} s more"
    return end - begin - imported, detail


def pip_figures(wheel, fetch):
    for release in bare_root.RELEASES:
        name = f"doors.pip_s.{release}"
        try:
            seconds, detail = pip_seconds(release, wheel, fetch)
        except bare_root.Missing as error:
            yield figure(name, None, "s", PIP_SECONDS, None) | {"skipped": str(error)}
            continue
        except RuntimeError as error:
            yield figure(name, None, "s", PIP_SECONDS, False, str(error)[-500:])
            continue
        ok = seconds <= PIP_SECONDS and "way allocator" in detail
        yield figure(name, round(seconds, 2), "s", PIP_SECONDS, ok, detail)


# --- With each PyTorch ---


def failure_with(python, folder, tests=TESTS):
    """None if the package's tests pass with what was unpacked in `folder`; else what they said."""
    with tempfile.TemporaryDirectory(prefix="rvt-", dir="/tmp") as tree:
        tree = pathlib.Path(tree)
        # As a checkout whose package is the wheel's, and which has built nothing.
        (tree / "python").mkdir()
        (tree / "python/ravenstore").symlink_to(folder / "ravenstore")
        shutil.copytree(ROOT / "tests/python", tree / "tests/python")
        for name in ("tidy", "timing"):
            (tree / "tests" / name).symlink_to(ROOT / "tests" / name)
        for test in tests:
            environment = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith("RAVENSTORE")
            }
            environment |= {"RAVENSTORE_BIN": str(tree / "python/ravenstore")}
            environment |= {"OFFLOAD_WAY": "allocator"}
            done = subprocess.run(
                [python, f"tests/python/{test}.py"], cwd=tree, env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANGS_AFTER,
            )  # fmt: skip
            if done.returncode:
                return f"{test}: {done.stdout[-3000:]}"
    return None


@contextlib.contextmanager
def borrowed_python(version, fetch):
    """torch_python; with `fetch` one that is deleted again where there was none."""
    python = torch_python(version)
    if python or not fetch:
        yield python
        return
    subprocess.run([ROOT / "deploy/setup", "--torch", version], stdout=sys.stderr)
    try:
        yield torch_python(version)
    finally:
        shutil.rmtree(bare_root.CACHE / f"torch-{version}", ignore_errors=True)


def torch_figure(folder, fetch):
    """The PyTorches that work with the wheel: those in deploy/setup's cache, or all."""
    works, fails, absent = [], {}, []
    for minor, version in supported()[0].items():
        with borrowed_python(version, fetch) as python:
            if python is None:
                absent.append(minor)
            elif said := failure_with(python, folder):
                print(said, file=sys.stderr)
                fails[minor] = said.partition(":")[0]
            else:
                works.append(minor)
    words = [f"with {', '.join(works)}"] if works else []
    words += [f"NOT with {minor} ({test})" for minor, test in fails.items()]
    if absent:
        words.append(f"not in the cache (deploy/setup --torch VERSION): {', '.join(absent)}")
    all_of_them = len(supported()[0])
    ok = False if fails else None if absent else True
    return figure("doors.torch_versions", len(works), "", all_of_them, ok, "; ".join(words))


def figures(wheel, folder, fetch):
    """All of them, as they are measured; the wheel is unpacked in `folder`."""
    megabytes = wheel.stat().st_size / 1e6
    yield figure("doors.wheel_mb", round(megabytes, 1), "MB", 60, megabytes <= 60)
    yield symbols_figure(folder)
    yield from pip_figures(wheel, fetch)
    yield torch_figure(folder, fetch)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=pathlib.Path)
    parser.add_argument("--fetch", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raven-wheel-") as into:
        wheel = options.wheel or make_wheel(into)
        with unpacked(wheel) as folder:
            for line in figures(wheel, folder, options.fetch):
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
