"""The commands that a wheel installs: each becomes the program of that name in this package."""

from __future__ import annotations

import os
import pathlib
import sys


def _exec_program(name: str) -> None:
    program = pathlib.Path(__file__).with_name(name)
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {program} cannot be run: {error.strerror}")


def ravenctl() -> None:
    """The tool of operators."""
    _exec_program("ravenctl")


def ravenrun() -> None:
    """Runs a job that knows nothing of Ravenstore."""
    _exec_program("ravenrun")


def ravensim() -> None:
    """The simulator."""
    _exec_program("ravensim")


def ravenstored() -> None:
    """The daemon."""
    _exec_program("ravenstored")
