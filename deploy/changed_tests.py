#!/usr/bin/python3
"""Names the tests that mirror what changed, for the sanitizer stage of deploy/test.

changed_tests.py --root ROOT [--base COMMIT]
    prints a line that says what the list is based on, then one Bazel query a line: first the tests
    of the changed files, then the other tests of their folders. The base is COMMIT, else the commit
    in tests/full_run.txt; without a base, and where no folder with tests changed, the tests in
    tests/sanitized_sample.txt, a query for each of its lines.
"""

import argparse
import pathlib
import re
import subprocess
import sys

SAMPLE = "tests/sanitized_sample.txt"
FULL_RUN = "tests/full_run.txt"
# What compiles into a test, or is one.
SOURCES = (".cc", ".h", ".cu", ".def", ".proto")


def git(root, *words):
    """The lines that git prints, or None where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def base_of(root, given):
    """(commit, its source) of the base, or (None, why there is none)."""
    if given:
        return given, "$RAVENSTORE_BASE"
    try:
        commit = (root / FULL_RUN).read_text().split()[0]
    except (OSError, IndexError):
        return None, f"no {FULL_RUN}"
    if git(root, "cat-file", "-e", commit + "^{commit}") is None:
        return None, f"{commit[:12]} of {FULL_RUN} is not in this clone"
    return commit, FULL_RUN


def changed_files(root, base):
    changed = git(root, "diff", "--name-only", base, "--") or []
    changed += git(root, "ls-files", "-o", "--exclude-standard") or []
    return sorted({name for name in changed if name.endswith(SOURCES)})


def mirror(root, name):
    """(package, target) of the test that mirrors a source, or None; a test mirrors itself."""
    folder, _, file = name.rpartition("/")
    if not folder.startswith("tests/"):
        folder = "tests/" + folder
    while folder != "tests" and not (root / folder / "BUILD").exists():
        folder = folder.rpartition("/")[0]
    if folder == "tests":
        return None
    stem = file.rpartition(".")[0]
    return folder, stem if stem.endswith("_test") else stem + "_test"


def queries(mirrors):
    """The queries for the tests of the changed files, and for the rest of their folders."""
    own = "|".join(sorted({re.escape(f"//{folder}:{test}") for folder, test in mirrors}))
    own = f"filter('^({own})$', //tests/...)"
    folders = " + ".join(sorted({f"//{folder}:all" for folder, _ in mirrors}))
    return [own, f"({folders}) except {own}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--base", default="")
    options = parser.parse_args()
    base, source = base_of(options.root, options.base)
    changed = changed_files(options.root, base) if base else []
    mirrors = {found for name in changed if (found := mirror(options.root, name))}
    if mirrors:
        print(f"{len(changed)} files changed since {base[:12]} ({source})")
        print("\n".join(queries(mirrors)))
        return 0
    why = f"no source with tests changed since {base[:12]} ({source})" if base else source
    lines = (options.root / SAMPLE).read_text().splitlines()
    print(f"the {len(' '.join(lines).split())} tests of {SAMPLE}: {why}")
    for line in lines:
        print(f"set({line})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
