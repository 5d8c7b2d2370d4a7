// Writes a trace call by call, for the generators.
//
// Owns: the trace, until it is taken. Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "core/types.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// Whole units of 512 bytes, as allocators give them, and at least one.
inline core::Bytes Round(double bytes) {
  return core::Bytes(std::max<uint64_t>(512, static_cast<uint64_t>(bytes) / 512 * 512));
}

// From 0 to 1, and the same with every library.
inline double Unit(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

class Builder {
 public:
  explicit Builder(std::string_view name, uint32_t clients = 1) {
    trace_.name = name;
    trace_.clients = clients;
  }
  void As(uint32_t client) { client_ = client; }
  uint32_t Create(core::Bytes bytes, std::string name = {}) {
    trace_.tensors.push_back({client_, bytes, std::move(name)});
    const auto tensor = static_cast<uint32_t>(trace_.tensors.size() - 1);
    Add({.kind = OpKind::kCreate, .tensor = tensor});
    return tensor;
  }
  void Get(uint32_t tensor, bool read_only = true) {
    Add({.kind = OpKind::kGet, .tensor = tensor, .read_only = read_only});
  }
  void Put(uint32_t tensor, bool modified = false) {
    Add({.kind = OpKind::kPut, .tensor = tensor, .modified = modified});
  }
  void Free(uint32_t tensor) { Add({.kind = OpKind::kFree, .tensor = tensor}); }
  void Compute(double seconds) {
    Add({.kind = OpKind::kCompute, .time = core::FromSeconds(seconds)});
  }
  void Step() { Add({.kind = OpKind::kStep}); }
  // A tensor that is filled and put.
  uint32_t Make(core::Bytes bytes, std::string name = {}) {
    const uint32_t tensor = Create(bytes, std::move(name));
    Put(tensor, true);
    return tensor;
  }
  core::Bytes SizeOf(uint32_t tensor) const { return trace_.tensors[tensor].bytes; }
  Trace Take() { return std::move(trace_); }

 private:
  void Add(Op op) {
    op.client = client_;
    trace_.ops.push_back(op);
  }
  Trace trace_;
  uint32_t client_ = 0;
};

}  // namespace ravenstore::sim
