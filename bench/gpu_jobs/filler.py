"""Fills a store with tensors that were put, and keeps them until "quit".

    filler.py LIBRAVENSTORE dirty|discarded LIMIT

$RAVENSTORE_SOCKET names the daemon. discarded: they can be recomputed in no time, so that their
bytes are discarded rather than copied. It says how many bytes it made, in place of a process's
number: {"ready": N}.
"""

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

EACH = 256 << 20
RAVENSTORE_FAIL_FAST = 1


# The first fields of ravenstore_create_options_t and ravenstore_put_options_t: their size says so.
class CreateOptions(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("device", c_int32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("timeout_ns", c_uint64),
    )


class PutOptions(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("needed_in_ns", c_uint64),
        ("order", c_int64),
        ("recompute_ns", c_uint64),
    )


def main():
    library, sort, limit = sys.argv[1:]
    recompute_ns = {"dirty": 0, "discarded": 1}[sort]
    lib = ctypes.CDLL(library)
    lib.ravenstore_create.argtypes = [c_void_p, c_uint64, c_void_p, c_void_p]
    lib.ravenstore_put.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p]
    lib.ravenstore_last_error.restype = c_char_p

    def must(code):
        if code:
            raise SystemExit(f"filler: {code} {lib.ravenstore_last_error().decode()}")

    store = c_void_p()
    must(lib.ravenstore_connect(None, byref(store)))
    create = CreateOptions(ctypes.sizeof(CreateOptions), 0, RAVENSTORE_FAIL_FAST, None, 0)
    put = PutOptions(ctypes.sizeof(PutOptions), 0, 0, 0, recompute_ns)
    total = 0
    while total + EACH <= int(limit):
        tensor = c_void_p()
        if lib.ravenstore_create(store, EACH, byref(create), byref(tensor)):
            why = lib.ravenstore_last_error().decode()
            print(f"filler: stops at {total >> 20} MiB: {why}", file=sys.stderr)
            break
        must(lib.ravenstore_put(store, tensor, None, byref(put)))
        total += EACH
    print(json.dumps({"ready": total}), flush=True)
    for line in sys.stdin:
        if line.startswith("quit"):
            return


if __name__ == "__main__":
    main()
