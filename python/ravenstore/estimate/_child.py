"""The process that a script runs in: python -m ravenstore.estimate._child OPTIONS SCRIPT..."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import TextIO


class _LastLine:
    """Whether what was written to the streams ends with a whole line."""

    def __init__(self, *streams: TextIO) -> None:
        self.is_whole = True
        for stream in streams:
            self._watch(stream)

    def _watch(self, stream: TextIO) -> None:
        write = stream.write

        def watched(text: str) -> int:
            self.is_whole = text.endswith("\n") if text else self.is_whole
            return write(text)

        stream.write = watched  # type: ignore[method-assign]


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
    last_line = _LastLine(sys.stdout, sys.stderr)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    if not last_line.is_whole:
        # What follows on the terminal is the answer.
        sys.stderr.flush()
        os.write(2, b"\n")
    # Threads that the script began are not waited for.
    os._exit(code)
