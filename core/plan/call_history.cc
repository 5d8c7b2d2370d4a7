#include "core/plan/call_history.h"

#include <utility>

#include "core/check.h"

namespace ravenstore::core::plan {

namespace {
// Calls that are hashed together. Fewer find more places that are alike by chance; more find none
// where a pass has insertions.
constexpr uint32_t kChain = 16;
// Calls that are compared at most: bounds one comparison.
constexpr uint32_t kLongest = 1 << 13;
// Calls that must be alike to make up for a get of a tensor that is not known to correspond. Lower:
// other layers of the same shapes are taken for the same. Higher: changing ids break the suffix.
constexpr int kUnknownCost = 16;
constexpr uint64_t kMix = 0x9e3779b97f4a7c15;
constexpr uint64_t kMixCall = 0xff51afd7ed558ccd;
constexpr uint64_t kKindWeight = 1'000'003;
}  // namespace

void CallHistory::Add(const Call& call, Bytes size) {
  const uint32_t index = this->size();
  calls_.push_back(call);
  if (call.tensor >= tensors_.size()) {
    tensors_.resize(call.tensor + 1);
    holders_.resize(call.tensor + 1, kNone);
  }
  Tensor& tensor = tensors_[call.tensor];
  if (call.kind == CallKind::kFree) tensor.freed = index;
  if (call.kind == CallKind::kCreate) {
    tensor.size = size;
    SetRole(call.tensor, call.tensor);
  }
  RAVEN_CHECK(tensor.role != kNone);
  if (!Pins(call.kind)) return;
  pinning_.push_back(index);
  AddToChains();
}

void CallHistory::AddToChains() {
  const uint32_t n = pinning_calls() - 1;
  uint32_t before = kNone;
  if (n + 1 >= kChain) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < kChain; ++i) {
      const Call& call = pinning(n - i);
      const uint64_t size = tensors_[call.tensor].size.count();
      hash = hash * kMix + (static_cast<uint64_t>(call.kind) * kKindWeight + size) * kMixCall;
    }
    hash ^= hash >> 29;
    const auto [end, is_new] = chain_ends_.try_emplace(hash, n);
    if (!is_new) before = std::exchange(end->second, n);
  }
  chains_.push_back(before);
}

void CallHistory::SetRole(TensorIndex index, uint32_t role) {
  Tensor& tensor = tensors_[index];
  if (tensor.role == role) return;
  if (tensor.role != kNone && holders_[tensor.role] == index) holders_[tensor.role] = kNone;
  tensor.role = role;
  if (tensor.freed == kNone) holders_[role] = index;
}

bool CallHistory::IsGone(uint32_t earlier, uint32_t later) const {
  const uint32_t freed = tensors_[pinning(earlier).tensor].freed;
  return freed != kNone && freed < CallOf(later);
}

bool CallHistory::Same(uint32_t later, uint32_t earlier) const {
  const Call& a = pinning(later);
  const Call& b = pinning(earlier);
  if (a.kind != b.kind) return false;
  const Tensor& of_a = tensors_[a.tensor];
  const Tensor& of_b = tensors_[b.tensor];
  if (a.kind == CallKind::kGet) return of_a.role == of_b.role;
  return of_a.size == of_b.size && IsGone(earlier, later);
}

void CallHistory::Accept(uint32_t later, uint32_t earlier) {
  const Call& call = pinning(later);
  if (call.kind == CallKind::kCreate) SetRole(call.tensor, tensors_[pinning(earlier).tensor].role);
}

CallHistory::Suffix CallHistory::CommonSuffix(uint32_t later, uint32_t earlier,
                                              uint32_t* work) const {
  struct Open {
    TensorIndex counterpart;
    int gets;  // that are counted as unknown until the create is seen
  };
  std::unordered_map<TensorIndex, Open> open;
  Suffix best;
  int unknown = 0;
  for (uint32_t i = 0; i <= earlier && i < kLongest; ++i, ++*work) {
    const Call& a = pinning(later - i);
    const Call& b = pinning(earlier - i);
    if (a.kind != b.kind || tensors_[a.tensor].size != tensors_[b.tensor].size) break;
    const auto found = open.find(a.tensor);
    if (found != open.end() && found->second.counterpart != b.tensor) break;
    if (a.kind == CallKind::kCreate) {
      if (!IsGone(earlier - i, later - i)) break;
      if (found != open.end()) {
        unknown -= found->second.gets;
        open.erase(found);
      }
    } else if (tensors_[a.tensor].role != tensors_[b.tensor].role) {
      ++open.try_emplace(a.tensor, Open{b.tensor, 0}).first->second.gets;
      ++unknown;
    }
    const int score = static_cast<int>(i) + 1 - kUnknownCost * unknown;
    if (score > best.score) best = {score, i + 1};
  }
  return best;
}

}  // namespace ravenstore::core::plan
