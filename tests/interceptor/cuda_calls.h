// Shared by the toy programs that call the driver by name: the first call that fails ends them,
// and the fake driver reports what it saw.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>

#include <string>

// The first call that failed; "" and 0: none.
struct Failure {
  std::string call;
  int code = 0;
};
inline Failure failure;

// Ends what is under way: nothing is enqueued after a call that failed.
struct Stop {};

inline void Must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  failure = {call, result};
  throw Stop{};
}
#define MUST(function, ...) Must(function(__VA_ARGS__), #function)

// Where the driver is the fake one: what a function of its controls says.
template <typename Value>
bool Ask(const char* name, Value* value) {
  void* function = dlsym(RTLD_DEFAULT, name);
  if (function != nullptr) *value = reinterpret_cast<Value (*)()>(function)();
  return function != nullptr;
}

// A run of words in device memory.
struct Words {
  CUdeviceptr at = 0;
  uint64_t count = 0;
  CUdeviceptr From(uint64_t word) const { return at + word % count * sizeof(uint64_t); }
};
