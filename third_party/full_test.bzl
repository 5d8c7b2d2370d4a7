"""Tests of which deploy/test runs some cases, deploy/test --full all."""

def full_sh_test(name, short, args = [], tags = [], size = "large", **kwargs):
    """NAME runs the cases `short` (Class, or Class.test); ..._full_test, tagged "full", runs all.

    `short` may be empty: then the former is left out.
    """
    if short:
        native.sh_test(name = name, size = size, args = args + short, tags = tags, **kwargs)
    native.sh_test(
        name = name[:-len("_test")] + "_full_test",
        size = size,
        args = args,
        tags = tags + ["full"],
        **kwargs
    )

def full_cc_test(name, long, tags = [], **kwargs):
    """NAME runs all cases but `long`; ..._full_test, tagged "full", runs these.

    The program is compiled and linked once. `long`: patterns of GoogleTest.
    """
    native.cc_test(
        name = name,
        args = ["--gtest_filter=-" + ":".join(long)],
        tags = tags,
        **kwargs
    )
    native.sh_test(
        name = name[:-len("_test")] + "_full_test",
        size = "large",
        srcs = ["//third_party:run_cases.sh"],
        args = [
            "$(location :%s)" % name,
            "--gtest_filter=" + ":".join(long),
        ],
        data = [":" + name],
        tags = tags + ["full"],
    )
