#!/usr/bin/python3
"""Lists what ForwardingCudaAllocator does not override of c10's CUDAAllocator.

    g++ -E -P ... | deploy/torch_virtuals.py

Most of them have a default that does nothing, so that the compiler accepts a forgotten one. Reads
client/torch_version.h with torch's headers, preprocessed. Exits with 1, and the names, if there are
any.
"""

import re
import sys

# Ours, then the one that it derives from and that one's bases.
FORWARDING = "ForwardingCudaAllocator"
FORWARDED = ("CUDAAllocator", "DeviceAllocator", "Allocator")


def body_of(text, name):
    """The text between the braces of the class of that name."""
    attribute = r"(?:__attribute__\s*\(\([^;{}]*?\)\)\s*)?"
    found = re.search(rf"\b(?:class|struct)\s+{attribute}{name}\b[^;{{}}()]*\{{", text)
    if found is None:
        raise ValueError(f"there is no class {name}")
    depth = 1
    for brace in re.finditer(r"[{}]", text[found.end() :]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[found.end() : found.end() + brace.start()]
    raise ValueError(f"class {name} has no end")


def forgotten(text):
    """The names, sorted."""
    virtual = set()
    for name in FORWARDED:
        for line in re.finditer(r"\bvirtual\s+([^;{}]*?)\(", body_of(text, name)):
            virtual.add(re.findall(r"~?\w+", line[1])[-1])
    # Parameters may have parentheses (std::function) or braces (a default) of their own.
    parameters = r"\((?:[^;{}()]|\{[^;{}()]*\}|\([^;{}()]*\))*\)"
    pattern = rf"\b(\w+){parameters}\s*(?:const\s*)?override\b"
    overridden = set(re.findall(pattern, body_of(text, FORWARDING)))
    return sorted(name for name in virtual - overridden if not name.startswith("~"))


def main():
    names = forgotten(sys.stdin.read())
    if names:
        print(f"client/torch_version.h: {FORWARDING} does not override {', '.join(names)}")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
