#include "core/plan/call_history.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core::plan {

namespace {
// Calls that are compared at most: bounds one comparison.
constexpr uint32_t kLongest = 1 << 13;
constexpr uint64_t kMix = 0x9e3779b97f4a7c15;
constexpr uint64_t kMixCall = 0xff51afd7ed558ccd;
constexpr uint64_t kKindWeight = 1'000'003;
}  // namespace

void CallHistory::Add(const Call& call, Bytes size) {
  if (this->size() - first_ == kCallsMax) DropFirst();
  const CallNumber index = this->size();
  calls_.Add(call);
  tensors_.GrowTo(call.tensor + 1);
  Tensor& of = tensors_[call.tensor];
  ++of.calls;
  if (call.kind == CallKind::kCreate) {
    RAVEN_CHECK(of.role == kNoRole);
    ++known_;
    of.size = size;
    SetRole(call.tensor, AddRole());
  }
  RAVEN_CHECK(of.role != kNoRole);
  if (call.kind == CallKind::kFree) {
    of.freed = index;
    Role& role = roles_[of.role];
    if (role.holder == call.tensor) role.holder = kNoTensor;
  }
  if (!Pins(call.kind)) return;
  pinning_.Add({.call = index, .size = of.size});
  AddToChains();
}

void CallHistory::DropFirst() {
  const Call& call = calls_[first_];
  if (Pins(call.kind)) {
    const auto end = chain_ends_.find(pinning_[first_pinning_].chain);
    if (end != chain_ends_.end() && end->second == first_pinning_) chain_ends_.erase(end);
    ++first_pinning_;
  }
  Tensor& tensor = tensors_[call.tensor];
  if (--tensor.calls == 0 && tensor.freed != kNone) {
    LeaveRole(call.tensor);
    tensor = {};
    --known_;
  }
  ++first_;
}

void CallHistory::AddToChains() {
  const CallNumber n = pinning_calls() - 1;
  if (n + 1 < first_pinning_ + kChain) return;
  uint64_t hash = 0;
  for (uint32_t i = 0; i < kChain; ++i) {
    const uint64_t size = pinning_[n - i].size.count();
    hash =
        hash * kMix + (static_cast<uint64_t>(pinning(n - i).kind) * kKindWeight + size) * kMixCall;
  }
  hash ^= hash >> 29;
  PinningCall& call = pinning_[n];
  call.chain = hash;
  const auto [end, is_new] = chain_ends_.try_emplace(hash, n);
  if (!is_new) call.chain_before = std::exchange(end->second, n);
}

CallNumber CallHistory::SameChainBefore(CallNumber n) const {
  const CallNumber before = pinning_[n].chain_before;
  return before == kNone || before < first_pinning_ ? kNone : before;
}

TensorIndex CallHistory::HolderOf(RoleNumber role) const {
  return role < roles_.size() ? roles_[role].holder : kNoTensor;
}

void CallHistory::SetRole(TensorIndex tensor, RoleNumber role) {
  Tensor& of = tensors_[tensor];
  if (of.role == role) return;
  if (of.role != kNoRole) LeaveRole(tensor);
  of.role = role;
  Role& joined = roles_[role];
  ++joined.tensors;
  if (of.freed == kNone) joined.holder = tensor;
}

void CallHistory::LeaveRole(TensorIndex tensor) {
  const RoleNumber role = tensors_[tensor].role;
  Role& left = roles_[role];
  if (left.holder == tensor) left.holder = kNoTensor;
  if (--left.tensors == 0) free_roles_.push_back(role);
}

RoleNumber CallHistory::AddRole() {
  if (free_roles_.empty()) {
    roles_.push_back({});
    return roles_.size() - 1;
  }
  const RoleNumber role = free_roles_.back();
  free_roles_.pop_back();
  return role;
}

bool CallHistory::IsFreedBefore(CallNumber earlier, CallNumber later) const {
  const CallNumber freed = tensor(pinning(earlier).tensor).freed;
  return freed != kNone && freed < CallOf(later);
}

bool CallHistory::Same(CallNumber later, CallNumber earlier) const {
  const Call& a = pinning(later);
  const Call& b = pinning(earlier);
  if (a.kind != b.kind) return false;
  if (a.kind == CallKind::kGet) return RoleOf(a.tensor) == RoleOf(b.tensor);
  return pinning_[later].size == pinning_[earlier].size && IsFreedBefore(earlier, later);
}

void CallHistory::Accept(CallNumber later, CallNumber earlier) {
  pinning_[earlier].later = later;
  const Call& call = pinning(later);
  if (call.kind == CallKind::kCreate) SetRole(call.tensor, RoleOf(pinning(earlier).tensor));
}

CallHistory::Unknowns::Unknowns(const CallHistory& history)
    : table_(2 * std::bit_ceil(std::min<CallNumber>(
                     kLongest, history.pinning_calls() - history.first_pinning()))) {}

CallHistory::Unknowns::Tensor& CallHistory::Unknowns::Find(TensorIndex tensor) {
  const size_t mask = table_.size() - 1;
  size_t at = tensor & mask;
  while (table_[at].comparison == comparison_ && table_[at].tensor != tensor) at = (at + 1) & mask;
  return table_[at];
}

CallHistory::Suffix CallHistory::CommonSuffix(CallNumber later, CallNumber earlier,
                                              Unknowns* unknowns, uint32_t* work) const {
  unknowns->BeginComparison();
  Suffix best;
  int unknown = 0;
  for (uint32_t i = 0; i <= earlier - first_pinning_ && i < kLongest; ++i, ++*work) {
    const Call& a = pinning(later - i);
    const Call& b = pinning(earlier - i);
    if (a.kind != b.kind || pinning_[later - i].size != pinning_[earlier - i].size) break;
    Unknowns::Tensor& of = unknowns->Find(a.tensor);
    const bool is_known = unknowns->IsKnown(of);
    if (is_known && of.counterpart != b.tensor) break;
    if (a.kind == CallKind::kCreate) {
      if (!IsFreedBefore(earlier - i, later - i)) break;
      // No earlier call has the tensor.
      if (is_known) unknown -= of.gets;
    } else if (RoleOf(a.tensor) != RoleOf(b.tensor)) {
      if (!is_known) unknowns->Add(&of, a.tensor, b.tensor);
      ++of.gets;
      ++unknown;
    }
    // One such get costs kChain calls, the number that is hashed together.
    const int score = static_cast<int>(i) + 1 - static_cast<int>(kChain) * unknown;
    if (score > best.score) best = {score, i + 1};
  }
  return best;
}

}  // namespace ravenstore::core::plan
