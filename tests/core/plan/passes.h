// Programs that repeat, call by call, for tests of what follows them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/plan/call_history.h"

namespace ravenstore::core::plan {

// A training step in small: tensors are created and put in order, got back in reverse order, and
// freed. Their ids are new in each pass.
class Passes {
 public:
  using Observer = std::function<void(const CallHistory::Call&, Bytes)>;

  Passes(uint32_t layers, Observer observe) : layers_(layers), observe_(std::move(observe)) {}

  // `inserted`: as many tensors more, of a size of their own, in the middle of the pass.
  void Run(uint32_t inserted = 0) {
    const uint32_t first = next_;
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      const TensorIndex tensor = next_++;
      Call(CallKind::kCreate, tensor, SizeOf(layer));
      Call(CallKind::kPut, tensor, SizeOf(layer));
    }
    for (uint32_t i = 0; i < inserted; ++i) {
      const TensorIndex tensor = next_++;
      Call(CallKind::kCreate, tensor, KiB(777));
      Call(CallKind::kFree, tensor, KiB(777));
    }
    for (uint32_t layer = layers_; layer-- > 0;) {
      Call(CallKind::kGet, first + layer, SizeOf(layer));
      Call(CallKind::kFree, first + layer, SizeOf(layer));
    }
  }
  // Creates as many tensors, of sizes that are not repeated.
  void RunOther(uint32_t tensors) {
    for (uint32_t i = 0; i < tensors; ++i)
      Call(CallKind::kCreate, next_++, GiB(1) + KiB(1) * other_sizes_++);
  }
  // Pinning calls of a pass.
  uint32_t pinning() const { return 2 * layers_; }
  uint32_t tensors() const { return next_; }

 private:
  static Bytes SizeOf(uint32_t layer) { return MiB(2 + layer % 5); }
  void Call(CallKind kind, TensorIndex tensor, Bytes size) {
    at_ += std::chrono::microseconds(100);
    observe_({kind, false, tensor, at_}, size);
  }

  uint32_t layers_;
  Observer observe_;
  TensorIndex next_ = 0;
  uint64_t other_sizes_ = 0;
  Duration at_{0};
};

}  // namespace ravenstore::core::plan
