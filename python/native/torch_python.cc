// pybind11's own management reads what is inside of CPython's types.
#define PYBIND11_SIMPLE_GIL_MANAGEMENT
#include "python/native/torch_python.h"

#include <utility>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace ravenstore::python {

const at::Tensor* TensorOf(PyObject* object) {
  return THPVariable_Check(object) ? &THPVariable_Unpack(object) : nullptr;
}

PyObject* Wrap(at::TensorBase tensor) {
  return THPVariable_Wrap(std::move(tensor));
}

void SetTorchError(const std::exception_ptr& error) {
  ::torch::translate_exception_to_python(error);
}

// Not in the stable ABI, and the same function in every CPython since 3.4.
bool HasGil() {
  return Py_IsInitialized() && PyGILState_Check();
}

}  // namespace ravenstore::python
