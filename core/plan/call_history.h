// What a client has called so far, and which of its tensors play the same part in each pass.
//
// Calls that pin (creates and gets) are compared; puts and frees come when the GPU is done, so that
// their order says little. A tensor that was made at a call that corresponds to an earlier create
// has that tensor's role. Ids and sizes may differ in each pass, roles do not.
//
// Places where the same kChain calls ended before are found by a hash of their kinds and sizes.
// Source: LZ77's hash chains (Deutsch, RFC 1951, section 4).
//
// Owns: the calls and the roles. Units: times are the client's virtual time. Threads: one at a
// time. Cost: O(kChain) a call. Memory: 60 bytes a call; it grows with the client's calls.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/plan/calls.h"
#include "core/types.h"

namespace ravenstore::core::plan {

// A tensor as its client numbers them, densely from 0.
using TensorIndex = uint32_t;

class CallHistory {
 public:
  // Of a call, a tensor or a role that does not exist.
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Call {
    CallKind kind;
    bool modifies;
    TensorIndex tensor;
    Duration at;
  };
  struct Tensor {
    Bytes size;
    uint32_t role = kNone;  // the tensor that played this part first
    uint32_t freed = kNone;
  };

  // REQUIRES: a tensor's first call is its create, with its size.
  void Add(const Call& call, Bytes size);

  // All calls.
  const Call& operator[](uint32_t call) const { return calls_[call]; }
  uint32_t size() const { return static_cast<uint32_t>(calls_.size()); }
  // Those that pin, by their own number.
  const Call& pinning(uint32_t n) const { return calls_[pinning_[n]]; }
  uint32_t CallOf(uint32_t n) const { return pinning_[n]; }
  uint32_t pinning_calls() const { return static_cast<uint32_t>(pinning_.size()); }

  const Tensor& tensor(TensorIndex tensor) const { return tensors_[tensor]; }
  // The live tensor that has the role now; kNone: none has.
  uint32_t HolderOf(uint32_t role) const { return holders_[role]; }

  // The two pinning calls may correspond: the same kind of call; of a get the same role; of creates
  // the same size, and the earlier tensor was freed before the later one came.
  bool Same(uint32_t later, uint32_t earlier) const;
  // Where the same kChain pinning calls ended before; kNone: nowhere.
  uint32_t SameChainBefore(uint32_t n) const { return chains_[n]; }
  // The two correspond: a tensor that was created has the earlier one's role.
  void Accept(uint32_t later, uint32_t earlier);

  struct Suffix {
    int score = 0;  // calls, less a penalty for each get of tensors not known to correspond
    uint32_t length = 0;
  };
  // How long the calls that end at the two are alike. Adds the calls it compares to `work`.
  Suffix CommonSuffix(uint32_t later, uint32_t earlier, uint32_t* work) const;

 private:
  bool IsGone(uint32_t earlier, uint32_t later) const;
  void SetRole(TensorIndex tensor, uint32_t role);
  void AddToChains();

  std::vector<Call> calls_;
  std::vector<uint32_t> pinning_;  // of calls_
  std::vector<uint32_t> chains_;   // by pinning call
  std::unordered_map<uint64_t, uint32_t> chain_ends_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> holders_;  // by role
};

}  // namespace ravenstore::core::plan
