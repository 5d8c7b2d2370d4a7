"""python -m ravenstore COMMAND. Each command is a module with a main(arguments) of its own."""

from __future__ import annotations

import importlib
import sys

import ravenstore

# Command: (module, what it does).
COMMANDS = {
    "bench": ("ravenstore.benchmark", "what the store's calls cost here, and its link's rate"),
    "demo": ("ravenstore.demo", "trains a small GPT with and without the store, and compares"),
    "doctor": ("ravenstore.doctor", "what stands in the way here, and what to do about it"),
    "estimate": ("ravenstore.estimate.__main__", "how much memory of a GPU a job will need"),
}


def main(arguments: list[str]) -> int:
    """Runs a command; its exit code, 2 for wrong usage."""
    if arguments and arguments[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[arguments[0]][0])
        code: int = module.main(arguments[1:])
        return code
    if arguments == ["--version"]:
        print(ravenstore.__version__)
        return 0
    asked = bool(arguments) and arguments[0] in ("-h", "--help")
    out = sys.stdout if asked else sys.stderr
    if arguments and not asked:
        print(f"there is no command {arguments[0]!r}", file=out)
    print("usage: python -m ravenstore COMMAND [--help] | --version", file=out)
    for name, (_, words) in COMMANDS.items():
        print(f"  {name:<8} {words}", file=out)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
