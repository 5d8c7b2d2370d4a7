// libstdc++.a's random_device calls arc4random, which glibc has since 2.36. Its object is in every
// program that links that archive, so that each would want the newer glibc.
#include <sys/random.h>

#include <cstdint>

extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t value = 0;
  // So few bytes come whole, or not at all where a signal came first.
  while (::getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}
