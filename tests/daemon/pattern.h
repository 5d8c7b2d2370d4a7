// Bytes of which every word says whose it is, of which version and at which place.
#pragma once

#include <cstdint>

namespace ravenstore::daemon {

// REQUIRES: `bytes` is a multiple of 8.
inline void FillPattern(void* data, uint64_t bytes, uint64_t seed) {
  auto* words = static_cast<uint64_t*>(data);
  for (uint64_t i = 0; i < bytes / 8; ++i) words[i] = seed * 0x9e3779b97f4a7c15u + i;
}
// How many bytes are not as FillPattern left them.
inline uint64_t WrongBytes(const void* data, uint64_t bytes, uint64_t seed) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < bytes / 8; ++i)
    wrong += words[i] == seed * 0x9e3779b97f4a7c15u + i ? 0 : 8;
  return wrong;
}

inline bool HoldsPattern(const void* data, uint64_t bytes, uint64_t seed) {
  return WrongBytes(data, bytes, seed) == 0;
}

}  // namespace ravenstore::daemon
