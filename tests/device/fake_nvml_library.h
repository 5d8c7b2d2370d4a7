// libfakenvml.so as this process has it.
#pragma once

#include <dlfcn.h>
#include <stdlib.h>

#include <string>

#include "core/check.h"
#include "tests/device/fake_nvml.h"

namespace ravenstore::device {

inline std::string FakeNvmlLibrary() {
  const char* library = getenv("RAVENSTORE_FAKE_LIBNVML");
  RAVEN_CHECK(library != nullptr);
  return library;
}

// As new.
inline FakeNvmlControls& FakeNvml() {
  void* library = dlopen(FakeNvmlLibrary().c_str(), RTLD_NOW | RTLD_LOCAL);
  RAVEN_CHECK(library != nullptr);
  auto* const find = reinterpret_cast<FakeNvmlFunction*>(dlsym(library, "FakeNvml"));
  RAVEN_CHECK(find != nullptr);
  return *find() = {};
}

}  // namespace ravenstore::device
