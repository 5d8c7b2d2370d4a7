// What people call a call: a kernel's name, or the driver's function that was called.
//
// Threads: any.
#pragma once

#include <cuda.h>

#include <string>

namespace ravenstore::elastic {

struct Caller {
  const char* kind = nullptr;     // "cuMemcpyAsync", "graph"; null: not given
  CUfunction function = nullptr;  // of a launch, valid now; a CUkernel may stand for one
};

class CallNames {
 public:
  static constexpr size_t kLongest = 255;

  CallNames() = default;
  // `find` gives the driver's real functions, as LoadDriver's.
  explicit CallNames(void* (*find)(const char* symbol));
  // Printable ASCII, at most kLongest bytes, never empty.
  std::string Of(const Caller& caller) const;

 private:
  // Null: the driver has none.
  decltype(&cuFuncGetName) of_function_ = nullptr;
  decltype(&cuKernelGetName) of_kernel_ = nullptr;
};

}  // namespace ravenstore::elastic
