// A store without a daemon, for the adapter's tests: the C ABI over malloc, which counts, checks
// the order of calls and makes misuse visible. A tensor that is put loses its address: its bytes
// move away and the old memory is poisoned and freed. A later read there returns rubbish (and
// AddressSanitizer reports it).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/client.h"

namespace ravenstore::fake {

struct Counts {
  uint64_t tensors = 0;  // exist
  uint64_t in_use = 0;   // gets (and creates) without their put
  uint64_t adopts = 0;
  uint64_t gets = 0;
  uint64_t puts = 0;
  uint64_t frees = 0;
  uint64_t trims = 0;
  uint64_t steps = 0;
  uint64_t misuses = 0;  // calls in a wrong state
};
Counts counts();

// The orders that the puts so far gave, oldest first.
std::vector<int64_t> orders();

// The next adopt (or get) fails with this code.
void FailNextAdopt(ravenstore_code_t code);
void FailNextGet(ravenstore_code_t code);

// From now on every stream's work may have run on lost bytes.
void LoseBytes();

// What stats() says; 0 until it is set.
void SetDeviceBudget(uint64_t bytes);

// A fresh store, with counts from zero.
std::shared_ptr<Store> Connect();

}  // namespace ravenstore::fake
