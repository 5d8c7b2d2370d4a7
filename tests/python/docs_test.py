"""The examples of the pages about Python run as they stand, in their order, on the host backend."""

import builtins
import pathlib
import re
import tempfile
import unittest

import harness
import xml_main

# What a page's examples take for granted, in one line so that the page's lines keep their numbers.
PAGES = {
    "docs/estimator.md": "import torch; Net = lambda: torch.nn.Linear(784, 10);"
    "open('train.py', 'w').write('import sys, torch; model = torch.nn.Linear(9, 9).cuda();"
    " optimizer = torch.optim.SGD(model.parameters());"
    " [(model(torch.zeros(int(sys.argv[2]), 9).cuda()).sum().backward(), optimizer.step())"
    " for _ in range(3)]')",
    "docs/finetune.md": "",
    "docs/python.md": "",
    "docs/pytorch.md": "",
    "docs/pytorch-optimizer.md": "",
    "docs/pytorch-profiling.md": "",
    "docs/share.md": "import ravenstore, torch; model = torch.nn.Linear(300, 100);"
    "paths = {'a': 'a.safetensors', 'b': 'model'}; wanted = 'b';"
    "answer = lambda weights: print(sorted(weights))",
}
PAGES_FOR_GPUS = {
    "docs/sleep.md": "import torch; Model = lambda: torch.nn.Linear(4096, 4096);"
    "batches = [torch.ones(8, 4096)]; train = lambda *_: torch.cuda.synchronize();",
}
# Each test's daemon has a device of this size.
DEVICE = "256MiB"
RUN = "import sys; exec(compile(sys.argv[1], sys.argv[2], 'exec'))"


def program(text):
    """The page's ```python blocks as one program whose lines have the page's numbers."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside and line.strip() == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


def write_models(folder):
    """Files for the examples that load them."""
    import torch

    weights = torch.nn.Linear(300, 100).state_dict()
    (folder / "model").mkdir()
    for path in ("a.safetensors", "model/model.safetensors"):
        harness.write_safetensors(folder / path, weights)


class DocsTest(unittest.TestCase):
    def test_every_example_runs(self):
        for page, before in PAGES.items():
            code = program((harness.ROOT / page).read_text())
            self.assertGreater(len(re.findall(r"\S", code)), 100, page)
            code = before + code
            folder = tempfile.TemporaryDirectory()
            with self.subTest(page), folder as here, harness.daemon(device_total=DEVICE) as socket:
                write_models(pathlib.Path(here))
                run = harness.run_python(
                    f"import os; os.chdir({here!r}); {RUN}", code, page, RAVENSTORE_SOCKET=socket
                )
                self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_every_example_for_a_gpu_runs(self):
        import torch

        if not torch.cuda.is_available():
            self.skipTest("no GPU here")
        for page, before in PAGES_FOR_GPUS.items():
            code = before + program((harness.ROOT / page).read_text())
            with self.subTest(page), harness.daemon("--backend", "cuda") as socket:
                run = harness.run_python(RUN, code, page, RAVENSTORE_SOCKET=socket)
                self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_an_example_that_fails_is_reported_with_its_line(self):
        page = "# A page\n```python\nx = 1\n```\n```sh\nexit 1\n```\n```python\nx / 0\n```\n"
        run = harness.run_python(RUN, program(page), "page.md")
        self.assertIn('"page.md", line 9', run.stderr)
        self.assertIn("ZeroDivisionError", run.stderr)

    def test_the_table_of_errors_is_complete_in_what_it_names(self):
        import ravenstore

        rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? ?\|", page_text(), re.MULTILINE)
        self.assertGreater(len(rows), 8)
        for name, also in rows:
            kind = getattr(ravenstore, name)
            self.assertTrue(issubclass(kind, ravenstore.RavenstoreError), name)
            if also:
                self.assertTrue(issubclass(kind, getattr(builtins, also)), name)


def page_text():
    return (harness.ROOT / "docs/python.md").read_text()


if __name__ == "__main__":
    xml_main.main()
