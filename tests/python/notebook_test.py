#!/usr/bin/python3
"""examples/notebook.ipynb: its cells run as they stand. notebook_kernel_test.py has Jupyter."""

import json
import unittest

import harness
import xml_main

NOTEBOOK = harness.ROOT / "examples/notebook.ipynb"


def cells():
    """The code of each cell."""
    return [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


class CellsTest(unittest.TestCase):
    def test_they_run(self):
        # With what a notebook would show of the last expressions.
        run = harness.run_python("\n".join(cells()), RAVENSTORE_EMBEDDED="")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("optimizer states", run.stdout)

    def test_the_notebook_has_no_outputs(self):
        notebook = json.loads(NOTEBOOK.read_text())
        self.assertFalse([cell for cell in notebook["cells"] if cell.get("outputs")])


class TablesTest(unittest.TestCase):
    def test_text_is_escaped(self):
        from ravenstore import _rich

        shown = _rich.table("a <b>", [("x", "1 < 2")], ["note & more"], head=("name", "value"))
        self.assertIn("a &lt;b&gt;", shown)
        self.assertIn(">1 &lt; 2</td>", shown)
        self.assertIn("<p>note &amp; more</p>", shown)
        self.assertEqual(shown.count("<tr>"), 2)


if __name__ == "__main__":
    xml_main.main()
