#include "interceptor/driver.h"

#include "interceptor/elf.h"

namespace ravenstore::interceptor {

void* DriverFunction(const char* symbol) {
  return FindInLibrary("libcuda.so", symbol);
}

void* NvmlFunction(const char* symbol) {
  return FindInLibrary("libnvidia-ml.so", symbol);
}

}  // namespace ravenstore::interceptor
