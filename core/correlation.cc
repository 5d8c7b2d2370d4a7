#include "core/correlation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/tuned.h"

namespace ravenstore::core {

namespace {
constexpr size_t kFirstStates = 16;
// The share of a count that is forgotten with every observation of its state.
constexpr uint8_t kForgets = 8;  // an eighth

uint8_t Fade(uint8_t count) {
  return static_cast<uint8_t>(count - (count + kForgets - 1) / kForgets);
}
}  // namespace

uint32_t Correlation::KeyOf(uint32_t last, uint32_t before) {
  // The finalizer of MurmurHash3 (Appleby): all bits of the ids matter to all of the key.
  uint64_t hash = (uint64_t{before} << 32 | last) * 0xff51afd7ed558ccd;
  hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
  return std::max(1u, static_cast<uint32_t>(hash >> 32));
}

const Correlation::State* Correlation::FindState(uint32_t key) const {
  for (size_t i = 0; i < std::min(kProbes, table_.size()); ++i) {
    const State& state = At(key, i);
    if (state.key == key) return &state;
    if (state.key == 0) return nullptr;
  }
  return nullptr;
}

void Correlation::Grow() {
  const std::vector<State> old =
      std::exchange(table_, std::vector<State>(std::max(kFirstStates, table_.size() * 2)));
  states_ = 0;
  for (const State& state : old) {
    if (state.key != 0) *MakeState(state.key) = state;
  }
}

Correlation::State* Correlation::MakeState(uint32_t key) {
  if (table_.empty()) Grow();
  State* weakest = nullptr;
  uint32_t least = ~0u;
  for (size_t i = 0; i < kProbes; ++i) {
    State& state = At(key, i);
    if (state.key == key) return &state;
    if (state.key == 0) {
      ++states_;
      state.key = key;
      return &state;
    }
    const uint32_t weight = std::reduce(state.counts.begin(), state.counts.end(), 0u);
    if (weight >= least) continue;
    weakest = &state;
    least = weight;
  }
  if (table_.size() < kMostStates) {
    Grow();
    return MakeState(key);
  }
  // Those that stay are worth less the next time, so that what is not used any more goes.
  for (size_t i = 0; i < kProbes; ++i) {
    for (uint8_t& count : At(key, i).counts) count = Fade(count);
  }
  *weakest = State{.key = key};
  return weakest;
}

bool Correlation::IsFork(const State& state) {
  return std::count(state.counts.begin(), state.counts.end(), 0) <
         static_cast<ptrdiff_t>(kSuccessors) - 1;
}

void Correlation::Count(State* state, uint32_t next) {
  size_t place = kSuccessors;
  for (size_t i = 0; i < kSuccessors; ++i) {
    uint8_t& count = state->counts[i];
    count = Fade(count);
    if (state->next[i] == next && count > 0) place = i;
  }
  if (place == kSuccessors) {
    place = static_cast<size_t>(std::min_element(state->counts.begin(), state->counts.end()) -
                                state->counts.begin());
    state->counts[place] = 0;
    state->next[place] = next;
  }
  state->counts[place] =
      static_cast<uint8_t>(std::min<uint32_t>(255, state->counts[place] + kSeen));
}

// Where one id leads to several, the two last know better. What was seen little is believed as far
// as this client has been right to be.
std::optional<Correlation::Guess> Correlation::Next(uint32_t last, uint32_t before) const {
  const State* state = FindState(KeyOf(last, 0));
  if (state == nullptr) return std::nullopt;
  if (IsFork(*state) && before != 0) {
    const State* both = FindState(KeyOf(last, before));
    if (both != nullptr) state = both;
  }
  const auto best = std::max_element(state->counts.begin(), state->counts.end());
  if (*best == 0) return std::nullopt;
  const auto all = std::reduce(state->counts.begin(), state->counts.end(), 0.0);
  const double prior = static_cast<double>(trust_) / kTrustMost * kSeen;
  const double confidence = (*best + prior) / (all + kSeen);
  if (confidence < kLeastSure) return std::nullopt;
  return Guess{state->next[static_cast<size_t>(best - state->counts.begin())], confidence};
}

void Correlation::Used(uint32_t logical, TensorId tensor, int64_t logical_time,
                       std::vector<Step>* missed) {
  // What was expected a little later may come before what was expected next.
  const auto end = ahead_.begin() + std::min<ptrdiff_t>(kCloseUses, std::ssize(ahead_));
  const auto came =
      std::find_if(ahead_.begin(), end, [&](const Step& step) { return step.logical == logical; });
  const bool sooner = came != end && came != ahead_.begin();
  if (expected_ && !sooner)
    trust_ = std::clamp(trust_ + (expected_->logical == logical ? 1 : -kWrongCosts), 0, kTrustMost);
  if (last_ != 0) {
    State* const state = MakeState(KeyOf(last_, 0));
    Count(state, logical);
    if (before_ != 0 && IsFork(*state)) Count(MakeState(KeyOf(last_, before_)), logical);
  }
  MakeState(KeyOf(logical, 0))->tensor = tensor;
  before_ = std::exchange(last_, logical);
  if (came != end) {
    ahead_.erase(came);
    while (!ahead_.empty() && ahead_.front().logical_time + kCloseUses < logical_time) {
      missed->push_back(ahead_.front());
      ahead_.erase(ahead_.begin());
    }
  } else {
    missed->insert(missed->end(), ahead_.begin(), ahead_.end());
    ahead_.clear();
    end_ = last_;
    before_end_ = before_;
  }
  expected_ = ahead_.empty() ? Next(end_, before_end_)
                             : Guess{ahead_.front().logical, ahead_.front().confidence};
  if (IsTrusted()) Extend(logical_time);
}

void Correlation::Extend(int64_t logical_time) {
  for (int i = 0; i < kStepsPerUse && ahead_.size() < kMostAhead; ++i) {
    const auto guess = Next(end_, before_end_);
    if (!guess) return;
    // What lies behind no longer counts: the front step is one away from now.
    const double so_far =
        std::accumulate(ahead_.begin(), ahead_.end(), 1.0,
                        [](double product, const Step& step) { return product * step.confidence; });
    if (so_far * guess->confidence < kLeastSure) return;
    const State* state = FindState(KeyOf(guess->logical, 0));
    ahead_.push_back({.logical = guess->logical,
                      .logical_time = logical_time + std::ssize(ahead_) + 1,
                      .confidence = guess->confidence,
                      .tensor = state != nullptr ? state->tensor : kNoTensor});
    before_end_ = std::exchange(end_, guess->logical);
  }
}

Correlation::Step* Correlation::Find(uint32_t logical) {
  const auto found = std::find_if(ahead_.begin(), ahead_.end(),
                                  [&](const Step& step) { return step.logical == logical; });
  return found != ahead_.end() ? &*found : nullptr;
}

double Correlation::ConfidenceOf(uint32_t logical) const {
  double confidence = 1;
  for (const Step& step : ahead_) {
    confidence *= step.confidence;
    if (step.logical == logical) return confidence;
  }
  return 0;
}

}  // namespace ravenstore::core
