// Libraries of ours that lie beside this one.
//
// Threads: any.
#pragma once

namespace ravenstore::interceptor {

// Loads `name`, a path seen from the folder that this library lies in, privately; null: not there.
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
