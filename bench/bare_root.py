"""Bare systems to install into: what debootstrap makes, with Python and pip and nothing of a build.

Each is fetched once and kept in deploy's cache. A command runs on a layer over it that is forgotten
with the command.
"""

import os
import pathlib
import shutil
import subprocess

CACHE = pathlib.Path(
    os.environ.get("RAVENSTORE_CACHE") or pathlib.Path.home() / ".cache/ravenstore"
)
PACKAGES = "python3,python3-pip,python3-venv"
# Release: its components, its Python. The mirror is the one that debootstrap knows for it.
RELEASES = {
    "bookworm": ("main", "3.11"),
    "trixie": ("main", "3.13"),
    "jammy": ("main,universe", "3.10"),
    "noble": ("main,universe", "3.12"),
}
# The newest that an older debootstrap knows is made as its forerunner is.
FORERUNNER = {"noble": "jammy"}
FETCH_SECONDS = 900
# Bazel's has no administrator's programs.
PATH = os.environ.get("PATH", "/bin:/usr/bin") + ":/usr/sbin:/sbin"


class Missing(Exception):
    """It cannot be had here, and why."""


def _last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


def folder(release):
    """Its root folder, fetched if it is not there. Raises Missing."""
    root = CACHE / "roots" / release
    if root.exists():
        return root
    if os.geteuid():
        raise Missing("only root makes a bare system")
    for tool, package in (("systemd-nspawn", "systemd-container"), ("debootstrap", "debootstrap")):
        if not shutil.which(tool, path=PATH):
            raise Missing(f"there is no {tool} here (package {package})")
    components, _ = RELEASES[release]
    # Only a whole one gets the name.
    part = root.with_name(f"{release}.{os.getpid()}")
    part.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}"]
    command += [f"--components={components}", release, part, ""]
    scripts = pathlib.Path("/usr/share/debootstrap/scripts")
    if not (scripts / release).exists():
        command.append(scripts / FORERUNNER.get(release, release))
    keys = pathlib.Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
    if "universe" in components and not keys.exists():
        command.insert(1, "--no-check-gpg")
    try:
        done = subprocess.run(
            command, env={**os.environ, "PATH": PATH}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=FETCH_SECONDS,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"debootstrap: {_last_line(done.stdout)}")
        shutil.rmtree(part / "var/cache/apt", ignore_errors=True)
        part.rename(root)
    except subprocess.TimeoutExpired:
        raise Missing(f"debootstrap took more than {FETCH_SECONDS} s") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return root


def run(release, script, mounts, timeout, as_root=False, **variables):
    """What a shell's script prints there. It runs as an unprivileged user without a network, or
    `as_root` with one. `mounts`: {path here: path there}, read-only. Raises Missing where there is
    no such system, RuntimeError where the script fails."""
    root = folder(release)
    words = [
        "systemd-nspawn", "--quiet", "--directory", root, "--volatile=overlay", "--register=no",
        "--keep-unit", "--as-pid2", "--console=pipe", f"--machine=raven-{release}-{os.getpid()}",
    ]  # fmt: skip
    words += ["--resolv-conf=copy-host"] if as_root else ["--private-network", "--user=nobody"]
    words += [f"--bind-ro={here}:{there}" for here, there in mounts.items()]
    words += [f"--setenv={name}={value}" for name, value in variables.items()]
    words += ["--setenv=HOME=/tmp", "--chdir=/tmp", "bash", "-euc", script]
    done = subprocess.run(
        words, env={"PATH": PATH, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}, text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"{release}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        )
    return done.stdout
