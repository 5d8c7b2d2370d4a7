"""What a process of Python's is called where its program gives it no name."""

from __future__ import annotations

import pathlib
import sys


def program_name() -> str:
    """The name of the script or of the package that Python runs, else Python's. Workers that
    multiprocessing spawns have their parent's, which their command line does not show."""
    path = pathlib.PurePath(sys.argv[0] if sys.argv else "")
    if path.name == "__main__.py":
        return path.parent.name
    return path.name if path.name not in ("", "-c") else pathlib.PurePath(sys.executable).name
