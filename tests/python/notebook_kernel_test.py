#!/usr/bin/python3
"""examples/notebook.ipynb runs as it stands, in a Jupyter kernel with this Python's PyTorch.

The kernel's packages are kept in $RAVENSTORE_CACHE, fetched once from PyPI.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness
import xml_main

NOTEBOOK = harness.ROOT / "examples/notebook.ipynb"
PACKAGES = ("nbclient==0.11.0", "nbformat==5.11.1", "ipykernel==7.4.0")
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300).execute()
nbformat.write(notebook, sys.argv[2])
"""


class KernelTest(unittest.TestCase):
    def test_it_runs_and_shows_tables(self):
        cache = os.environ.get("RAVENSTORE_CACHE", os.path.expanduser("~/.cache/ravenstore"))
        tools = pathlib.Path(cache, "notebook-tools")
        wanted = " ".join([*PACKAGES, sys.executable])
        if not (tools / "packages").exists() or (tools / "packages").read_text() != wanted:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tools]
            subprocess.run([*command, "--upgrade", *PACKAGES], check=True)
            (tools / "packages").write_text(wanted)
        path = os.pathsep.join([str(harness.ROOT / "python"), str(tools)])
        with tempfile.TemporaryDirectory() as folder:
            kernels = pathlib.Path(folder, "kernels/python3")
            kernels.mkdir(parents=True)
            (kernels / "kernel.json").write_text(
                json.dumps(
                    {
                        "argv": [
                            sys.executable,
                            "-m",
                            "ipykernel_launcher",
                            "-f",
                            "{connection_file}",
                        ],
                        "display_name": "Python 3",
                        "language": "python",
                    }
                )
            )
            ran = pathlib.Path(folder, "ran.ipynb")
            environment = {
                **os.environ,
                "PYTHONPATH": path,
                "JUPYTER_PATH": folder,
                "HOME": folder,
                "RAVENSTORE_EMBEDDED": "",
            }
            command = [sys.executable, "-c", RUN, NOTEBOOK, ran]
            run = subprocess.run(command, capture_output=True, text=True, env=environment)
            self.assertEqual(run.returncode, 0, run.stderr)
            outputs = [
                output
                for cell in json.loads(ran.read_text())["cells"]
                for output in cell.get("outputs", [])
            ]
        tables = [o for o in outputs if "text/html" in o.get("data", {})]
        self.assertEqual(len(tables), 3)  # the plan, what moved, the estimate


if __name__ == "__main__":
    xml_main.main()
