#!/usr/bin/python3
"""The toolkit's own static runtime finds the interceptor wherever it looks for the driver.

It finds the driver here, too, but does not work on it: it asks for tables of the driver's, by which
it checks whether that is the real one. Real programs on it are what bench/interceptor_gpu runs."""

import re
import subprocess

from fakes import HERE, PROGRAMS, FakeGpuTest, main
from harness import PATIENCE, Job, guest

TABLE = "interceptor/hooks.def"
# What its allocations end in.
LEAST = (
    "cuInit", "cuMemAlloc", "cuMemFree", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync",
    "cuMemFreeAsync", "cuMemAllocFromPoolAsync", "cuArrayCreate", "cuArray3DCreate",
    "cuArrayDestroy", "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy", "cuMemGetInfo",
    "cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset", "cuGraphLaunch", "cuGraphAddMemAllocNode", "cuDeviceGraphMemTrim",
    "cuGetProcAddress",
)  # fmt: skip


class RealRuntimeTest(FakeGpuTest):
    def begin(self, **variables):
        return subprocess.run(
            [str(HERE / "real_runtime")],
            env=guest(PROGRAMS, "/nowhere", **variables),
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        ).stdout  # fmt: skip

    def test_it_calls_the_driver_through_the_interceptor(self):
        report = self.folder.name + "/report"
        self.begin(RAVENSTORE_INTERCEPT_CHECK=report)
        with open(report) as file:
            words = file.read()
        self.assertRegex(words, r"captured \d+ dlsym")
        self.assertRegex(words, r"called \d+ cuInit \(")
        self.assertNotIn("ESCAPED", words)

    def test_all_that_it_asks_for_and_we_hook_is_answered_with_our_own(self):
        asked = self.folder.name + "/asked"
        self.begin(RAVENSTORE_FAKE_CUDA_ASKED=asked)
        with open(TABLE) as table:
            hooked = set(re.findall(r'^HOOK\(kDriver, "(\w+)"', table.read(), re.M))
        self.assertEqual(set(LEAST) - hooked, set())
        with Job([str(HERE / "prober")], guest(PROGRAMS, "/nowhere")) as one:
            answers = one.ask(f"answers {asked}")
        named = {question.split()[0] for question in answers if question}
        self.assertEqual(sorted(set(LEAST) - named), [])
        for question, ours in answers.items():
            if question:
                self.assertEqual(ours, question.split()[0] in hooked, question)
        # Those of per-thread default streams are other functions.
        self.assertTrue(any(q.startswith("cuMemAllocAsync ") and q.endswith(" 2") for q in answers))


if __name__ == "__main__":
    main()
