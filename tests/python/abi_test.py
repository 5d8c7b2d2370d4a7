#!/usr/bin/python3
"""ravenstore._abi says what client/ravenstore.h says: its values by a C compiler, its prototypes by
their text."""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import harness
import xml_main
from ravenstore import _abi

HEADER = harness.ROOT / "client/ravenstore.h"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")

# A type as the header spells it (without const): what ctypes passes for it.
TYPES = {
    "void": None,
    "char*": ctypes.c_char_p,
    "void*": ctypes.c_void_p,
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "ptrdiff_t": ctypes.c_ssize_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint64_t*": ctypes.POINTER(ctypes.c_uint64),
    "void**": ctypes.POINTER(ctypes.c_void_p),
    "ravenstore_code_t": ctypes.c_int,
    "ravenstore_store_t*": ctypes.c_void_p,
    "ravenstore_store_t**": ctypes.POINTER(ctypes.c_void_p),
    "ravenstore_tensor_t*": ctypes.c_void_p,
    "ravenstore_tensor_t**": ctypes.POINTER(ctypes.c_void_p),
    "ravenstore_region_t*": ctypes.c_void_p,
    "ravenstore_region_t**": ctypes.POINTER(ctypes.c_void_p),
    "ravenstore_set_t*": ctypes.c_void_p,
    "ravenstore_set_t**": ctypes.POINTER(ctypes.c_void_p),
    "ravenstore_stream_t": ctypes.c_void_p,
    "ravenstore_stream_t*": ctypes.POINTER(ctypes.c_void_p),
    "ravenstore_host_stream_t": ctypes.c_void_p,
    "void(*)(void*)": _abi.HOST_FUNCTION,
    **{name + "_t*": ctypes.POINTER(kind) for name, kind in _abi.STRUCTS.items()},
}


def text_of_header():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    return re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)


def spelled(declaration, named=True):
    """A declaration's type without its name, const and spaces."""
    function = re.fullmatch(r"\s*void \(\*\w+\)\(void\*\)\s*", declaration)
    if function:
        return "void(*)(void*)"
    words = re.sub(r"\bconst\b", "", declaration)
    if named:
        words = re.sub(r"\w+\s*$", "", words)
    return re.sub(r"\s+", "", words)


def split_arguments(text):
    if text.strip() == "void":
        return []
    return re.split(r",(?![^(]*\))", text)


def prototypes():
    """{function: (result, [argument])}, as ctypes has types."""
    found = {}
    pattern = r"RAVENSTORE_API\s+([\w\s*]+?)(ravenstore_\w+)\((.*?)\);"
    for match in re.finditer(pattern, text_of_header(), re.DOTALL):
        result = TYPES[spelled(match[1], named=False)]
        arguments = [TYPES[spelled(word)] for word in split_arguments(match[3])]
        found[match[2]] = (result, arguments)
    return found


def structs():
    """{struct: [field]} in the header's order."""
    return {
        match[1]: re.findall(r"(\w+)\s*;", match[2])
        for match in re.finditer(r"typedef struct (\w+) \{(.*?)\}", text_of_header(), re.DOTALL)
    }


def enumerators():
    text = "".join(re.findall(r"\benum\b[^{;]*\{(.*?)\}", text_of_header(), re.DOTALL))
    return re.findall(r"\b(RAVENSTORE_\w+)\s*=", text)


def compiled(expressions):
    """The value of each C expression, by the compiler."""
    lines = [f'  printf("%lld\\n", (long long)({expression}));' for expression in expressions]
    source = "\n".join(
        [
            "#include <stddef.h>",
            "#include <stdio.h>",
            f'#include "{HEADER}"',
            "int main(void) {",
            *lines,
            "  return 0; }",
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "values.c")
        program = os.path.join(folder, "values")
        with open(path, "w", encoding="utf-8") as out:
            out.write(source)
        subprocess.run([COMPILER, path, "-o", program], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, printed.split()), strict=True))


class AbiTest(unittest.TestCase):
    def test_names_every_function_with_its_types(self):
        found = prototypes()
        self.assertGreater(len(found), 25)  # the text was understood
        self.assertEqual(set(found), set(_abi.FUNCTIONS))
        for name, (result, arguments) in found.items():
            with self.subTest(name):
                self.assertEqual(_abi.FUNCTIONS[name], (result, arguments))

    def test_has_the_fields_of_every_struct_at_their_places(self):
        self.assertEqual(set(structs()), set(_abi.STRUCTS))
        wanted = {}
        for name, fields in structs().items():
            kind = _abi.STRUCTS[name]
            self.assertEqual([field[0] for field in kind._fields_], fields)
            wanted[f"sizeof({name}_t)"] = ctypes.sizeof(kind)
            for field, place in ((field, getattr(kind, field)) for field in fields):
                wanted[f"offsetof({name}_t, {field})"] = place.offset
                wanted[f"sizeof((({name}_t*)0)->{field})"] = place.size
        self.assertEqual(compiled(list(wanted)), wanted)

    def test_has_the_signs_of_every_field(self):
        for name, kind in _abi.STRUCTS.items():
            for field, ctype in kind._fields_:
                signed = re.search(rf"\bint\d+_t {field};", text_of_header()) is not None
                if ctype is not ctypes.c_char_p:
                    self.assertEqual(ctype(-1).value < 0, signed, f"{name}.{field}")

    def test_has_the_value_of_every_enumerator(self):
        wanted = {
            f"RAVENSTORE_{'PRIORITY_' if kind is _abi.Priority else ''}{name}": int(value)
            for kind in _abi.ENUMS
            for name, value in kind.__members__.items()
        }
        self.assertEqual(set(enumerators()), set(wanted))
        self.assertEqual(compiled(list(wanted)), wanted)

    def test_package_and_library_are_of_one_version(self):
        import ravenstore

        self.assertEqual(_abi.library().ravenstore_version().decode(), ravenstore.__version__)

    def test_every_code_has_a_class_of_its_own(self):
        from ravenstore import errors

        for code in _abi.Code:
            if code != _abi.Code.OK:
                error = errors.error_of(code, "words")
                self.assertEqual((error.code, str(error)), (code, "words"))
                self.assertIsNot(type(error), errors.RavenstoreError)


class FindingTest(unittest.TestCase):
    IMPORT = "import ravenstore._abi as a; print(a.library()._name)"

    def test_takes_the_library_that_the_environment_names(self):
        run = harness.run_python(self.IMPORT, RAVENSTORE_LIBRARY=harness.LIBRARY)
        self.assertEqual(run.stdout.strip(), harness.LIBRARY, run.stderr)

    def test_then_the_one_next_to_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "ravenstore")
            shutil.copytree(harness.ROOT / "python/ravenstore", package)
            shutil.copy(harness.LIBRARY, package)
            environment = {"RAVENSTORE_LIBRARY": "", "PYTHONPATH": folder}
            text = f"import sys; sys.path.insert(0, {folder!r}); " + self.IMPORT
            run = harness.run_python(text, **environment)
            self.assertEqual(run.stdout.strip(), package + "/libravenstore.so", run.stderr)

    def test_says_where_it_looked_and_what_to_do(self):
        run = harness.run_python(self.IMPORT, RAVENSTORE_LIBRARY="/nowhere/libravenstore.so")
        self.assertIn("LibraryNotFound", run.stderr)
        self.assertIn("/nowhere/libravenstore.so: no such file", run.stderr)
        self.assertIn("RAVENSTORE_LIBRARY", run.stderr)

    def test_importing_loads_neither_the_library_nor_pytorch(self):
        text = "import sys, ravenstore; print('torch' in sys.modules)"
        run = harness.run_python(text, RAVENSTORE_LIBRARY="/nowhere/libravenstore.so")
        self.assertEqual(run.stdout.strip(), "False", run.stderr)


if __name__ == "__main__":
    xml_main.main()
