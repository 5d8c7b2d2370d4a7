// CALL(cuInit, 0): a driver function, loaded at run time, for the small measuring programs. What is
// missing or fails ends the program, with its reason on standard error.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

namespace ravenstore::bench {

inline void* FindDriverCall(const char* symbol) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* found = library != nullptr ? dlsym(library, symbol) : nullptr;
  if (found != nullptr) return found;
  fprintf(stderr, "no %s in libcuda.so.1\n", symbol);
  exit(2);
}

inline void MustSucceed(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s failed with %d\n", what, result);
  exit(1);
}

// The exported name of what cuda.h calls `symbol`: some are macros for a later version.
#define DRIVER_NAME_OF(symbol) #symbol
#define DRIVER_FUNCTION(symbol)           \
  (reinterpret_cast<decltype(&(symbol))>( \
      ::ravenstore::bench::FindDriverCall(DRIVER_NAME_OF(symbol))))
#define CALL(symbol, ...) \
  ::ravenstore::bench::MustSucceed(DRIVER_FUNCTION(symbol)(__VA_ARGS__), #symbol)

// A kernel of nothing, named "empty", which takes an address.
inline constexpr char kEmptyKernel[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry empty(.param .u64 words) { ret; }\n";

// The kernel of that name in `ptx`; of a fake driver (tests/fake_cuda), which reads no PTX, its
// own.
inline CUfunction LoadKernel(const char* name, const char* ptx) {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  if (DRIVER_FUNCTION(cuModuleLoadData)(&module, ptx) != CUDA_SUCCESS)
    CALL(cuModuleLoadData, &module, name);
  CALL(cuModuleGetFunction, &kernel, module, name);
  return kernel;
}

}  // namespace ravenstore::bench
