#!/usr/bin/python3
"""Commands in the pages: each program, subcommand and option exists, and those of ravensim run."""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path.cwd()
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = HERE if (HERE / "sim/ravensim").exists() else ROOT / "bazel-bin"
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/tidy", "tests/timing")]

import timing  # noqa: E402
import xml_main  # noqa: E402

PROGRAMS = {
    "ravenctl": [str(BUILT / "client/ctl/ravenctl")],
    "ravenrun": [str(ROOT / "deploy/ravenrun")],
    "ravensim": [str(BUILT / "sim/ravensim")],
    "ravenstored": [str(BUILT / "daemon/ravenstored")],
}
# What these need is said by a subcommand's own --help.
WITH_SUBCOMMANDS = ("ravenctl", "ravensim")
PYTHON = "python3 -m ravenstore"
# Programs of the system, and words of the shell, that no test looks into.
OTHERS = {
    "alias",
    "apt",
    "cd",
    "curl",
    "do",
    "done",
    "exit",
    "export",
    "g++",
    "gcc",
    "grep",
    "hello",
    "install",
    "journalctl",
    "kill",
    "openssl",
    "pip",
    "pkg-config",
    "python3",
    "sleep",
    "systemctl",
    "tee",
    "train_gpt",
    "until",
    "usermod",
}
# Before the program that counts.
PREFIXES = re.compile(r"^(?:sudo|until|do|then|[A-Z_]+=\S*)$")


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text):
    """The words of each command in a page's blocks of shell, pipes and lists taken apart."""
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.commenters, lexer.whitespace_split = "#", True
            words, is_file = [], False
            for word in [*lexer, ";"]:
                if re.fullmatch(r"[|&;()]+", word):
                    # What follows a substituted command is more arguments.
                    if words and not words[0].startswith("-"):
                        yield words
                    words = []
                elif is_file or re.fullmatch(r"[<>]+", word):
                    is_file = not is_file
                elif words or not PREFIXES.match(word):
                    words.append(word)


@functools.cache
def help_of(*command):
    done = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=timing.HANGS_AFTER,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    return done.stdout if done.returncode == 0 else ""


def faults_of(words):
    """What is wrong with a command, in words."""
    program, arguments = words[0], words[1:]
    name = program.rpartition("/")[2]
    text = " ".join(words)
    if text.startswith(PYTHON):
        known = (sys.executable, "-m", *words[2:3])
        arguments = words[3:]
        if words[2] == "ravenstore" and arguments and not arguments[0].startswith("-"):
            known, arguments = (*known, arguments[0]), arguments[1:]
    elif name in PROGRAMS:
        known = tuple(PROGRAMS[name])
        if name in WITH_SUBCOMMANDS:
            while arguments and arguments[0].startswith("-"):
                # Those before it, with their values.
                if not has_word(help_of(*known), arguments[0]):
                    return [f"{text}: --help has no {arguments[0]}"]
                arguments = arguments[2:]
            if not has_word(help_of(*known), arguments[0]):
                return [f"{text}: {name} has no {arguments[0]}"]
            known, arguments = (*known, arguments[0]), arguments[1:]
        if name == "ravenrun":
            arguments = until_command(arguments)
    elif program.startswith(("deploy/", "bench/")):
        if not (ROOT / program).exists():
            return [f"{text}: there is no {program}"]
        known = (str(ROOT / program),)
    elif name in OTHERS:
        return []
    else:
        return [f"{text}: what is {program}?"]
    options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    if known[0].endswith("deploy/bazel"):
        return []
    said = help_of(*known)
    if not said:
        return [f"{text}: {' '.join(known)} --help fails"]
    return [f"{text}: --help has no {word}" for word in options if not has_word(said, word)]


def has_word(text, word):
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def until_command(arguments):
    """ravenrun's own: what follows its first argument that is no option's is the job's."""
    own = []
    for word in arguments:
        takes_value = own and own[-1] in ("--mode", "--budget", "--host", "--record", "--socket")
        if not word.startswith("-") and not takes_value:
            return own
        own.append(word)
    return own


class PagesTest(unittest.TestCase):
    def test_every_command_exists_with_its_options(self):
        count = 0
        for page in pages():
            for words in commands(page.read_text()):
                count += 1
                with self.subTest(page=page.name, command=" ".join(words)):
                    self.assertEqual(faults_of(words), [])
        self.assertGreater(count, 60, "commands were not found in the pages")

    def test_documented_configurations_are_valid(self):
        count = 0
        for page in pages():
            for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S):
                count += 1
                with self.subTest(page=page.name), tempfile.NamedTemporaryFile("w+") as file:
                    file.write(block)
                    file.flush()
                    done = subprocess.run(
                        [*PROGRAMS["ravenstored"], "--check", file.name],
                        capture_output=True, text=True, timeout=timing.HANGS_AFTER,
                    )  # fmt: skip
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertGreater(count, 1)

    def test_what_does_not_exist_is_found(self):
        for line, fault in (
            ("ravenctl stats", "ravenctl has no stats"),
            ("sudo ravenctl limits --usr alice", "has no --usr"),
            ("ravensim run moe --buget 60%", "has no --buget"),
            ("ravenrun --mod elastic python3 train.py --epochs 3", "has no --mod"),
            ("deploy/instal", "there is no deploy/instal"),
            ("frobnicate --all", "what is frobnicate?"),
        ):
            page = f"# A page\n```sh\n{line}   # and why\n```\n"
            with self.subTest(line):
                found = [fault for words in commands(page) for fault in faults_of(words)]
                self.assertEqual(len(found), 1, found)
                self.assertIn(fault, found[0])

    def test_documented_simulations_run(self):
        count = 0
        with tempfile.TemporaryDirectory() as folder:
            for page in pages():
                for words in commands(page.read_text()):
                    if words[0] != "ravensim" or "job.trace" in words:
                        continue
                    count += 1
                    with self.subTest(page=page.name, command=" ".join(words)):
                        done = subprocess.run(
                            [*PROGRAMS["ravensim"], *words[1:]], cwd=folder, text=True,
                            capture_output=True, timeout=timing.HANGS_AFTER,
                        )  # fmt: skip
                        self.assertEqual((done.returncode, done.stderr), (0, ""))
                        self.assertTrue(done.stdout)
        self.assertGreater(count, 6)


if __name__ == "__main__":
    xml_main.main()
