#include "tests/device/backends.h"

namespace ravenstore::device {

std::unique_ptr<TestBackend> OpenCudaBackend(const std::string&, bool, std::string* why_not) {
  *why_not = "built without the CUDA toolkit";
  return nullptr;
}

}  // namespace ravenstore::device
