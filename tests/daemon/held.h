// Tensors of a test with bytes that say whose they are, and what comes of reading them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "client/client.h"
#include "tests/daemon/pattern.h"

namespace ravenstore::daemon {

struct Held {
  Tensor tensor;
  uint64_t seed = 0;
};
enum class Outcome : uint8_t { kRight, kWrong, kLost };

// Makes `count` tensors of `bytes` bytes each, each with the next seed, and puts them.
inline std::vector<Held> MakeHeld(Store& store, int count, uint64_t bytes, uint64_t* seeds) {
  std::vector<Held> made;
  for (int i = 0; i < count; ++i) {
    made.push_back({store.create(bytes), ++*seeds});
    FillPattern(made.back().tensor.data(), bytes, made.back().seed);
    store.put(made.back().tensor, nullptr);
  }
  return made;
}

// Gets it, compares every byte, and puts it.
inline Outcome ReadHeld(Store& store, Held& held, uint64_t bytes) {
  try {
    void* data = store.get(held.tensor, nullptr, {.blocking = true});
    const bool right = HoldsPattern(data, bytes, held.seed);
    store.put(held.tensor, nullptr);
    return right ? Outcome::kRight : Outcome::kWrong;
  } catch (const Lost&) {
    return Outcome::kLost;
  }
}

}  // namespace ravenstore::daemon
