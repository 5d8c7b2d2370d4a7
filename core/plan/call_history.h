// What a client has called so far, and which of its tensors play the same part in each pass.
//
// Calls that pin (creates and gets) are compared; puts and frees come when the GPU is done, so that
// their order says little. A tensor that was made at a call that corresponds to an earlier create
// has that tensor's role. Ids and sizes may differ in each pass, roles do not.
//
// Places where the same kChain calls ended before are found by a hash of their kinds and sizes.
// Source: LZ77's hash chains (Deutsch, RFC 1951, section 4).
//
// Only the last kCallsMax calls are kept. A freed tensor is forgotten with the last call that it is
// in, and a role with the last tensor that has it. Numbers of calls count all calls of the client.
//
// Owns: the calls and the roles. Units: times are the client's virtual time. Threads: one at a
// time. Cost: O(kChain) a call. Memory: about 80 bytes for each call that is kept, and 70 for each
// tensor that lives.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/chunked.h"
#include "core/plan/calls.h"
#include "core/types.h"

namespace ravenstore::core::plan {

// A tensor, among all that the history knows (core/plan/tensor_indexes.h).
using TensorIndex = uint32_t;
// A part that tensors play one after the other. The history may have forgotten all of them before
// others play another part with the same number.
using RoleNumber = uint64_t;
// The number of a call or of a pinning call, from 0. 32 bits would be used up within days.
using CallNumber = uint64_t;

class CallHistory {
 public:
  // A call that does not exist.
  static constexpr CallNumber kNone = ~CallNumber{0};
  // A tensor, or a role, that does not exist.
  static constexpr TensorIndex kNoTensor = ~TensorIndex{0};
  static constexpr RoleNumber kNoRole = ~RoleNumber{0};
  // How many calls are kept. Lower: a pass of more calls is not followed, and has no plan. Higher:
  // a client takes more memory; this many take some 10 MiB.
  static constexpr CallNumber kCallsMax = 1 << 17;

  struct Call {
    CallKind kind;
    bool modifies;
    TensorIndex tensor;
    Duration at;
  };
  struct Tensor {
    Bytes size;
    RoleNumber role = kNoRole;
    uint32_t calls = 0;  // of those that are kept
    CallNumber freed = kNone;
  };

  // REQUIRES: a tensor's first call is its create, with its size, and no call follows its free. The
  // index of a create is not known.
  void Add(const Call& call, Bytes size);

  // REQUIRES of all calls: they are kept.
  const Call& operator[](CallNumber call) const { return calls_[call]; }
  // The first call that is kept, and one more than the last.
  CallNumber first() const { return first_; }
  CallNumber size() const { return calls_.size(); }
  // Those that pin, by their own number.
  const Call& pinning(CallNumber n) const { return calls_[pinning_[n].call]; }
  CallNumber CallOf(CallNumber n) const { return pinning_[n].call; }
  CallNumber first_pinning() const { return first_pinning_; }
  CallNumber pinning_calls() const { return pinning_.size(); }

  // REQUIRES: it lives or is in a call that is kept.
  const Tensor& tensor(TensorIndex tensor) const { return tensors_[tensor]; }
  size_t tensors() const { return known_; }
  bool Knows(TensorIndex tensor) const {
    return tensor < tensors_.size() && tensors_[tensor].role != kNoRole;
  }
  // One more than the largest number of a role.
  RoleNumber roles() const { return roles_.size(); }
  // The live tensor that has the role now; kNoTensor: none has.
  TensorIndex HolderOf(RoleNumber role) const;

  // The two pinning calls may correspond: the same kind of call; of a get the same role; of creates
  // the same size, and the earlier tensor was freed before the later one came.
  bool Same(CallNumber later, CallNumber earlier) const;
  // Where the same kChain pinning calls ended before; kNone: in no call that is kept.
  CallNumber SameChainBefore(CallNumber n) const;
  // The two correspond: a tensor that was created has the earlier one's role.
  void Accept(CallNumber later, CallNumber earlier);
  // The last call that was accepted as corresponding to this one; kNone: none was.
  CallNumber LaterOf(CallNumber n) const { return pinning_[n].later; }

  struct Suffix {
    int score = 0;  // calls, less a penalty for each get of tensors not known to correspond
    uint32_t length = 0;
  };
  // The tensors of one comparison whose roles are not known to correspond. Many comparisons use the
  // same table: a search compares some 10^5 calls.
  class Unknowns {
   public:
    explicit Unknowns(const CallHistory& history);

    struct Tensor {
      TensorIndex tensor = kNoTensor;
      TensorIndex counterpart = kNoTensor;
      uint32_t comparison = 0;
      int gets = 0;  // that are counted as unknown until the create is seen
    };
    void BeginComparison() { ++comparison_; }
    // The tensor, or where it is to be added: one of another comparison.
    Tensor& Find(TensorIndex tensor);
    bool IsKnown(const Tensor& of) const { return of.comparison == comparison_; }
    void Add(Tensor* at, TensorIndex tensor, TensorIndex counterpart) const {
      *at = {tensor, counterpart, comparison_};
    }

   private:
    std::vector<Tensor> table_;  // by hash, then the next that is free; at most half is in use
    uint32_t comparison_ = 0;
  };
  // How long the calls that end at the two are alike. Adds the calls it compares to `work`.
  Suffix CommonSuffix(CallNumber later, CallNumber earlier, Unknowns* unknowns,
                      uint32_t* work) const;

 private:
  // The last kCallsMax items, each by the number of those that were added before it.
  template <typename Item>
  class Ring {
   public:
    void Add(const Item& item) {
      if (items_.size() < kCallsMax) {
        items_.push_back(item);
      } else {
        items_[size_ % kCallsMax] = item;
      }
      ++size_;
    }
    const Item& operator[](CallNumber n) const {
      RAVEN_CHECK(n < size_);
      RAVEN_CHECK(size_ - n <= kCallsMax);
      return items_[n % kCallsMax];
    }
    Item& operator[](CallNumber n) { return const_cast<Item&>(std::as_const(*this)[n]); }
    CallNumber size() const { return size_; }

   private:
    Chunked<Item, 256> items_;
    CallNumber size_ = 0;
  };
  struct PinningCall {
    CallNumber call;
    Bytes size;  // of its tensor
    uint64_t chain = 0;
    CallNumber chain_before = kNone;
    CallNumber later = kNone;
  };
  struct Role {
    TensorIndex holder = kNoTensor;
    uint32_t tensors = 0;  // that have it
  };
  bool IsFreedBefore(CallNumber earlier, CallNumber later) const;
  RoleNumber RoleOf(TensorIndex tensor) const { return tensors_[tensor].role; }
  void SetRole(TensorIndex tensor, RoleNumber role);
  void LeaveRole(TensorIndex tensor);
  RoleNumber AddRole();
  void AddToChains();
  void DropFirst();

  Ring<Call> calls_;
  Ring<PinningCall> pinning_;
  CallNumber first_ = 0;
  CallNumber first_pinning_ = 0;
  std::unordered_map<uint64_t, CallNumber> chain_ends_;  // of those that are kept
  Chunked<Tensor, 256> tensors_;                         // by index; without a role: not known
  size_t known_ = 0;
  Chunked<Role, 256> roles_;
  Chunked<RoleNumber, 256> free_roles_;
};

}  // namespace ravenstore::core::plan
