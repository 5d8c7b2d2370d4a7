#include "elastic/streams.h"

#include <atomic>
#include <utility>

namespace ravenstore::elastic {

namespace {

// Events under way on one stream. A job that runs far ahead has its points resolved less finely.
constexpr size_t kEventsMost = 64;

uint64_t ThisThread() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t own = ++last;
  return own;
}

}  // namespace

Streams::~Streams() {
  for (State& state : states_) {
    for (const auto& [event, call] : state.events) events_.Give(event);
  }
}

uint32_t Streams::IndexOf(CUstream stream) {
  const bool own = stream == CU_STREAM_PER_THREAD;
  if (stream == CU_STREAM_LEGACY) stream = nullptr;
  const auto [entry, is_new] = index_.try_emplace({stream, own ? ThisThread() : 0}, 0);
  if (!is_new) return entry->second;
  if (!unused_.empty()) {
    entry->second = unused_.back();
    unused_.pop_back();
  } else {
    entry->second = static_cast<uint32_t>(states_.size());
    states_.emplace_back();
  }
  State& state = states_[entry->second];
  state.stream = stream;
  state.own = own;
  state.gone = false;
  state.looked = 0;
  return entry->second;
}

Point Streams::Now(CUstream stream) {
  const uint32_t index = IndexOf(stream);
  return {index, states_[index].enqueued};
}

Point Streams::Enqueued(CUstream stream) {
  const uint32_t index = IndexOf(stream);
  State& state = states_[index];
  ++state.enqueued;
  if (state.own) {
    Poll(state);
    Record(state);
  }
  return {index, state.enqueued};
}

std::vector<Point> Streams::EnqueuedOnAll() {
  std::vector<Point> points;
  for (const auto& [key, index] : index_) {
    State& state = states_[index];
    if (!state.own) ++state.enqueued;
    if (state.passed < state.enqueued) points.push_back({index, state.enqueued});
  }
  return points;
}

bool Streams::Passed(const Point& point) {
  if (point.stream == 0) return true;
  State& state = states_[point.stream];
  if (state.passed >= point.call) return true;
  if (std::exchange(state.looked, looks_) == looks_) return false;
  Poll(state);
  if (state.passed >= point.call) return true;
  const bool covered = !state.events.empty() && state.events.back().second >= point.call;
  const bool many = state.events.size() >= kEventsMost;
  if (!covered && !many && !state.own && !state.gone) Record(state);
  return false;
}

bool Streams::HavePassed(std::vector<Point>* points) {
  std::erase_if(*points, [this](const Point& point) { return Passed(point); });
  return points->empty();
}

bool Streams::Idle() {
  for (uint32_t index = 1; index < states_.size(); ++index) {
    if (!Passed({index, states_[index].enqueued})) return false;
  }
  return true;
}

void Streams::Gone(CUstream stream) {
  const auto entry = index_.find({stream, 0});
  if (entry == index_.end()) return;
  State& state = states_[entry->second];
  if (state.passed < state.enqueued) Record(state);
  state.gone = true;
  index_.erase(entry);
}

void Streams::Poll(State& state) {
  while (!state.events.empty()) {
    const auto [event, call] = state.events.front();
    const CUresult result = driver_->event_query(event);
    if (result == CUDA_ERROR_NOT_READY) break;
    saw_illegal_ = saw_illegal_ || result == CUDA_ERROR_ILLEGAL_ADDRESS;
    // Done, or its context is broken: then there is nothing left to wait for.
    state.passed = call;
    state.events.pop_front();
    events_.Give(event);
  }
  if (state.gone && state.passed == state.enqueued) {
    // Points of the past stay valid: the next stream counts on from there.
    state.gone = false;
    unused_.push_back(static_cast<uint32_t>(&state - states_.data()));
  }
}

void Streams::Record(State& state) {
  if (CUevent event = events_.Record(state.stream))
    state.events.emplace_back(event, state.enqueued);
}

}  // namespace ravenstore::elastic
