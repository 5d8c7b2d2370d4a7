// Our libraries in the folder of this one.
//
// Threads: any.
#pragma once

namespace ravenstore::interceptor {

// Loads `name`, a path relative to the folder of this library, privately; null: not there.
void* LoadNear(const char* name);
// The function `symbol` of a library that LoadNear loaded; false: it has none.
template <typename Function>
bool TakeFunction(void* library, const char* symbol, Function* function);
void* FunctionOf(void* library, const char* symbol);

template <typename Function>
bool TakeFunction(void* library, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(FunctionOf(library, symbol));
  return *function != nullptr;
}

}  // namespace ravenstore::interceptor
