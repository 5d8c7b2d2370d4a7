"""The examples of the pages about Python run as they stand, in their order, on the host backend."""

import builtins
import re
import unittest

import harness
import xml_main

PAGES = [
    "docs/finetune.md",
    "docs/python.md",
    "docs/pytorch.md",
    "docs/pytorch-optimizer.md",
    "docs/pytorch-profiling.md",
]
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


class DocsTest(unittest.TestCase):
    def test_every_example_runs(self):
        for page in PAGES:
            code = program((harness.ROOT / page).read_text())
            self.assertGreater(len(re.findall(r"\S", code)), 100, page)
            with self.subTest(page), harness.daemon() as socket:
                run = harness.run_python(RUN, code, page, RAVENSTORE_SOCKET=socket)
                self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_an_example_that_fails_is_told_with_its_line(self):
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
