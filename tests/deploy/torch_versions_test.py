#!/usr/bin/python3
"""deploy/torch_versions, with stand-ins for the compiler, Bazel and PyPI."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

# Through the links of Bazel's runfiles to the checkout itself.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
sys.path[:0] = [str(ROOT / "tests/tidy"), str(DEPLOY)]
sys.dont_write_bytecode = True

import torch_virtuals  # noqa: E402
import xml_main  # noqa: E402

C10 = """
struct __attribute__((__visibility__("default"))) Allocator {
  virtual ~Allocator() = default;
  virtual DataPtr allocate(size_t n) = 0;
};
struct __attribute__((__visibility__("default"))) DeviceAllocator : public c10::Allocator {
  virtual void emptyCache(MempoolId_t pool = {0, 0}) = 0;
};
class CUDAAllocator;
class CUDAAllocator : public DeviceAllocator {
  virtual void begin(std::function<bool(cudaStream_t)> filter) = 0;
  virtual int count(int) { if (true) { return 1; } return 0; }
  void not_virtual(int);
};
class Other { virtual void other(); };
"""
FORWARDING = """
class ForwardingCudaAllocator : public CUDAAllocator {
  explicit ForwardingCudaAllocator(CUDAAllocator* before) : before_(before) {}
  DataPtr allocate(size_t bytes) override { return before_->allocate(bytes); }
  void emptyCache(MempoolId_t pool = {0, 0}) override { before_->emptyCache(pool); }
  void begin(std::function<bool(cudaStream_t)> filter) override { before_->begin(filter); }
  int count(int many) override { return before_->count(many); }
};
"""


def stand_in(path, text):
    """A program at `path` in the place of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class VirtualsTest(unittest.TestCase):
    def test_a_complete_class_is_accepted(self):
        self.assertEqual(torch_virtuals.forgotten(C10 + FORWARDING), [])

    def test_each_function_that_is_forgotten_is_named(self):
        lines = FORWARDING.splitlines()
        for name in ("allocate", "emptyCache", "begin", "count"):
            text = "\n".join(line for line in lines if f" {name}(" not in line)
            self.assertEqual(torch_virtuals.forgotten(C10 + text), [name])

    def test_one_that_is_called_and_not_overridden_is_forgotten(self):
        text = FORWARDING.replace("int count(int many) override", "int other_count(int many)")
        self.assertEqual(torch_virtuals.forgotten(C10 + text), ["count"])

    def test_a_text_without_the_class_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no class ForwardingCudaAllocator"):
            torch_virtuals.forgotten(C10)


class VersionsTest(unittest.TestCase):
    """A small tree with deploy/torch_versions, a cache of its own, and stand-ins."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tree, self.cache = self.folder / "tree", self.folder / "cache"
        for name in ("torch_versions", "torch_virtuals.py", "common.sh"):
            stand_in(self.tree / "deploy" / name, (DEPLOY / name).read_text())
        for name in ("client/torch_version.h", "client/torch.cc", "python/native/module.cc"):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)
        stand_in(self.tree / "deploy/native_part", "#!/bin/sh\necho /part.so\n")
        for name in (".bazelrc", "WORKSPACE"):
            (self.tree / name).touch()
        for name in ("cuda.h", "crt/host_defines.h"):
            stand_in(self.folder / "cuda/include" / name, "")
        self.asked = self.folder / "asked"

    def run_it(self, *arguments, **variables):
        """(exit code, what it printed). No PyTorch is found but the cache's."""
        stand_in(self.folder / "bin/python3", "#!/bin/sh\nexit 1\n")
        environment = {
            "PATH": f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "CUDA_HOME": str(self.folder / "cuda"),
            "RAVENSTORE_CACHE": str(self.cache),
            "RAVENSTORE_JOBS": "2",
            **variables,
        }
        done = subprocess.run(
            [self.tree / "deploy/torch_versions", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    def versions(self):
        text = (DEPLOY / "common.sh").read_text()
        return re.search(r"^TORCH_VERSIONS=\((.*)\)$", text, re.MULTILINE)[1].split()

    # --- Which versions ---

    def test_every_minor_between_the_headers_bounds_is_there_once(self):
        text = (ROOT / "client/torch_version.h").read_text()
        bounds = re.findall(r"#define RAVENSTORE_TORCH_(?:OLDEST|NEWEST) (\d+)\n", text)
        oldest, newest = map(int, bounds)
        minors = [int(major) * 100 + int(minor) for major, minor, _ in
                  (version.split(".") for version in self.versions())]  # fmt: skip
        self.assertEqual(minors, list(range(oldest, newest + 1)))

    def test_the_list_leaves_out_the_one_that_the_tests_run_with(self):
        minors = [version.rsplit(".", 1)[0] for version in self.versions()]
        self.assertEqual(self.run_it("--list"), (0, "\n".join(minors) + "\n"))
        code, words = self.run_it(
            "--list", RAVENSTORE_TORCH_PYTHON=str(self.imported_python("2.10.0+cu1"))
        )
        self.assertEqual((code, words.split()), (0, [one for one in minors if one != "2.10"]))

    def imported_python(self, version, folder="some"):
        """A Python with a torch of that version, which has headers."""
        site = self.folder / folder / "torch"
        header = site / "include/torch/csrc/api/include/torch/torch.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
        path = self.folder / folder / "bin/python3"
        stand_in(
            path,
            f'#!/bin/sh\ncase "$2" in *find_spec*torch*s.origin*) echo {site} ;; '
            f"*print*m.version*) echo {version} ;; esac\n",
        )
        return path

    # --- Headers ---

    def headers(self, *without):
        for version in self.versions():
            if version not in without:
                (self.cache / "torch-headers" / version / "include").mkdir(parents=True)

    def compiler(self, body=""):
        """A g++ that notes the version whose headers it is given, and does `body` with it."""
        text = C10 + FORWARDING
        stand_in(
            self.folder / "bin/g++",
            f"""#!/bin/bash
[[ $* == --version ]] && exit
version=$(grep -o 'torch-headers/[0-9.]*' <<<"$*" | head -n 1 | cut -d/ -f2)
if [[ " $* " == *" -E "* ]]; then cat <<'END'
{text}
END
else
  echo "$version" >>{self.asked}
  {body}
fi
""",
        )

    def compiled(self):
        found = sorted(self.asked.read_text().split()) if self.asked.exists() else []
        self.asked.unlink(missing_ok=True)
        return found

    def test_each_ones_headers_are_compiled_once_and_again_after_a_change(self):
        self.headers()
        self.compiler()
        everything = sorted(self.versions())
        for change, wanted in (("", everything), ("", []), ("client/torch.cc", everything)):
            if change:
                with (self.tree / change).open("a") as out:
                    out.write("// a change\n")
            code, words = self.run_it("--headers")
            self.assertEqual((code, self.compiled()), (0, wanted), words)
        self.assertRegex(words, r"The headers of \d+ versions of PyTorch: passed, in \d+ s\n")

    def test_one_that_does_not_compile_fails_and_is_tried_again(self):
        self.headers()
        self.compiler("[[ $version != 2.10.0 ]] || { echo no such type; exit 1; }")
        for wanted in (sorted(self.versions()), ["2.10.0"]):
            code, words = self.run_it("--headers")
            self.assertEqual((code, self.compiled()), (1, wanted), words)
            self.assertIn("PyTorch 2.10.0: failed\nno such type\n", words)

    def test_a_forgotten_function_fails(self):
        self.headers()
        self.compiler()
        text = (self.folder / "bin/g++").read_text()
        stand_in(self.folder / "bin/g++", text.replace("int count(int many) override", "int c()"))
        code, words = self.run_it("--headers")
        self.assertEqual(code, 1, words)
        self.assertEqual(words.count("does not override count"), len(self.versions()), words)

    def test_missing_headers_fail_with_what_to_do(self):
        self.headers("2.9.1")
        self.compiler()
        code, words = self.run_it("--headers")
        self.assertEqual(code, 1, words)
        self.assertIn("PyTorch 2.9.1: failed\nits headers are missing: deploy/setup --for", words)

    def test_headers_of_an_environment_in_the_cache_are_copied(self):
        self.headers("2.10.0")
        header = "torch/include/torch/torch.h"
        path = self.cache / "torch-2.10.0/lib/python3.11/site-packages" / header
        path.parent.mkdir(parents=True)
        path.touch()
        self.assertEqual(self.run_it("--fetch-headers"), (0, ""))
        self.assertTrue((self.cache / "torch-headers/2.10.0/include/torch/torch.h").exists())

    def test_headers_are_taken_from_a_wheel_and_the_rest_is_dropped(self):
        self.headers("2.10.0")
        pip = """#!/usr/bin/python3
import os, sys, zipfile
assert sys.argv[-1] == "torch==2.10.0" and "--no-deps" in sys.argv, sys.argv
folder = sys.argv[sys.argv.index("-d") + 1]
os.makedirs(folder)
if os.environ.get("OFFLINE"):
    sys.exit(1)
with zipfile.ZipFile(folder + "/torch-2.10.0-cp311.whl", "w") as wheel:
    wheel.writestr("torch/include/torch/torch.h", "")
    wheel.writestr("torch/lib/libtorch.so", "")
"""
        stand_in(self.cache / "tools/bin/pip", pip)
        place = self.cache / "torch-headers/2.10.0"
        code, words = self.run_it("--fetch-headers", OFFLINE="1")
        self.assertEqual(code, 0, words)
        self.assertIn("warning: the headers of PyTorch 2.10.0 could not be had", words)
        # A machine without the registry is not asked again at every run.
        code, words = self.run_it("--fetch-headers")
        self.assertIn("could not be had lately", words)
        self.assertFalse(place.exists())
        (self.cache / "no-torch-headers").unlink()
        code, words = self.run_it("--fetch-headers")
        self.assertRegex(words, r"^To fetch: the wheel of torch==2.10.0, .*\nFetched in \d+ s\n$")
        files = [path.relative_to(place) for path in place.rglob("*") if path.is_file()]
        self.assertEqual(files, [pathlib.Path("include/torch/torch.h")])
        self.assertEqual(os.listdir(self.cache / "torch-headers").count("2.10.0.part"), 0)

    # --- The tests with one version ---

    def run_tests(self, minor="2.10", code=0, fetched=True, **variables):
        """Runs --test; (exit code, words, whether Bazel was asked to test)."""
        (self.tree / "a.cc").touch()
        bazel = f"""#!/bin/bash
if [[ $1 == query ]]; then
  [[ $* == *attr* ]] && echo //tests/python:a_test || echo //:a.cc
else
  echo "$1 $RAVENSTORE_TORCH_PYTHON $LIBTORCH" >>{self.asked}
  exit {code}
fi
"""
        stand_in(self.folder / "bin/bazel", bazel)
        place = self.cache / "torch-2.10.0"
        self.imported_python("2.10.0", "ready")
        setup = f'[ "$*" = "--torch 2.10.0" ] && cp -r {self.folder}/ready {place}'
        stand_in(self.tree / "deploy/setup", f"#!/bin/sh\n{setup if fetched else 'exit 1'}\n")
        self.cache.mkdir(exist_ok=True)
        result, words = self.run_it("--test", minor, **variables)
        asked = self.asked.read_text() if self.asked.exists() else ""
        self.asked.unlink(missing_ok=True)
        return result, words, asked

    def test_one_version_is_fetched_tested_deleted_and_remembered(self):
        place = self.cache / "torch-2.10.0"
        code, words, asked = self.run_tests()
        self.assertEqual((code, words), (0, "PyTorch 2.10.0: 1 tests passed\n"))
        self.assertEqual(asked, f"test {place}/bin/python3 {self.folder}/ready/torch\n")
        self.assertFalse(place.exists())
        code, words, asked = self.run_tests(fetched=False)
        self.assertEqual((code, asked), (0, ""), words)
        self.assertRegex(words, r"PyTorch 2\.10\.0: passed before, on ")
        (self.tree / "a.cc").write_text("a change")
        self.assertNotEqual(self.run_tests()[2], "")

    def test_a_failure_is_one_and_is_not_remembered(self):
        for _ in range(2):
            code, words, asked = self.run_tests(code=3)
            self.assertEqual(code, 1, words)
            self.assertIn("error: PyTorch 2.10.0: failed (bazel test exited with 3)", words)
            self.assertIn("test ", asked)
            self.assertFalse((self.cache / "torch-2.10.0").exists())

    def test_one_that_was_there_before_is_kept(self):
        self.cache.mkdir()
        self.imported_python("2.10.0", "cache/torch-2.10.0")
        code, words, asked = self.run_tests(fetched=False)
        self.assertEqual(code, 0, words)
        self.assertTrue((self.cache / "torch-2.10.0/bin/python3").exists())

    def test_one_that_cannot_be_fetched_is_a_failure(self):
        code, words, asked = self.run_tests(fetched=False)
        self.assertEqual((code, asked), (1, ""), words)
        self.assertIn("PyTorch 2.10.0 could not be fetched, and is not tested", words)

    def test_a_minor_that_is_not_supported_is_refused(self):
        code, words, asked = self.run_tests("2.8")
        self.assertEqual((code, asked), (1, ""), words)
        self.assertIn(f"PyTorch 2.8 is not supported: {' '.join(self.versions())} are", words)


if __name__ == "__main__":
    xml_main.main()
