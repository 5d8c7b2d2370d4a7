#include "interceptor/near.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "interceptor/elf.h"

namespace ravenstore::interceptor {

void* LoadNear(const char* name) {
  char path[PATH_MAX];
  const char* own = ObjectOf(reinterpret_cast<const void*>(&LoadNear));
  const char* slash = strrchr(own, '/');
  const int folder = slash == nullptr ? 0 : static_cast<int>(slash - own) + 1;
  const int length = snprintf(path, sizeof(path), "%.*s%s", folder, own, name);
  const bool fits = length > 0 && length < static_cast<int>(sizeof(path));
  return fits ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
}

void* FunctionOf(void* library, const char* symbol) {
  return dlsym(library, symbol);
}

}  // namespace ravenstore::interceptor
