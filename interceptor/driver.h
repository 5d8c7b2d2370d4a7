// Functions of the loaded driver and of NVML that have no hook, or whose real ones are wanted.
//
// They are found in the library that is loaded (elf.h): this library never loads one that the
// program did not.
//
// Threads: any; nothing here locks.
#pragma once

#include <atomic>

namespace ravenstore::interceptor {

// A function of the loaded driver ("cuCtxGetDevice"), or null. Cache what you get.
void* DriverFunction(const char* symbol);
// The same, looked for until it was found once.
template <typename Function>
Function* Cached(std::atomic<Function*>* slot, const char* symbol) {
  Function* known = slot->load(std::memory_order_relaxed);
  if (known == nullptr) {
    known = reinterpret_cast<Function*>(DriverFunction(symbol));
    slot->store(known, std::memory_order_relaxed);
  }
  return known;
}
// The same of the loaded NVML.
void* NvmlFunction(const char* symbol);

}  // namespace ravenstore::interceptor
