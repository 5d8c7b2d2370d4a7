#!/usr/bin/python3
"""The scripts and the unit under deploy/, tried where that leaves the machine unchanged."""

import contextlib
import gzip
import io
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

# Through the links of Bazel's runfiles to the checkout itself: the scripts find it from their path.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
sys.path[:0] = [str(ROOT / "tests/tidy"), str(DEPLOY)]
sys.dont_write_bytecode = True

import run_times  # noqa: E402
import test_report  # noqa: E402
import xml_main  # noqa: E402


def run(*command, **variables):
    """(exit code, standard output and error) with nothing on standard input."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
    )
    return done.returncode, done.stdout


def cpu_seconds_of_children():
    """Of all processes that this one waited for; what else the machine does adds nothing."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stand_in(path, text):
    """A program at `path` in the place of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


RUNS_OUT_OF_MEMORY = """
import torch
try:
    torch.empty(1 << 44)
except torch.OutOfMemoryError as error:
    print(*error.args, sep="|")
try:
    raise torch.OutOfMemoryError("another", "text")
except RuntimeError as error:
    print(*error.args, sep="|")
"""


def stand_in_torch(folder):
    """A torch that finds no room, as PyTorch does on backend:cudaMallocAsync."""
    text = "Allocation on device 0 would exceed allowed memory. (out of memory)"
    (folder / "torch.py").write_text(
        "class OutOfMemoryError(RuntimeError):\n    pass\n"
        f"def empty(count):\n    raise OutOfMemoryError({text!r})\n"
    )


class SetupTest(InFolder):
    def setup_script(self, *arguments, **variables):
        cache = str(self.folder / "cache")
        return run(DEPLOY / "setup", *arguments, RAVENSTORE_CACHE=cache, **variables)

    def libtorch(self):
        """A stand-in: without one setup asks apt about the 160 packages of libtorch-dev."""
        api = self.folder / "libtorch/include/torch/csrc/api/include/torch"
        stand_in(api / "torch.h", "")
        version = {"MAJOR": 2, "MINOR": 15, "PATCH": 0}.items()
        lines = "".join(f"#define TORCH_VERSION_{part} {number}\n" for part, number in version)
        stand_in(api / "version.h", lines)
        return str(self.folder / "libtorch")

    def test_a_test_without_containers_is_no_failure(self):
        # A machine that has all but what boots a container, and cannot have it.
        script = (
            f"source {DEPLOY}/common.sh; BUILD_PACKAGES=(bash); TEST_PACKAGES=(bash); "
            "CONTAINER_PACKAGES=(there-is-no-such-package); "
            "choose_libtorch() { LIBTORCH=; LIBTORCH_WORDS=; }; choose_cuda() { false; }; "
            "has_gpu() { false; }; apt_knows() { false; }; set -- --for test; "
            "RAVENSTORE_WITHOUT_TORCH=1; "
        )
        body = (DEPLOY / "setup").read_text().replace("source ", ": ", 1)
        for name in ("apt_knows() {", "refresh_lists() {"):
            self.assertIn(name, body)
            body = body.replace(name, f"old_{name}")
        # Nothing is fetched, either: where libtorch-dev is missing it would be PyPI's PyTorch.
        fetched = ("ensure_etcd", "ensure_libtorch", "ensure_tool")
        stand_ins = "".join(f"{name}() {{ :; }}\n" for name in ("refresh_lists", *fetched))
        body = body.replace("\nmain\n", f"\n{stand_ins}apt_knows() {{ false; }}\nmain\n")
        (self.folder / "bare").write_text(script + body)
        code, words = run("bash", self.folder / "bare", RAVENSTORE_CACHE=str(self.folder / "cache"))
        self.assertEqual(code, 0, words)
        if os.geteuid() == 0 and shutil.which("apt-get"):
            self.assertIn("without there-is-no-such-package the service is not tried", words)

    def test_does_nothing_within_two_seconds_when_all_is_there(self):
        code, words = self.setup_script("--dry-run", LIBTORCH=self.libtorch())
        if "To install:" in words:
            self.skipTest("packages of the demo are missing on this machine")
        before = cpu_seconds_of_children()
        code, words = self.setup_script(LIBTORCH=self.libtorch())
        self.assertEqual(code, 0, words)
        self.assertLess(cpu_seconds_of_children() - before, 2.0)
        self.assertIn("libtorch: libtorch 2.15.0 (from LIBTORCH", words)

    def test_announces_packages_and_bytes_before_it_fetches(self):
        if not shutil.which("apt-get"):
            self.skipTest("no apt-get here")
        # A package that hardly any machine has and every archive does: a bare system's set-up.
        script = f"source {DEPLOY}/common.sh; BUILD_PACKAGES=(hello); set -- --dry-run; "
        body = (DEPLOY / "setup").read_text().replace("source ", ": ", 1)
        (self.folder / "bare").write_text(script + body)
        if run("dpkg-query", "-W", "hello")[0] == 0 or run("apt-cache", "show", "hello")[0]:
            self.skipTest("apt's lists are empty, or hello is installed")
        code, words = run(
            "bash", self.folder / "bare",
            RAVENSTORE_CACHE=str(self.folder / "cache"), LIBTORCH=self.libtorch(),
        )  # fmt: skip
        self.assertEqual(code, 0, words)
        self.assertRegex(
            words, r"To install: hello\n.* 1 packages, [\d.]+ .?B to fetch, .* unpacked"
        )

    def test_installing_fetches_no_libtorch(self):
        # On a machine with a GPU and without a libtorch.
        script = (
            f"source {DEPLOY}/common.sh; BUILD_PACKAGES=(bash); "
            "has_gpu() { true; }; choose_libtorch() { LIBTORCH=; return 1; }; "
        )
        body = (DEPLOY / "setup").read_text().replace("source ", ": ", 1)
        (self.folder / "bare").write_text(script + body)
        for purpose, fetched in (("demo", True), ("install", False)):
            code, words = run(
                "bash", self.folder / "bare", "--dry-run", "--for", purpose,
                RAVENSTORE_CACHE=str(self.folder / "cache"),
            )  # fmt: skip
            self.assertEqual(code, 0, words)
            self.assertEqual("torch==" in words, fetched, words)

    def bare_setup(self, beginning, *arguments, **variables):
        """deploy/setup on a machine with all packages and no PyTorch but what the cache gets."""
        script = (
            f"source {DEPLOY}/common.sh; BUILD_PACKAGES=(bash); TEST_PACKAGES=(bash); "
            "CONTAINER_PACKAGES=(bash); choose_cuda() { CUDA_HOME=/there; }; has_gpu() { false; }; "
            "imported_torch() { [[ $1 == */torch-2*/bin/python3 && -x $1 ]]; }; "
            "choose_libtorch() { LIBTORCH=/there LIBTORCH_WORDS=there; }; "
            f"has_supported_torch() {{ imported_torch $1; }}; {beginning}; "
        )
        body = (DEPLOY / "setup").read_text().replace("source ", ": ", 1)
        self.assertIn("\nmain\n", body)
        self.assertIn('/usr/bin/python3 -m venv "$CACHE/$name', body)
        body = body.replace('/usr/bin/python3 -m venv "$CACHE/$name', 'fake_venv "$CACHE/$name')
        fetched = ("ensure_etcd", "ensure_tool", "ensure_torch_headers")
        stand_ins = "".join(f"{name}() {{ :; }}\n" for name in fetched)
        body = body.replace("\nmain\n", f"\n{stand_ins}main\n")
        (self.folder / "bare").write_text(script + body)
        cache = str(self.folder / "cache")
        return run("bash", self.folder / "bare", *arguments, RAVENSTORE_CACHE=cache, **variables)

    def test_the_tests_pytorch_is_announced_and_can_be_left_out(self):
        code, words = self.bare_setup(":", "--dry-run", "--for", "test")
        self.assertEqual(code, 0, words)
        self.assertEqual(words.count("torch=="), 1)
        self.assertRegex(words, r"To fetch: torch==\S+ numpy==\S+ .* GB unpacked\), into ")
        self.assertIn(f"into {self.folder}/cache/{self.newest_torch()}\n", words)
        code, words = self.bare_setup(
            ":", "--dry-run", "--for", "test", RAVENSTORE_WITHOUT_TORCH="1"
        )
        self.assertEqual(code, 0, words)
        self.assertNotIn("To fetch: torch", words)
        self.assertIn("RAVENSTORE_WITHOUT_TORCH=1: the tests that need", words)

    def test_the_tests_pytorch_is_kept_whole_or_not_at_all(self):
        # In the place of a virtual environment: a Python whose pip succeeds or not.
        fake = (
            "fake_venv() { mkdir -p $1/bin; printf '#!/bin/sh\\nexit %s\\n' $PIP >$1/bin/python3; "
            "chmod +x $1/bin/python3; }; set -- --for test"
        )
        cache, name = self.folder / "cache", self.newest_torch()
        for pip, there in (("1", False), ("0", True)):
            with self.subTest(pip=pip):
                code, words = self.bare_setup(fake, PIP=pip)
                self.assertEqual(code, 0, words)
                self.assertEqual((cache / name / "bin/python3").exists(), there, words)
                self.assertFalse((cache / f"{name}.new").exists())
                # A machine without the registry is not asked again at every run.
                self.assertEqual((cache / f"no-{name}").exists(), not there)
                (cache / f"no-{name}").unlink(missing_ok=True)
        self.assertRegex(words, r"Fetched in \d+ s; \S+ are kept in ")
        code, words = self.bare_setup(fake, PIP="1")
        self.assertNotIn("To fetch", words)
        self.assertNotIn("No longer used", words)

    def test_a_cache_with_an_older_pytorch_gets_the_newest(self):
        fake = "fake_venv() { mkdir -p $1/bin; cp /bin/true $1/bin/python3; }; set -- --for test"
        stand_in(self.folder / "cache/torch/bin/python3", "#!/bin/sh\n")
        stand_in(self.folder / "cache/torch-2.11.0/bin/python3", "#!/bin/sh\n")
        code, words = self.bare_setup(fake)
        self.assertEqual(code, 0, words)
        python = self.folder / "cache" / self.newest_torch() / "bin/python3"
        self.assertTrue(python.exists(), words)
        self.assertRegex(words, rf"PyTorch for the tests: .* of {python}\n")
        self.assertIn(f"No longer used, and may be removed: {self.folder}/cache/torch\n", words)

    def newest_torch(self):
        """The folder in the cache with the tests' PyTorch."""
        command = f"source {DEPLOY}/common.sh && echo ${{TORCH_FOLDER##*/}}"
        code, words = run("bash", "-c", command)
        self.assertEqual(code, 0, words)
        return words.strip()

    def test_what_models_need_is_fetched_once_into_its_own_pytorch(self):
        # A Python that has them once its pip succeeded.
        python = (
            "#!/bin/sh",
            'if [ "$1 $2" = "-m pip" ]; then [ $PIP = 0 ] && : >"$0.has"; exit $PIP; fi',
            '[ -e "$0.has" ]',
        )
        path = self.folder / "cache" / self.newest_torch() / "bin/python3"
        stand_in(path, "\n".join(python) + "\n")
        for pip, fetches, fails in (("1", 1, 1), ("0", 1, 0), ("0", 0, 0)):
            code, words = self.bare_setup("set -- --for test", PIP=pip)
            self.assertEqual(code, 0, words)
            found = re.findall(r"To fetch: transformers==.* MB unpacked\)", words)
            self.assertEqual(len(found), fetches, words)
            self.assertEqual(words.count("callback will be skipped"), fails, words)
            self.assertNotIn("To fetch: torch==", words)

    def test_refuses_unknown_options(self):
        code, words = self.setup_script("--everything")
        self.assertNotEqual(code, 0)
        self.assertIn("unknown option --everything", words)

    def test_names_a_libtorch_without_headers(self):
        code, words = run(
            DEPLOY / "setup", LIBTORCH=str(self.folder), RAVENSTORE_CACHE=str(self.folder / "cache")
        )
        self.assertNotEqual(code, 0)
        self.assertIn(f"LIBTORCH={self.folder} holds no include/torch", words)


class BazelTest(InFolder):
    def test_is_bazel_with_the_headers_that_are_found(self):
        stand_in(self.folder / "bin/bazel", '#!/bin/sh\necho "$CUDA_HOME $*"\n')
        for name in ("cuda.h", "crt/host_defines.h"):
            stand_in(
                self.folder / "cache/tools/lib/python3/site-packages/nvidia/cu13/include" / name, ""
            )
        for words in (["build", "//a:b"], ["query", "//a:b"]):
            code, said = run(
                DEPLOY / "bazel", *words,
                PATH=f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                RAVENSTORE_CACHE=str(self.folder / "cache"),
            )  # fmt: skip
            self.assertEqual(code, 0, said)
            self.assertRegex(said, rf"^\S+ {words[0]} .*//a:b$")
            self.assertEqual("--disk_cache" in said, words[0] == "build")


class UnitTest(InFolder):
    UNITS = ("ravenstored.service", "monitoring/ravenstore-exporter.service")

    def test_systemd_accepts_the_units(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze here")
        # It looks for the programs and pages: stand-ins, since only the units are on trial.
        program = self.folder / "program"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        for name in self.UNITS:
            text = (DEPLOY / name).read_text()
            unit = self.folder / name.rsplit("/", 1)[-1]
            unit.write_text(re.sub(r"/usr/local/bin/[\w-]+", str(program), text))
            quiet = ("--man=no", "--recursive-errors=no")
            code, words = run("systemd-analyze", "verify", *quiet, unit)
            if "Failed to" in words and "manager" in words:
                self.skipTest("systemd-analyze does not run here")
            self.assertEqual((code, words.strip()), (0, ""), name)

    def test_they_expose_little(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze here")
        for name in self.UNITS:
            unit = DEPLOY / name
            limits = ("--offline=yes", "--threshold=15")
            code, words = run("systemd-analyze", "security", *limits, unit)
            if "unrecognized option" in words:
                self.skipTest("this systemd-analyze looks at no file")
            self.assertEqual(code, 0, words)

    def test_is_not_tried_again_after_what_would_be_refused_again(self):
        unit = (DEPLOY / "ravenstored.service").read_text()
        main = (ROOT / "daemon/main.cc").read_text()
        codes = [re.search(rf"kExit{what} = (\d+);", main)[1] for what in ("Usage", "Config")]
        self.assertIn(f"\nRestartPreventExitStatus={' '.join(codes)}\n", unit)

    def test_the_configuration_names_the_units_patience(self):
        unit = (DEPLOY / "ravenstored.service").read_text()
        seconds = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)[1]
        config = (DEPLOY / "ravenstored.toml").read_text()
        self.assertIn(f"{seconds} s after SIGTERM (TimeoutStopSec=)", config)

    def test_systemd_would_have_complained(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze here")
        unit = self.folder / "broken.service"
        unit.write_text("[Service]\nExecStart=/bin/true\nFileDescriptorStoreMaximum=4096\n")
        _, words = run("systemd-analyze", "verify", "--man=no", unit)
        self.assertIn("FileDescriptorStoreMaximum", words)


class InstallTest(InFolder):
    """Into a staging folder, with stand-ins for the programs."""

    def setUp(self):
        super().setUp()
        self.stage = self.folder / "stage"
        # A script that builds nevertheless fails immediately.
        stand_in(self.folder / "path/bazel", "#!/bin/sh\nexit 1\n")
        for name in (
            "daemon/ravenstored",
            "client/ctl/ravenctl",
            "sim/ravensim",
            "client/exporter/ravenstore-exporter",
            "client/libravenstore.so",
            "interceptor/libravenstore_intercept.so",
            "elastic/libravenstore_elastic.so",
        ):
            path = self.folder / "bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"stand-in for {name}\n")

    def try_install(self, *arguments, script=DEPLOY / "install", **variables):
        return run(
            script,
            *arguments,
            **{
                "DESTDIR": str(self.stage),
                "RAVENSTORE_BIN": str(self.folder / "bin"),
                "RAVENSTORE_CACHE": str(self.folder / "cache"),
                "PATH": f"{self.folder}/path:/usr/sbin:/usr/bin:/sbin:/bin",
            }
            | variables,
        )

    def install(self, *arguments, **variables):
        code, words = self.try_install(*arguments, **variables)
        self.assertEqual(code, 0, words)
        return words

    def copied_script(self, *changes):
        """deploy/install with `changes` (old, new), in a tree that links to the rest of this."""
        tree = self.folder / "tree"
        shutil.copytree(DEPLOY, tree / "deploy")
        for path in ROOT.iterdir():
            if path.name not in ("deploy", ".git") and not path.name.startswith("bazel-"):
                (tree / path.name).symlink_to(path)
        script = tree / "deploy/install"
        text = script.read_text()
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        script.write_text(text)
        return script

    def installed(self):
        return {
            path.relative_to(self.stage).as_posix(): path.read_bytes()
            for path in self.stage.rglob("*")
            if path.is_file()
        }

    def test_puts_every_file_in_its_place(self):
        self.install("--no-build", "--prefix", "/opt/rv")
        files = self.installed()
        self.assertIn("opt/rv/bin/ravenctl", files)
        self.assertIn("opt/rv/include/ravenstore/client/client.h", files)
        self.assertIn("etc/ravenstore/ravenstored.toml", files)
        unit = files["etc/systemd/system/ravenstored.service"].decode()
        self.assertIn("ExecStart=/opt/rv/bin/ravenstored --config", unit)
        self.assertNotIn("/usr/local/", unit)
        self.assertTrue(os.access(self.stage / "opt/rv/bin/ravenstored", os.X_OK))

    def test_units_of_what_is_under_usr_are_where_packages_have_them(self):
        self.install("--no-build", "--exporter")
        self.install("--no-build", "--prefix", "/usr")
        units = [name for name in self.installed() if name.endswith(".service")]
        folder = "usr/lib/systemd/system/"
        self.assertEqual(
            sorted(units), [folder + "ravenstore-exporter.service", folder + "ravenstored.service"]
        )
        unit = self.installed()[folder + "ravenstored.service"].decode()
        self.assertIn("ExecStart=/usr/bin/ravenstored --config", unit)
        self.assertIn("up to date", self.install("--no-build", "--prefix", "/usr/"))
        self.install("--uninstall")
        left = [name for name in self.installed() if name.endswith(("service", "bin/ravenctl"))]
        self.assertEqual(left, ["usr/local/bin/ravenctl"])

    def test_the_exporter_is_installed_where_it_is_asked_for_and_kept_up_to_date_then(self):
        self.install("--no-build", "--prefix", "/opt/rv")
        self.assertNotIn("opt/rv/bin/ravenstore-exporter", self.installed())
        self.install("--no-build", "--prefix", "/opt/rv", "--exporter")
        unit = self.installed()["etc/systemd/system/ravenstore-exporter.service"].decode()
        self.assertIn("ExecStart=/opt/rv/bin/ravenstore-exporter ", unit)
        self.assertNotIn("/usr/local/", unit)
        self.assertIn("opt/rv/share/ravenstore/alerts.yml", self.installed())
        stand_in(self.folder / "bin/client/exporter/ravenstore-exporter", "a newer one")
        self.install("--no-build", "--prefix", "/opt/rv")
        self.assertEqual(self.installed()["opt/rv/bin/ravenstore-exporter"], b"a newer one")
        self.install("--uninstall")
        left = [name for name in self.installed() if "exporter" in name or "alerts" in name]
        self.assertEqual(left, [])

    def test_shells_complete_and_man_shows_what_is_installed(self):
        stand_in(self.folder / "bin/client/ctl/ravenctl", '#!/bin/sh\necho ".TH $*"\n')
        self.install("--no-build", "--prefix", "/opt/rv")
        files = self.installed()
        for name in ("ravenstored", "ravenctl", "ravensim", "ravenrun"):
            self.assertIn(f"opt/rv/share/bash-completion/completions/{name}", files)
        self.assertIn("opt/rv/share/zsh/site-functions/_ravenstore", files)
        # A page is the program's own words; one that cannot be run here has none.
        self.assertEqual(files["opt/rv/share/man/man1/ravenctl.1"], b".TH --manual 1\n")
        self.assertIn(b".TH RAVENRUN", files["opt/rv/share/man/man1/ravenrun.1"])
        self.assertNotIn("opt/rv/share/man/man8/ravenstored.8", files)
        self.install("--uninstall")
        self.assertEqual(list(self.installed()), ["etc/ravenstore/ravenstored.toml"])

    def test_bash_asks_the_program_what_may_follow(self):
        stand_in(self.folder / "path/ravenctl", '#!/bin/sh\nprintf "%s\\twhat\\n" "$@" status\n')
        script = f"""source {DEPLOY}/completion/ravenstore.bash
complete -p ravenctl ravensim ravenstored ravenstore-exporter ravenrun >/dev/null || exit 1
COMP_WORDS=(ravenctl --json sta) COMP_CWORD=2
_ravenstore ravenctl sta --json
echo "${{COMPREPLY[@]}}"
_ravenrun {DEPLOY}/ravenrun --ma ravenrun
_ravenrun {DEPLOY}/ravenrun --mo ravenrun
echo "${{COMPREPLY[@]}}"
_ravenrun {DEPLOY}/ravenrun e --mode
echo "${{COMPREPLY[@]}}"
"""
        path = f"{self.folder}/path:/usr/bin:/bin"
        code, said = run("bash", "-c", script, PATH=path)
        self.assertEqual((code, said.split()), (0, ["sta", "status", "--mode", "elastic"]), said)

    def test_no_link_of_an_installed_page_dangles(self):
        self.install("--no-build")
        pages = list((self.stage / "usr/local/share/doc").rglob("*.md"))
        self.assertGreater(len(pages), 10)
        for page in pages:
            for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
                self.assertTrue((page.parent / link).exists(), f"{page}: {link}")

    def test_brings_the_shipped_configuration_next_to_the_edited_one(self):
        self.install("--no-build")
        shipped = self.installed()["usr/local/share/ravenstore/ravenstored.toml"]
        self.assertEqual(shipped, (DEPLOY / "ravenstored.toml").read_bytes())

    def test_changes_nothing_the_second_time(self):
        self.install("--no-build")
        before = self.installed()
        words = self.install("--no-build")
        self.assertIn("everything is up to date", words)
        self.assertEqual(self.installed(), before)

    def test_keeps_an_edited_configuration(self):
        self.install("--no-build")
        config = self.stage / "etc/ravenstore/ravenstored.toml"
        config.write_text("# mine\n")
        self.install("--no-build")
        self.assertEqual(config.read_text(), "# mine\n")
        self.assertTrue(config.with_suffix(".toml.dist").exists())

    def test_ravenrun_preloads_the_library_that_was_installed_with_it(self):
        self.install("--no-build", "--prefix", "/opt/rv")
        library = self.stage / "opt/rv/lib/libravenstore_intercept.so"
        ravenrun = self.stage / "opt/rv/bin/ravenrun"
        say = "echo $LD_PRELOAD,$RAVENSTORE_MODE"
        code, words = run(ravenrun, "--mode", "store", "sh", "-c", say)
        self.assertEqual(code, 0, words)
        self.assertIn(f"{library},store\n", words)
        # In store mode it loads the client from its own folder, in elastic mode the engine.
        self.assertTrue((library.parent / "libravenstore.so").exists())
        self.assertTrue((library.parent / "libravenstore_elastic.so").exists())

    def test_what_names_pytorchs_errors_is_installed_where_ravenrun_finds_it(self):
        self.install("--no-build", "--prefix", "/opt/rv")
        ravenrun = self.stage / "opt/rv/bin/ravenrun"
        stand_in_torch(self.folder)
        code, words = run(
            ravenrun, "--mode", "elastic", sys.executable, "-c", RUNS_OUT_OF_MEMORY,
            PYTHONPATH=str(self.folder),
        )  # fmt: skip
        self.assertIn("CUDA out of memory. Allocation on device 0", words)
        self.assertEqual(code, 0, words)

    def test_installs_without_the_elastic_mode_where_its_library_was_not_built(self):
        (self.folder / "bin/elastic/libravenstore_elastic.so").unlink()
        self.assertIn("without ravenrun --mode elastic", self.install("--no-build"))
        self.assertIn("usr/local/bin/ravenrun", self.installed())

    def test_installs_without_ravenrun_where_its_library_was_not_built(self):
        (self.folder / "bin/interceptor/libravenstore_intercept.so").unlink()
        self.assertIn("without ravenrun", self.install("--no-build"))
        self.assertFalse([name for name in self.installed() if "ravenrun" in name])
        self.assertIn("usr/local/lib/libravenstore.so", self.installed())

    def test_names_what_is_not_built_and_what_builds_it(self):
        for name in ("client/ctl/ravenctl", "client/libravenstore.so"):
            (self.folder / "bin" / name).unlink()
        code, words = self.try_install("--no-build")
        self.assertEqual(code, 1, words)
        command = "deploy/bazel build //client/ctl:ravenctl //client:libravenstore.so\n"
        self.assertIn(command, words)
        self.assertFalse(self.stage.exists())

    def test_builds_as_the_user_behind_sudo(self):
        if os.geteuid():
            self.skipTest("only root sees who is behind sudo")
        script = self.copied_script()
        asked = self.folder / "asked"
        for name in ("setup", "bazel"):
            stand_in(script.parent / name, f'#!/bin/sh\necho "{name} $*" >>{asked}\n')
        sudo = f'#!/bin/bash\necho "as $2:" >>{asked}; shift 2; [[ $1 != -H ]] || shift; "$@"\n'
        stand_in(self.folder / "path/sudo", sudo)
        cuda = self.folder / "cuda/include"
        stand_in(cuda / "cuda.h", "")
        stand_in(cuda / "crt/host_defines.h", "")
        built = (
            "build //daemon:ravenstored //client/ctl:ravenctl //sim:ravensim "
            "//client:libravenstore.so "
            "//interceptor:libravenstore_intercept.so //elastic:libravenstore_elastic.so"
        )
        for user in ("alice", ""):
            asked.unlink(missing_ok=True)
            self.install(script=script, SUDO_USER=user, CUDA_HOME=str(cuda.parent))
            said = asked.read_text()
            if user:
                self.assertIn("setup --for install --packages\nas alice:\nsetup --for", said)
                self.assertIn(f"as alice:\nbazel {built}\n", said)
            else:
                self.assertEqual(said, f"setup --for install\nbazel {built}\n")

    def test_restarts_for_the_daemon_and_its_unit_only(self):
        runs = "systemd_runs() { [[ -z $DESTDIR && -d /run/systemd/system ]]; }"
        script = self.copied_script((runs, "systemd_runs() { true; }"))
        asked = self.folder / "asked"
        stand_in(self.folder / "path/systemctl", f'#!/bin/sh\necho "$1" >>{asked}\n')

        def restarted():
            asked.write_text("")
            words = self.install("--no-build", script=script)
            self.assertIn("daemon-reload", asked.read_text().split())
            return "restart" in asked.read_text().split(), words

        self.assertTrue(restarted()[0])
        self.assertFalse(restarted()[0])
        for name in ("usr/local/share/doc/ravenstore/README.md", "usr/local/bin/ravenctl"):
            (self.stage / name).write_text("older\n")
        again, words = restarted()
        self.assertFalse(again)
        self.assertIn("no restart", words)
        for name in ("usr/local/bin/ravenstored", "etc/systemd/system/ravenstored.service"):
            (self.stage / name).write_text("older\n")
            again, words = restarted()
            self.assertTrue(again)
            self.assertIn("attached jobs lose what they stored", words)

    def test_restarts_what_an_interrupted_install_replaced(self):
        runs = "systemd_runs() { [[ -z $DESTDIR && -d /run/systemd/system ]]; }"
        script = self.copied_script((runs, "systemd_runs() { true; }"))
        asked = self.folder / "asked"
        old = self.folder / "old"
        shutil.copy2("/bin/sleep", old)
        daemon = subprocess.Popen([old, "600"])
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        says = f'#!/bin/sh\necho "$1" >>{asked}\n[ "$1" != show ] || echo {daemon.pid}\n'
        stand_in(self.folder / "path/systemctl", says)
        for replaced in (False, True):
            if replaced:
                old.unlink()
            self.install("--no-build", script=script)
            asked.write_text("")
            self.install("--no-build", script=script)
            self.assertEqual("restart" in asked.read_text().split(), replaced)

    def test_ends_when_a_file_cannot_be_written(self):
        stand_in(self.folder / "path/install", "#!/bin/sh\nexit 1\n")
        code, words = self.try_install("--no-build")
        self.assertNotEqual(code, 0, words)
        self.assertNotIn("ravenstored\n", words)

    def test_uninstall_leaves_only_the_configuration(self):
        self.install("--no-build")
        self.assertIn(f"Kept: {self.stage}/etc/ravenstore/rav", self.install("--uninstall"))
        self.assertEqual(list(self.installed()), ["etc/ravenstore/ravenstored.toml"])
        for folder in ("share/doc", "share/ravenstore", "include/ravenstore", "lib/pkgconfig"):
            self.assertFalse((self.stage / "usr/local" / folder).exists(), folder)

    def test_uninstall_says_where_nothing_was_installed(self):
        words = self.install("--uninstall")
        self.assertEqual(
            words, f"Nothing of Ravenstore was installed under {self.stage}/usr/local\n"
        )

    def test_uninstall_finds_the_prefix_in_the_unit(self):
        self.install("--no-build", "--prefix", "/opt/rv")
        self.install("--uninstall")
        self.assertEqual(list(self.installed()), ["etc/ravenstore/ravenstored.toml"])

    def test_uninstall_of_another_prefix_leaves_the_service_its_own(self):
        self.install("--no-build")
        words = self.install("--no-build", "--prefix", "/opt/rv")
        self.assertIn("--uninstall --prefix /usr/local", words)
        words = self.install("--uninstall", "--prefix", "/usr/local")
        self.assertIn("Kept: the service, which runs from /opt/rv", words)
        files = self.installed()
        for name in ("etc/systemd/system/ravenstored.service", "opt/rv/bin/ravenstored"):
            self.assertIn(name, files)
        self.assertIn("usr/lib/sysusers.d/ravenstore.conf", files)
        self.assertFalse([name for name in files if name.startswith("usr/local/")])

    def test_uninstall_names_the_drop_ins_that_it_keeps(self):
        self.install("--no-build")
        drop_in = self.stage / "etc/systemd/system/ravenstored.service.d/override.conf"
        stand_in(drop_in, "[Service]\n")
        self.assertIn(f", {drop_in.parent}\n", self.install("--uninstall"))
        self.assertTrue(drop_in.exists())

    def test_pages_of_an_earlier_version_go(self):
        self.install("--no-build")
        page = self.stage / "usr/local/share/doc/ravenstore/docs/OLD.md"
        page.write_text("old\n")
        self.assertIn(f"removed {page}", self.install("--no-build"))
        self.assertFalse(page.exists())
        self.assertIn("everything is up to date", self.install("--no-build"))

    def test_users_can_read_what_a_strict_root_installs(self):
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        self.install("--no-build")
        for path in self.stage.rglob("*"):
            self.assertEqual(path.stat().st_mode & 0o004, 0o004, path)

    def test_leaves_nothing_in_the_cache_where_it_builds_nothing(self):
        self.install("--no-build")
        self.install("--uninstall")
        self.assertFalse((self.folder / "cache").exists())

    def test_refuses_a_prefix_before_it_touches_anything(self):
        for prefix in ("/opt/my folder", "/opt/a|b", "opt", "/opt/a&b", ""):
            code, words = self.try_install("--no-build", "--prefix", prefix)
            if prefix:
                self.assertEqual(code, 1, words)
                self.assertIn("--prefix wants an absolute folder", words)
                self.assertFalse(self.stage.exists())
        code, words = self.try_install("--prefix")
        self.assertEqual((code, words), (1, "error: --prefix wants a folder (see --help)\n"))

    def test_says_that_an_older_ravenrun_stays(self):
        self.install("--no-build")
        (self.folder / "bin/interceptor/libravenstore_intercept.so").unlink()
        self.assertIn("stay as an earlier install left them", self.install("--no-build"))

    def systemd_says(self, enabled, active):
        """deploy/install with a systemctl that notes its verbs and has these answers."""
        runs = "systemd_runs() { [[ -z $DESTDIR && -d /run/systemd/system ]]; }"
        asked = self.folder / "asked"
        asked.write_text("")
        answers = f"""#!/bin/sh
echo "$1" >>{asked}
case $1 in is-enabled) exit {0 if enabled else 1} ;; is-active) exit {0 if active else 3} ;; esac
"""
        stand_in(self.folder / "path/systemctl", answers)
        if not (self.folder / "tree").exists():
            self.copied_script((runs, "systemd_runs() { true; }"))
        words = self.install("--no-build", script=self.folder / "tree/deploy/install")
        return asked.read_text().split(), words

    def test_a_service_that_was_disabled_stays_so(self):
        verbs, _ = self.systemd_says(enabled=False, active=False)
        self.assertIn("enable", verbs)
        self.assertIn("restart", verbs)
        verbs, words = self.systemd_says(enabled=False, active=False)
        self.assertNotIn("enable", verbs)
        self.assertNotIn("restart", verbs)
        self.assertIn("stays disabled; systemctl enable --now ravenstored", words)

    def test_earlier_failures_do_not_count_against_the_new_daemon(self):
        verbs, _ = self.systemd_says(enabled=True, active=False)
        self.assertLess(verbs.index("reset-failed"), verbs.index("restart"))


class RavenrunTest(InFolder):
    """What it says where its library is not."""

    def setUp(self):
        super().setUp()
        self.script = self.folder / "ravenrun"
        shutil.copy(DEPLOY / "ravenrun", self.script)

    def test_help_is_no_error(self):
        done = subprocess.run([self.script, "--help"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("ravenrun [--mode account|store|elastic]", done.stdout)
        self.assertIn("Without a daemon", done.stdout)

    def test_its_version_is_that_of_the_ravenctl_next_to_it(self):
        stand_in(self.folder / "ravenctl", '#!/bin/sh\necho "$* 1.2.3"\n')
        self.assertEqual(run(self.script, "--version"), (0, "--version 1.2.3\n"))

    def test_wrong_usage_is_an_error_before_a_missing_library_is(self):
        for words, expected in (
            (["--budget=much", "true"], "20GiB"),
            (["--mode", "fast", "true"], "account, store or elastic"),
            (["--check=loud", "true"], "takes no value"),
            (
                ["--loud", "true"],
                "--mode, --budget, --host, --report, --record, --wait, --admit, --socket, --log, "
                "--check",
            ),
            (["--budget"], "wants a value"),
            ([], "ravenrun [--mode"),
        ):
            code, said = run(self.script, *words)
            self.assertEqual(code, 2, said)
            self.assertIn(expected, said)
            self.assertNotIn("RAVENSTORE_LIB", said)
        self.assertIn("RAVENSTORE_LIB", run(self.script, "true")[1])

    def test_an_elastic_jobs_out_of_memory_errors_say_so_in_known_words(self):
        shutil.copytree(DEPLOY / "torch_errors", self.folder / "torch_errors")
        stand_in(self.folder / "libravenstore_intercept.so", "")
        stand_in_torch(self.folder)
        user = self.folder / "user"
        user.mkdir()
        # The user's own start of Python is not hidden.
        (user / "sitecustomize.py").write_text("print('the user was here')\n")
        text = "Allocation on device 0 would exceed allowed memory. (out of memory)"
        for mode, first in (("elastic", f"CUDA out of memory. {text}"), ("store", text)):
            code, said = run(
                self.script, "--mode", mode, sys.executable, "-c", RUNS_OUT_OF_MEMORY,
                PYTHONPATH=f"{self.folder}:{user}",
            )  # fmt: skip
            self.assertEqual(code, 0, said)
            lines = [line for line in said.splitlines() if "preload" not in line]
            self.assertEqual(lines, ["the user was here", first, "another|text"], said)

    def test_a_path_that_cannot_be_preloaded_is_refused(self):
        for name in ("a b", "a:b"):
            folder = self.folder / name
            stand_in(folder / "libravenstore_intercept.so", "")
            shutil.copy(self.script, folder)
            code, said = run(folder / "ravenrun", "true")
            self.assertEqual(code, 2, said)
            self.assertIn("RAVENSTORE_LIB", said)


class RunnerTest(InFolder):
    """deploy/test with stand-ins for all that it calls, some of which die."""

    RESULT = {"name": "clang-tidy", "passed": 1, "failed": [], "skipped": []}
    TIDY = f"""#!/usr/bin/python3
import sys
with open(sys.argv[sys.argv.index("--results") + 1], "a") as out:
    out.write({json.dumps(RESULT)!r} + "\\n")
"""
    DONE = {"id": {"targetConfigured": {"label": "//a:l"}}, "configured": {}}
    SKIPS = """
[[skip]]
target = "*"
reason = ""
needs = "all of this machine"
date = 2026-11-28
"""

    def deploy_test(
        self, events, *arguments, code=0, tidy=TIDY, query="//a:t", git="", sanitize="",
        change=("", ""), **variables,
    ):  # fmt: skip
        """`sanitize`: what a Bazel with sanitizers does with $targets; `change`: in deploy/test."""
        tree = self.folder / "tree"
        (self.folder / "events").write_text(events)
        scripts = ("test", "common.sh", "test_report.py", "run_times.py", "changed_tests.py")
        for name in scripts:
            stand_in(tree / "deploy" / name, (DEPLOY / name).read_text())
        stand_in(tree / "deploy/test", (DEPLOY / "test").read_text().replace(*change))
        stand_in(tree / "tests/skips.toml", self.SKIPS)
        stand_in(tree / "tests/sanitized_sample.txt", "//a:sample\n")
        stand_in(tree / "deploy/setup", "#!/bin/sh\n")
        stand_in(tree / "deploy/clang_tidy.py", tidy)
        versions = '[ "$1" != --list ] || echo 2.9; [ "$1" != --test ] || exit 3'
        stand_in(tree / "deploy/torch_versions", f"#!/bin/sh\n{versions}\n")
        # No files, so that the linters have nothing to do.
        stand_in(self.folder / "bin/git", f"#!/bin/sh\n{git}\n")
        # With a low priority this would take ten times as long next to other work.
        stand_in(self.folder / "bin/renice", "#!/bin/sh\n")
        bazel = f"""#!/bin/bash
if [[ $1 == query ]]; then echo {query or "broken >&2; exit 7"}; fi
echo "$@" >>{self.folder}/asked
for word; do
  if [[ $word == --target_pattern_file=* ]]; then cat "${{word#*=}}" >>{self.folder}/asked; fi
done
targets=${{word#*=}}
if [[ " $* " == *" --config=sanitize "* ]]; then :; {sanitize or ":"}; fi
for word; do
  if [[ $word == --build_event_json_file=* ]]; then
    cat {self.folder}/events >"${{word#*=}}"
    exit {code}
  fi
done
"""
        stand_in(self.folder / "bin/bazel", bazel)
        return run(
            tree / "deploy/test",
            *arguments,
            PATH=f"{self.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            RAVENSTORE_CACHE=str(self.folder / "cache"),
            **variables,
        )

    def setUp(self):
        super().setUp()
        (self.folder / "cache").mkdir()

    def asked(self):
        return (self.folder / "asked").read_text()

    def test_passes_when_all_does(self):
        code, words = self.deploy_test(json.dumps(self.DONE))
        self.assertEqual(code, 0, words)
        self.assertRegex(words.splitlines()[-1], r"^\d+ passed, 0 failed, \d+ skipped$")
        self.assertIn("min  set-up\n", words)
        self.assertIn("min  asan+ubsan\n", words)
        (record,) = (self.folder / "cache/runs.jsonl").read_text().splitlines()
        self.assertEqual(json.loads(record)["kind"], "plain")

    def test_what_is_tagged_full_is_left_to_the_full_run(self):
        self.deploy_test(json.dumps(self.DONE))
        self.assertIn("--test_tag_filters=-full //...", self.asked())
        (self.folder / "asked").unlink()
        self.deploy_test(json.dumps(self.DONE), "--full")
        self.assertNotIn("-full //...", self.asked())

    def test_bazel_killed_while_it_wrote_is_a_failure(self):
        code, words = self.deploy_test(json.dumps(self.DONE)[:-9], code=37)
        self.assertEqual(code, 1, words)
        self.assertRegex(words, r"FAILED  tests: build events that cannot be read")

    def test_a_stage_that_crashed_is_a_failure(self):
        code, words = self.deploy_test(
            json.dumps(self.DONE), "--full", tidy="raise SystemExit(1)\n"
        )
        self.assertEqual(code, 1, words)
        self.assertIn("FAILED  clang-tidy: no result", words)

    def test_each_other_pytorch_is_a_check_of_the_full_run(self):
        code, words = self.deploy_test(json.dumps(self.DONE), "--full")
        self.assertEqual(code, 1, words)
        self.assertIn("FAILED  torch-2.9: torch-2.9", words)

    def test_the_full_run_names_its_commit_last(self):
        _, words = self.deploy_test(json.dumps(self.DONE), "--full")
        self.assertRegex(words.splitlines()[-1], r"^deploy/test --full at .*: \d+ passed, \d+ fa")

    def test_a_resumed_run_leaves_out_the_stages_that_passed(self):
        self.deploy_test(json.dumps(self.DONE), "--full")
        first = self.asked()
        (self.folder / "asked").unlink()
        code, words = self.deploy_test(json.dumps(self.DONE), "--full", "--resume")
        self.assertEqual(code, 1, words)  # torch-2.9 still fails
        self.assertIn("--config=tsan", first)
        self.assertNotIn("--config=tsan", self.asked())
        self.assertIn("passed before on this tree", words)

    def test_sanitizers_without_tests_are_a_failure(self):
        code, words = self.deploy_test(json.dumps(self.DONE), "--full", query="")
        self.assertEqual(code, 1, words)
        for stage in ("asan+ubsan", "fuzz", "tsan"):
            self.assertIn(f"FAILED  {stage}: there is no test for it", words)
        code, words = self.deploy_test(json.dumps(self.DONE), query="")
        self.assertEqual(code, 1, words)
        self.assertIn("FAILED  asan+ubsan: no list of tests", words)

    def sanitized(self):
        """The targets of each call of Bazel with sanitizers."""
        calls = re.findall(r"--config=sanitize .*\n((?://.*\n)*)", self.asked())
        return [call.split() for call in calls]

    def test_sanitizers_take_few_tests_first(self):
        labels = [f"//a:t{number}" for number in range(20)]
        code, words = self.deploy_test(json.dumps(self.DONE), query="'" + "\n".join(labels) + "'")
        self.assertEqual(code, 0, words)
        parts = self.sanitized()
        self.assertEqual([len(part) for part in parts], [1, 2, 4, 8, 5])
        self.assertEqual(sum(parts, []), labels)

    def test_what_sanitizers_did_not_reach_is_named_and_no_failure(self):
        # Bazel is interrupted while it compiles the third part.
        code, words = self.deploy_test(
            json.dumps(self.DONE),
            query="'" + "\n".join(f"//a:t{number}" for number in range(9)) + "'",
            sanitize='if grep -q //a:t3 "$targets"; then exit 124; fi',
        )
        self.assertEqual(code, 0, words)
        self.assertEqual([len(part) for part in self.sanitized()], [1, 2, 4, 2])
        self.assertIn("left to deploy/test --full: 4 targets\n    //a:t3\n", words)

    def test_sanitizers_begin_nothing_when_their_time_is_over(self):
        code, words = self.deploy_test(json.dumps(self.DONE), change=("_changes 300", "_changes 0"))
        self.assertEqual(code, 0, words)
        self.assertEqual(self.sanitized(), [])
        self.assertIn("left to deploy/test --full: 1 targets\n    //a:t\n", words)

    def test_a_base_that_is_no_commit_is_refused(self):
        code, words = self.deploy_test(
            json.dumps(self.DONE), git='[ "$1" != cat-file ]', RAVENSTORE_BASE="v0"
        )
        self.assertEqual(code, 1, words)
        self.assertIn("error: RAVENSTORE_BASE=v0 is no commit of this repository", words)

    def test_every_fuzzer_of_a_target_has_its_seconds(self):
        seconds = {"RAVENSTORE_FUZZ_SECONDS": "1000"}
        self.deploy_test(json.dumps(self.DONE), **seconds)
        (limit,) = re.findall(r"FUZZ_SECONDS=1000 .*--test_timeout=(\d+)", self.asked())
        # //tests/transport:multiplexer_test has four.
        self.assertGreater(int(limit), 4 * 1000 + 300)


class ChangedTestsTest(InFolder):
    """deploy/changed_tests.py in a small repository."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "tree"
        for name in ("tests/core/BUILD", "tests/client/ctl/BUILD", "core/a.cc", "client/ctl/b.h"):
            stand_in(self.root / name, "")
        stand_in(self.root / "tests/sanitized_sample.txt", "//tests/core:a_test //tests/x:y\n")
        self.git("init", "-q")
        self.commit()

    def git(self, *words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        code, words = run("git", "-C", self.root, *identity, *words)
        self.assertEqual(code, 0, words)
        return words.strip()

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD")

    def changed(self, base=""):
        code, words = run(DEPLOY / "changed_tests.py", "--root", self.root, "--base", base)
        self.assertEqual(code, 0, words)
        return words.splitlines()

    def test_without_a_base_it_is_the_sample(self):
        words, query = self.changed()
        self.assertIn("no tests/full_run.txt", words)
        self.assertEqual(query, "set(//tests/core:a_test //tests/x:y)")

    def test_the_tests_of_changed_files_come_first(self):
        base = self.commit()
        stand_in(self.root / "core/a.cc", "// changed")
        stand_in(self.root / "client/ctl/new.cc", "")  # not committed
        stand_in(self.root / "tests/core/c_test.cc", "")
        stand_in(self.root / "README.md", "no source")
        words, first, rest = self.changed(base)
        self.assertIn(f"3 files changed since {base[:12]} ($RAVENSTORE_BASE)", words)
        own = r"//tests/client/ctl:new_test|//tests/core:a_test|//tests/core:c_test"
        self.assertEqual(first, f"filter('^({own})$', //tests/...)")
        self.assertEqual(rest, f"(//tests/client/ctl:all + //tests/core:all) except {first}")

    def test_the_last_full_run_is_a_base(self):
        base = self.commit()
        stand_in(self.root / "tests/full_run.txt", f"{base} 2026-11-28 9 passed\n")
        stand_in(self.root / "core/a.cc", "// changed")
        self.assertIn(f"1 files changed since {base[:12]} (tests/full_run.txt)", self.changed()[0])
        stand_in(self.root / "tests/full_run.txt", "0123456789abcdef0123456789abcdef01234567\n")
        self.assertIn("is not in this clone", self.changed()[0])

    def test_where_no_source_with_tests_changed_it_is_the_sample(self):
        base = self.commit()
        stand_in(self.root / "bench/x.cc", "")
        self.assertIn("no source with tests changed", self.changed(base)[0])


class RunTimesTest(InFolder):
    """deploy/run_times.py on a profile of Bazel's."""

    def test_the_steps_and_the_dearest_actions(self):
        def span(category, name, begin, seconds, thread=1):
            return {
                "ph": "X", "cat": category, "name": name, "ts": begin * 1e6, "dur": seconds * 1e6,
                "tid": thread,
            }  # fmt: skip

        profile = self.folder / "tests.profile.gz"
        events = [
            span("action processing", "Compiling a.cc", 0, 9),
            span("general information", "subprocess.run", 4, 4),
            span("action processing", "Testing //b", 10, 6),
            span("action processing", "Linking c", 0, 20, thread=2),
        ]
        with gzip.open(profile, "wt") as out:
            json.dump({"traceEvents": events}, out)
        (self.folder / "steps").write_text("0\tset-up\n60\ttests\n")
        code, words = run(
            DEPLOY / "run_times.py", "--steps", self.folder / "steps", "--end", "360", "--record",
            self.folder / "record", "--kind", "plain", "--commit", "c", profile,
        )  # fmt: skip
        self.assertEqual(code, 0, words)
        self.assertRegex(words, r"1\.0 min  set-up\n +5\.0 min  tests")
        self.assertRegex(
            words, r"20\.0 s  Linking c\n +6\.0 s  Testing //b\n +4\.0 s  Compiling a\.cc"
        )
        self.assertNotIn("gives no reason", words)
        record = json.loads((self.folder / "record").read_text())
        self.assertEqual((record["minutes"], record["setup_minutes"]), (5, 1))
        self.assertEqual((record["executed"], record["actions"]), (1, 3))

    def test_slow_tests_without_a_reason_are_named(self):
        listed = run_times.SLOW.read_text().splitlines()[-1].partition(" ")[0]
        actions = [
            (99.0, f"Testing {listed}", True),
            (12.0, "Testing //a:slow", True),
            (12.0, "Testing //a:cached", False),
            (9.0, "Testing //a:quick", True),
            (50.0, "Linking //a:program", True),
        ]
        self.assertEqual(run_times.without_reason(actions), ["//a:slow"])

    def test_a_profile_that_was_cut_short_costs_no_more_than_its_actions(self):
        (self.folder / "steps").write_text("0\ttests\n")
        (self.folder / "cut.profile.gz").write_bytes(gzip.compress(b'{"traceEvents":')[:-4])
        code, words = run(
            DEPLOY / "run_times.py", "--steps", self.folder / "steps", "--end", "60", "--record",
            self.folder / "record", "--kind", "plain", "--commit", "c",
            self.folder / "cut.profile.gz",
        )  # fmt: skip
        self.assertEqual(code, 0, words)


CASES = """<testsuites><testsuite>
<testcase name="Good" classname="S" status="run" result="completed"/>
<testcase name="Bad" classname="S" status="run" result="completed"><failure message="x"/></testcase>
<testcase name="NoGpu" classname="S" status="run" result="skipped"><skipped message="no GPU"/>
</testcase></testsuite></testsuites>"""


class ReportTest(InFolder):
    """deploy/test's counting: what it prints decides whether a change lands."""

    SKIPS = '[[skip]]\ntarget = "//a:*"\nreason = "no GPU"\nneeds = "a GPU"\n'

    def setUp(self):
        super().setUp()
        self.skips(self.SKIPS)

    def skips(self, text):
        path = self.folder / "skips.toml"
        path.write_text(text)
        test_report.allowed_skips.cache_clear()
        patch = unittest.mock.patch.object(test_report, "SKIPS", path)
        patch.start()
        self.addCleanup(patch.stop)

    def report(self, events, code):
        path = self.folder / "events.json"
        path.write_text("\n".join(json.dumps(event) for event in events))
        return self.read_report(path, code)

    def read_report(self, path, code):
        results = self.folder / "results"
        results.unlink(missing_ok=True)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            test_report.main(["bazel", "tests", str(path), str(code), str(results)])
            status = test_report.main(["total", str(results)])
        self.said = said.getvalue()
        return status, self.said.splitlines()[-1]

    def result(self, label, status, xml):
        path = self.folder / f"{len(xml)}.xml"
        path.write_text(xml)
        files = [{"name": "test.xml", "uri": f"file://{path}"}]
        return {
            "id": {"testResult": {"label": label}},
            "testResult": {"status": status, "testActionOutput": files},
        }

    def configured(self, label):
        kind = {"targetKind": "cc_test rule"}
        return {"id": {"targetConfigured": {"label": label}}, "configured": kind}

    def test_counts_the_cases_of_a_target(self):
        events = [self.configured("//a:t"), self.result("//a:t", "FAILED", CASES)]
        self.assertEqual(self.report(events, 3), (1, "1 passed, 1 failed, 1 skipped"))

    def test_the_end_of_a_failed_log_is_printed_with_its_exit_code(self):
        events = [self.configured("//a:t"), self.result("//a:t", "TIMEOUT", CASES)]
        (self.folder / "test.log").write_text("".join(f"line {i}\n" for i in range(100)))
        self.report(events, 3)
        self.assertIn("tests: //a:t (TIMEOUT)\nline 70\n", self.said)
        self.assertIn("line 99\n----\n", self.said)
        self.assertNotIn("line 69\n", self.said)
        (self.folder / "test.log").unlink()
        self.report(events, 3)
        self.assertIn("no log: ", self.said)
        self.report([self.result("//a:t", "PASSED", CASES)], 0)
        self.assertNotIn("----", self.said)

    def test_what_a_failed_case_said_is_printed_next_to_its_name(self):
        said = CASES.replace('message="x"', 'message="one&#10;  two"')
        self.report([self.configured("//a:t"), self.result("//a:t", "FAILED", said)], 3)
        self.assertRegex(self.said, r"FAILED  tests: //a:t \S+\n    one two\n1 passed, 1 failed")

    def test_a_crash_after_passing_cases_is_a_failure(self):
        good = CASES.replace('<failure message="x"/>', "")
        events = [self.configured("//a:t"), self.result("//a:t", "FAILED", good)]
        self.assertEqual(self.report(events, 3), (1, "2 passed, 1 failed, 1 skipped"))

    def test_a_target_that_was_not_built_is_a_failure(self):
        events = [self.configured("//a:t"), self.configured("//a:u")]
        events += [self.result("//a:t", "PASSED", CASES.replace('<failure message="x"/>', ""))]
        self.assertEqual(self.report(events, 1), (1, "2 passed, 1 failed, 1 skipped"))

    def test_a_target_whose_tag_the_command_left_out_is_not_missed(self):
        options = {"explicitCmdLine": ["--jobs=2", "--test_tag_filters=-full,-slow"]}
        long = self.configured("//a:long")
        long["configured"]["tag"] = ["exclusive", "full"]
        events = [{"id": {"optionsParsed": {}}, "optionsParsed": options}, long]
        events += [self.result("//a:t", "PASSED", CASES.replace('<failure message="x"/>', ""))]
        self.assertEqual(self.report(events, 0), (0, "2 passed, 0 failed, 1 skipped"))
        # Left out, but it does not build.
        events += [{"id": {"targetCompleted": {"label": "//a:long"}}, "completed": {}}]
        self.assertEqual(self.report(events, 1), (1, "2 passed, 1 failed, 1 skipped"))
        # Not left out.
        self.assertEqual(self.report(events[1:3], 0), (1, "2 passed, 1 failed, 1 skipped"))

    def test_a_skip_that_is_not_listed_is_a_failure(self):
        good = CASES.replace('<failure message="x"/>', "")
        for text in (self.SKIPS.replace("//a:", "//b:"), self.SKIPS.replace("no GPU", "x"), ""):
            self.skips(text)
            self.assertEqual(
                self.report([self.result("//a:t", "PASSED", good)], 0),
                (1, "2 passed, 1 failed, 0 skipped"),
            )
            self.assertIn("tests/skips.toml does not list it: no GPU", self.said)

    def test_each_run_of_a_repeated_test_counts(self):
        good = CASES.replace('<failure message="x"/>', "")
        events = [self.result("//a:t", "PASSED", good), self.result("//a:t", "FAILED", CASES)]
        for number, event in enumerate(events, 1):
            event["id"]["testResult"]["run"] = number
        self.assertEqual(self.report(events, 3), (1, "3 passed, 1 failed, 2 skipped"))

    def test_what_an_interrupted_bazel_did_not_reach_is_left_to_the_full_run(self):
        good = CASES.replace('<failure message="x"/>', "")
        events = [self.configured(f"//a:{name}") for name in "tuv"]
        events += [self.result("//a:t", "PASSED", good), self.result("//a:u", "INCOMPLETE", "")]
        self.assertEqual(self.report(events, 124), (0, "2 passed, 0 failed, 1 skipped"))
        self.assertIn("left to deploy/test --full: 2 targets\n    //a:u\n    //a:v", self.said)
        events[3] = self.result("//a:t", "FAILED", CASES)
        self.assertEqual(self.report(events, 124), (1, "1 passed, 1 failed, 1 skipped"))
        events = [{"id": {"targetCompleted": {"label": "//a:v"}}, "completed": {}}]
        self.assertEqual(self.report(events, 124), (1, "0 passed, 1 failed, 0 skipped"))

    def test_an_incompatible_target_is_skipped(self):
        self.skips('[[skip]]\ntarget = "*"\nreason = "this machine lacks"\n')
        skipped = {"id": {"targetCompleted": {"label": "//a:u"}}, "aborted": {"reason": "SKIPPED"}}
        events = [self.configured("//a:u"), skipped]
        # Nothing passed, so the whole run is no success.
        self.assertEqual(self.report(events, 4), (1, "0 passed, 0 failed, 1 skipped"))

    def test_a_target_without_pytorch_says_what_left_it_out(self):
        label = "//tests/python:a_test"
        self.skips('[[skip]]\ntarget = "//tests/python:*"\nreason = ""\n')
        skipped = {"id": {"targetCompleted": {"label": label}}, "aborted": {"reason": "SKIPPED"}}
        for value, words in (("1", "RAVENSTORE_WITHOUT_TORCH=1"), ("", "no Python with PyTorch")):
            with unittest.mock.patch.dict(os.environ, RAVENSTORE_WITHOUT_TORCH=value):
                self.assertIn(words, test_report.why_incompatible(label))
                counts = self.report([self.configured(label), skipped], 4)
                self.assertEqual(counts, (1, "0 passed, 0 failed, 1 skipped"))

    def test_bazel_ending_badly_is_a_failure(self):
        self.assertEqual(self.report([], 37), (1, "0 passed, 1 failed, 0 skipped"))

    def test_events_cut_short_are_a_failure_and_count_as_far_as_they_go(self):
        good = CASES.replace('<failure message="x"/>', "")
        for cut in (10, 60, 120):
            path = self.folder / "events.json"
            path.write_text(json.dumps(self.result("//a:t", "PASSED", good)) + "\n")
            with path.open("a") as out:
                out.write(json.dumps(self.result("//a:u", "FAILED", CASES))[:cut])
            self.assertEqual(self.read_report(path, 37), (1, "2 passed, 1 failed, 1 skipped"), cut)

    def test_a_script_that_lacks_its_tool_is_skipped(self):
        path = self.folder / "test.xml"
        code, words = run(
            "/bin/sh", ROOT / "tests/client/no_syscalls_test.sh", "/bin/true",
            PATH=str(self.folder), XML_OUTPUT_FILE=str(path), TEST_TMPDIR=str(self.folder),
        )  # fmt: skip
        self.assertEqual(code, 0, words)
        self.skips('[[skip]]\ntarget = "//a:t"\nreason = ""\n')
        events = [self.result("//a:t", "PASSED", path.read_text())]
        self.assertEqual(self.report(events, 0), (1, "0 passed, 0 failed, 1 skipped"))

    def test_passes_when_all_do(self):
        events = [self.result("//a:t", "PASSED", CASES.replace('<failure message="x"/>', ""))]
        self.assertEqual(self.report(events, 0), (0, "2 passed, 0 failed, 1 skipped"))


if __name__ == "__main__":
    xml_main.main()
