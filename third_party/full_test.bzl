"""full_sh_test: a unittest file of which deploy/test runs some cases, deploy/test --full all."""

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
