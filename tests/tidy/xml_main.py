"""unittest.main() that also writes the test.xml that deploy/test counts, if Bazel asks for one."""

import os
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class _Result(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cases = []
        self._began = time.monotonic()

    def startTest(self, test):
        super().startTest(test)
        self._began = time.monotonic()

    def _case(self, test, kind=None, words=""):
        suite = type(test).__name__
        name = getattr(test, "_testMethodName", str(test))
        took = f"{time.monotonic() - self._began:.3f}"
        case = ElementTree.Element("testcase", classname=suite, name=name, time=took)
        if kind:
            ElementTree.SubElement(case, kind, message=words.strip()[:2000])
        self.cases.append(case)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._case(test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._case(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._case(test, "failure", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self._case(test, "error", str(err[1]))


def main(module="__main__"):
    """Runs the tests of `module`, or those that the command line names as Class.test."""
    loader = unittest.defaultTestLoader
    if names := sys.argv[1:]:
        suite = loader.loadTestsFromNames(names, sys.modules[module])
    else:
        suite = loader.loadTestsFromModule(sys.modules[module])
    runner = unittest.TextTestRunner(sys.stdout, verbosity=2, resultclass=_Result)
    result = runner.run(suite)
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        root = ElementTree.Element("testsuites")
        ElementTree.SubElement(root, "testsuite", name="unittest").extend(result.cases)
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    # A class that is skipped as a whole ran no test, and said why.
    ran = result.testsRun or result.skipped
    sys.exit(0 if result.wasSuccessful() and ran else 1)
