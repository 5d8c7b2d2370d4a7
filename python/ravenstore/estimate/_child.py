"""The process that a script runs in: python -m ravenstore.estimate._child OPTIONS SCRIPT..."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    options = json.loads(arguments[0])
    try:
        from ravenstore.estimate._script_run import Run, Stop
    except ModuleNotFoundError as error:
        words = f"{sys.executable} has no {error.name}: name the Python that the script runs with"
        Path(options["result"]).write_text(json.dumps({"refused": words}))
        return 2
    limit = options["memory_max"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        Run(options, arguments[1:]).run()
    except Stop as stop:
        return int(str(stop.code))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Threads that the script began are not waited for.
    os._exit(code)
