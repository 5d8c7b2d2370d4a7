#!/usr/bin/python3
"""Runs every rule of rules.py on this checkout, and on a small tree with one planted breach.

tidy_test.py --list-long prints what belongs into long_functions.txt, --list-large what belongs
into large_classes.txt.
"""

import os
import pathlib
import sys
import tempfile
import unittest

# Through the links of Bazel's runfiles to the checkout itself: the rules look at all of it.
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import pages  # noqa: E402
import rules  # noqa: E402
import tree  # noqa: E402
import xml_main  # noqa: E402

GROUPS = "".join(
    f'package_group(name = "{name}", packages = {sorted(packages)!r})\n'
    for name, packages in rules.GROUPS.items()
)

# A tree that breaks no rule.
CLEAN = {
    "BUILD": GROUPS,
    "core/BUILD": 'cc_library(name = "a", srcs = ["a.cc"], hdrs = ["a.h"],'
    ' visibility = ["//:floor2", "//:floor3"])\n',
    "core/a.h": "// Says what a is.\n#pragma once\nint A(int n = int{1});\n",
    "core/a.cc": '#include "core/a.h"\n\nint A(int n) {\n  return n;\n}\n',
    "tests/core/BUILD": 'cc_test(name = "a_test", srcs = ["a_test.cc"], deps = ["//core:a"])\n',
    "tests/core/a_test.cc": '#include "core/a.h"\n\n#include <gtest/gtest.h>\n',
    "tests/ipc/waits.cc": "bool Waits() {\n  return Eventually(F);\n}\n",
    "tests/ipc/waits.py": "eventually(f)\n",
    "tests/slow_tests.txt": "# At most ten.\n//tests/core:a_test it is large\n",
    "tests/ipc/BUILD": 'cc_test(name = "waits", srcs = ["waits.cc"], tags = ["timing"])\n',
    "proto/control.h": "// Generated, say.\n#pragma once\n",
    "proto/BUILD": 'cc_library(name = "control_cc_proto", hdrs = ["control.h"])\n',
    "deploy/ravenstored.toml": '[limits]\nclients_max = 512\nhost_budget = 0\nslab = "64MiB"\n',
    "README.md": "See `core/a.h` and `core/*.cc`, and `core/`; `cuda.h` is somebody else's.\n"
    "```sh\nrm `core/gone.h`\n```\n",
    "CONTRIBUTING.md": "# Folders\n\n[Keys](docs/configuration.md#the-keys), [here](#folders).\n\n"
    "| `core/a.h`, `a.cc` | files |\n| `proto`, `deploy`, `tests`, `docs` | folders |\n",
    "docs/configuration.md": "## The `keys`\n\n| `limits.clients_max` | 512 | processes |\n"
    "| `limits.host_budget` | all there is | of it |\n| `limits.slab` | 64 MiB | at least |\n",
    "docs/troubleshooting.md": "| message | |\n|---|---|\n| `no room for` | more room |\n",
    "deploy/a.py": 'TEXT = "no room for it"\n',
}

BANNED_EXIT = "client/a.cc", "void F() {\n  std::exit(1);\n}\n"
# Rule: [(file, contents, a part of the complaint)], each planted alone. "+" appends to the file.
PLANTED = {
    rules.floors_include_downwards: [
        ("core/a.cc", '+#include "proto/control.h"\n', "core may not include proto/control.h"),
    ],
    rules.core_is_pure: [
        ("core/a.cc", "+#include <thread>\n", "core is pure: thread"),
        ("core/a.cc", "+auto t = std::chrono::steady_clock::now();\n", "steady_clock::now"),
        ("core/a.cc", '+void P() { printf("x"); }\n', "printf("),
    ],
    rules.one_thread_needs_no_locks: [
        ("sim/a.cc", "#include <mutex>\n", "of one thread, but includes mutex"),
    ],
    rules.cuda_stays_in_its_files: [
        ("daemon/x.cc", "#include <cuda.h>\n", "cuda.h"),
        ("daemon/x.cc", "#ifdef WITH_CUDA\n#endif\n", "no backend by #if"),
    ],
    rules.constants_are_tuned_or_fixed: [
        ("core/a.cc", "+constexpr int kA = 3;\n", "kA is neither TUNED nor FIXED"),
        ("core/tuned.def", "FIXED(unit, kGone)\n", "nothing is called kGone"),
        ("core/tuned.def", '\nTUNED(int, kA, 3, 0, 0, "9999")\n', "nobody uses kA"),
        ("core/tuned.def", '\nTUNED(int, kA, 3, 0, 0, "9999")\n', "kA has no decision 9999"),
        ("core/tuned.def", "\nTUNED(int, kA, 3)\n", "1 constants, 0 as they"),
        ("core/tuned.def", "\nTUNED(x)" * (rules.TUNED_MAX + 1), "at most"),
    ],
    rules.boost_stays_in_ipc: [
        ("daemon/x.cc", "#include <boost/interprocess/mapped_region.hpp>\n", "Boost"),
        ("ipc/x.cc", "boost::interprocess::interprocess_mutex m;\n", "no lock"),
    ],
    rules.protobuf_stays_inside: [
        ("interceptor/x.cc", '#include "proto/control.pb.h"\n', "protobuf"),
        ("client/client.h", '#include "proto/control.pb.h"\n', "public header reaches"),
    ],
    rules.public_headers_stand_alone: [
        ("client/client.h", '#include "core/a.h"\n', "public header may not include core/a.h"),
    ],
    rules.torch_stays_in_its_targets: [
        ("daemon/x.cc", "#include <torch/torch.h>\n", "adapter"),
    ],
    rules.torch_never_meets_protobuf: [
        (
            "client/x.cc",
            '#include <ATen/ATen.h>\n#include "proto/control.pb.h"\n',
            "sees ATen/ATen.h",
        ),
        (
            "client/BUILD",
            'cc_library(name = "x", deps = [":y", "@libtorch"])\n'
            'cc_library(name = "y", deps = ["//proto:control_cc_proto"])\n',
            "//client:x links libtorch and protobuf",
        ),
    ],
    rules.visibility_names_floors: [
        ("proto/BUILD", '+package(default_visibility = ["//visibility:public"])\n', "public"),
        ("BUILD", GROUPS.replace("//device", "//daemon"), "package_group floor2"),
    ],
    rules.every_source_is_built: [
        ("core/dead.h", "// Dead.\n#pragma once\n", "no target of //core names it"),
    ],
    rules.sources_have_mirrored_tests: [
        ("ipc/x.cc", "\n", "has no tests/ipc/x_test.cc"),
        (
            "tests/tidy/mirrors.txt",
            "ipc/y.cc tests/core/a_test.cc\n",
            "ipc/y.cc is no longer there",
        ),
        ("tests/tidy/mirrors.txt", "core/a.cc tests/core/a_test.cc\n", "has its own test now"),
    ],
    rules.lines_are_short: [("core/a.cc", "+// " + "x" * 98 + "\n", "101 columns")],
    rules.functions_are_short: [
        ("core/a.cc", "+int L() {\n" + "  ;\n" * 70 + "}\n", "core/a.cc L: 72 lines"),
        ("core/a.cc", "+C::C() : a_{1}, b_(2) {\n" + "  ;\n" * 70 + "}\n", "core/a.cc C::C: 72"),
        ("core/a.py", "def f():\n" + "    pass\n" * 70, "core/a.py f: 71 lines"),
        ("tests/tidy/long_functions.txt", "core/a.cc A 90\n", "has 0 lines now"),
    ],
    rules.classes_are_small: [
        (
            "core/a.h",
            "class A {\n A();\n" + " int F(int a = 1) const { return a; }\n" * 40 + "};\n",
            "core/a.h A: 41 member functions",
        ),
        ("tests/tidy/large_classes.txt", "core/a.h A 50\n", "has 0 member functions now"),
    ],
    rules.paged_core_stays_small: [
        ("core/plan/a.cc", "//\n" * 401, "core/plan/a.cc: 401 lines, 400 at most"),
        (
            "core/plan/a.h",
            "class A {\n A();\n" + " int F(int a = 1) const { return a; }\n" * 40 + "};\n",
            "core/plan/a.h A: 41 member functions",
        ),
    ],
    rules.words_are_allowed: [
        (*BANNED_EXIT, "never ends its host's process: std::exit("),
        ("client/a.cc", 'void F() { std::cerr << "x"; }\n', "does not print"),
        ("tests/core/a_test.cc", "+std::this_thread::sleep_for(t);\n", "no sleeps"),
        ("core/a.cc", "+void F() { assert(true); }\n", "RAVEN_CHECK"),
        ("core/a.h", "+using namespace std;\n", "not in a header"),
        ("core/a.h", "+// TO" + "DO: later\n", "names its issue"),
    ],
    rules.slow_tests_are_few: [
        (rules.SLOW, "+//tests/core:gone_test is slow\n", "there is no test //tests/core:gone"),
        (rules.SLOW, "+//tests/core:a_test\n", "//tests/core:a_test has no reason"),
        (rules.SLOW, "//tests/core:a_test x\n" * (rules.SLOW_MAX + 1), "11 tests, 10 at most"),
    ],
    rules.tests_that_wait_are_tagged: [
        ("tests/ipc/BUILD", 'cc_test(name = "b", tags = ["timing"])\n', "b has the tag"),
        ("tests/ipc/BUILD", 'cc_test(name = "c", srcs = ["waits.cc"])\n', "c waits or looks at"),
        (
            "tests/ipc/BUILD",
            'python_test(name = "d", script = "waits.py")\n',
            "d waits or looks at",
        ),
    ],
    rules.limits_know_the_load: [
        ("tests/ipc/a.cc", "  if (ipc::Now() >= end) return false;\n", "if (ipc::Now() >="),
        ("tests/ipc/a.cc", "EXPECT_LT(ipc::Now() - a, b);\n", "EXPECT_LT(ipc::Now() -"),
        ("tests/ipc/a.py", "time.sleep(1)\n", "time.sleep("),
        ("tests/ipc/a.py", "assertLess(time.monotonic() - a, 2)\n", "assertLess("),
    ],
    rules.no_place_of_one_machine: [
        ("core/a.cc", '+const char* p = "/home' + '/someone/x";\n', "a path of one machine"),
        ("deploy/x", "curl http:" + "//example.org\n", "no host"),
        ("deploy/x", "curl http:" + "//198.51." + "100.7\n", "no host"),
        ("core/a.cc", '+const char* p = "10.1.' + '2.3";\n', "an address"),
    ],
    rules.headers_say_what_they_are: [
        ("core/b.h", "#pragma once\n", "opens with no comment"),
        ("core/b.h", "// B.\n", "no #pragma once"),
        ("core/planner.h", "// Threads: one. Errors: none.\n#pragma once\n", "speak of Owns"),
    ],
    pages.pages_name_what_is_there: [
        ("README.md", "+It is in `core/gone.h`.\n", "README.md:5: there is no core/gone.h"),
        ("docs/a.md", "Run `core/gone --all`.\n", "docs/a.md:1: there is no core/gone"),
        ("docs/a.md", "| `core/a.h`, `gone.h` | files |\n", "there is no core/gone.h"),
    ],
    pages.documented_defaults_are_right: [
        (pages.KEYS, "+| `limits.clients_max` | 4096 | all |\n", "clients_max is 512, not 4096"),
        (pages.KEYS, "+| `limits.host_budget` | 1 GiB | all |\n", "host_budget is 0, not 1 GiB"),
        (pages.KEYS, "+| `limits.gone` | none | of it |\n", "limits.gone is None, not none"),
    ],
    pages.every_folder_is_listed: [
        ("sim/a.h", "// Says what a is.\n#pragma once\n", "CONTRIBUTING.md: no row for sim"),
    ],
    pages.readme_is_short: [
        ("README.md", "+\n" * (pages.README_LINES_MAX + 1), "lines, 150 at most"),
        ("README.md", "word. " * 400, "400 words on its first screen"),
        ("README.md", "+\n" + "word " * 31 + "end.\n", "a long sentence: word"),
    ],
    pages.examples_are_run: [
        ("docs/a.md", "```py\nx = 1\n```\n", "docs/a.md: no test of EXAMPLE_TESTS"),
    ],
    pages.long_sentences_are_few: [
        ("docs/a.md", "- " + "word " * 31 + "\n- And `code` that counts once.\n", "1 of "),
    ],
    pages.links_lead_somewhere: [
        ("docs/a.md", "[Gone](../core/gone.h).\n", "docs/a.md:1: a link to ../core/gone.h"),
        ("docs/a.md", "[Above](../../x.md).\n", "a link to ../../x.md"),
        ("docs/a.md", "[Keys](configuration.md#no-keys).\n", "no such heading"),
    ],
    pages.troubleshooting_quotes_messages: [
        (pages.TROUBLES, "+| `no room` or `gone away` | wait |\n", "no program says: gone away"),
    ],
    pages.dialect_is_not_growing: [
        ("docs/a.md", "It " + "lies there.\n" * (pages.DIALECT_MAX["pages"] + 1), "pages: "),
        (
            "core/b.h",
            "// At once.\n" * (pages.DIALECT_MAX["comments"] + 1) + "#pragma once\n",
            "comments: ",
        ),
    ],
}


def plant(folder, files):
    for name, text in files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tree.Tree(folder)


class TheTree(unittest.TestCase):
    """One test a rule, on this checkout."""

    tree = tree.Tree(ROOT)

    def test_is_seen(self):
        # A walk that found nothing would pass every rule.
        self.assertIn("core/types.h", self.tree.files)
        self.assertIn("tests/tidy/tidy_test.py", self.tree.files)
        self.assertGreater(len(self.tree.targets), 10)
        found = [name for name, _, _ in tree.functions(self.tree.text("core/result.h"))]
        self.assertIn("value", found)


class ThePlanted(unittest.TestCase):
    """One test a rule: the clean tree passes it, each planted breach is caught."""

    def test_every_rule_has_a_breach(self):
        self.assertEqual(set(PLANTED), set(rules.RULES))


def on_the_tree(rule):
    def test(self):
        found = rule(self.tree)
        if found:
            self.fail("\n".join([rule.__doc__ or rule.__name__, *found]))

    return test


def on_the_planted(rule):
    def test(self):
        for name, contents, words in PLANTED[rule]:
            with tempfile.TemporaryDirectory() as folder:
                self.assertEqual(rule(plant(folder, CLEAN)), [])
                old = CLEAN.get(name, "") if contents.startswith("+") else ""
                broken = plant(folder, {name: old + contents.removeprefix("+")})
                self.assertTrue(any(words in line for line in rule(broken)), (words, rule(broken)))

    return test


for each in rules.RULES:
    setattr(TheTree, f"test_{each.__name__}", on_the_tree(each))
    setattr(ThePlanted, f"test_catches_when_not_{each.__name__}", on_the_planted(each))

if __name__ == "__main__":
    if "--list-long" in sys.argv:
        for key, lines in sorted(rules.long_functions(tree.Tree(ROOT)).items()):
            print(key, lines)
        sys.exit()
    if "--list-large" in sys.argv:
        for key, count in sorted(rules.large_classes(tree.Tree(ROOT)).items()):
            print(key, count)
        sys.exit()
    os.chdir(ROOT)
    xml_main.main()
