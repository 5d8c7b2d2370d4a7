// What the native part needs of PyTorch's own Python module. Its headers want all of Python.h,
// while module.cc keeps to the stable ABI: torch_python.cc is compiled apart, with what is the same
// in every CPython from 3.10 on.
//
// Threads: the caller holds the GIL, but for HasGil.
#pragma once

#include <Python.h>

#include <exception>

#include <ATen/core/Tensor.h>

namespace ravenstore::python {

// The tensor that a Python object holds, valid while the object is; null if it holds none. Throws
// what SetTorchError converts.
const at::Tensor* TensorOf(PyObject* object);
// A new reference; null with Python's error set.
PyObject* Wrap(at::TensorBase tensor);
// Converts a C++ exception of PyTorch's to a Python error, as PyTorch's own functions do.
void SetTorchError(const std::exception_ptr& error);
// Whether this thread holds the GIL.
bool HasGil();

}  // namespace ravenstore::python
