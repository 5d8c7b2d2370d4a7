#include "elastic/recorder.h"

#include <algorithm>

#include "elastic/own_thread.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Duration;
using core::Result;
using core::Tick;

namespace {

constexpr uint32_t kCallsPerMark = 16;
constexpr Duration kLongestUnmarked = std::chrono::milliseconds(1);
constexpr size_t kMostEvents = 1024;
// Kinds of calls that have names; programs whose shapes change all the time have ever new ones.
constexpr size_t kMostNames = size_t{1} << 16;
constexpr Duration kPass = std::chrono::milliseconds(100);
// What a reader takes of one client's times: 2^49 ns.
constexpr Duration kLongestTrace{int64_t{1} << 49};

uint64_t NanosecondsOf(Tick tick) {
  return static_cast<uint64_t>(tick.time_since_epoch().count());
}

CUevent EventOf(uint64_t value) {
  return reinterpret_cast<CUevent>(value);
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::Create(RecorderOptions options, const Driver& driver,
                                                   CallNames names) {
  RAVEN_ASSIGN_OR_RETURN(proto::TraceFile file,
                         proto::TraceFile::Open(options.pattern, options.name));
  std::unique_ptr<Recorder> recorder(
      new Recorder(std::move(options), driver, names, std::move(file)));
  driver.ctx_get_current(&recorder->context_);
  recorder->thread_ = OwnThread("raven-record", &recorder->driver_, recorder->context_,
                                [raw = recorder.get()] { raw->Run(); });
  return recorder;
}

Recorder::Recorder(RecorderOptions options, const Driver& driver, CallNames names,
                   proto::TraceFile file)
    : options_(std::move(options)), driver_(driver), names_(names), file_(std::move(file)) {}

Recorder::~Recorder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  if (last_mark_ != nullptr) unused_events_.push_back(last_mark_);
  for (CUevent event : unused_events_) driver_.event_destroy(event);
}

// --- Those who tell

void Recorder::Allocated(RangeId range, Bytes size) {
  const auto number = static_cast<size_t>(range);
  if (ranges_.size() <= number) ranges_.resize(number + 1);
  ranges_[number] = {size, 0};
}

void Recorder::Freed(RangeId range) {
  const auto number = static_cast<size_t>(range);
  if (number >= ranges_.size()) return;
  const uint32_t tensor = std::exchange(ranges_[number].tensor, 0);
  if (tensor == 0) return;
  const std::lock_guard lock(mutex_);
  // Its room was set aside when the tensor was created.
  --frees_due_;
  if (ended_) return;
  entries_.push_back({Kind::kFree, false, tensor, 0});
  ++kept_;
}

uint32_t Recorder::NumberOf(uint64_t identity, const Caller& caller) {
  const auto known = numbers_.find(identity);
  if (known != numbers_.end()) return known->second;
  if (numbers_.size() >= kMostNames) return 0;
  const auto number = static_cast<uint32_t>(numbers_.size() + 1);
  numbers_.emplace(identity, number);
  new_names_.emplace_back(number, names_.Of(caller));
  return number;
}

void Recorder::Used(uint64_t identity, const Caller& caller, std::span<const RangeId> ranges,
                    bool unknown, Tick now) {
  const std::lock_guard lock(mutex_);
  size_t creates = 0;
  for (const RangeId range : ranges)
    creates += ranges_[static_cast<size_t>(range)].tensor == 0 ? 1 : 0;
  const size_t wanted = 1 + ranges.size() + creates;
  last_was_taken_ = !ended_ && kept_ + frees_due_ + wanted <= options_.entries_most;
  if (!last_was_taken_) {
    figures_.dropped += 1;
    return;
  }
  entries_.push_back({Kind::kCall, unknown, NumberOf(identity, caller), NanosecondsOf(now)});
  for (const RangeId id : ranges) {
    Range& range = ranges_[static_cast<size_t>(id)];
    if (range.tensor != 0) {
      entries_.push_back({Kind::kUse, false, range.tensor, 0});
    } else {
      range.tensor = ++last_tensor_;
      ++frees_due_;
      entries_.push_back({Kind::kCreate, false, range.tensor, range.size.count()});
    }
  }
  kept_ += 1 + ranges.size();
  ++figures_.calls;
  figures_.unknown += unknown ? 1 : 0;
  ++calls_since_mark_;
  if (entries_.size() > options_.entries_most / 4) wake_.notify_one();
}

void Recorder::Enqueued(CUstream stream, Tick now) {
  const bool due = calls_since_mark_ >= kCallsPerMark ||
                   (calls_since_mark_ > 0 && now - marked_ >= kLongestUnmarked);
  if (!due || !last_was_taken_) return;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_.is_capturing(stream, &capture) != CUDA_SUCCESS ||
      capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (ended_ || kept_ + frees_due_ >= options_.entries_most) return;
  CUevent event = TakeEvent();
  if (event == nullptr) return;
  if (driver_.event_record(event, stream) != CUDA_SUCCESS) {
    unused_events_.push_back(event);
    return;
  }
  calls_since_mark_ = 0;
  marked_ = now;
  entries_.push_back({Kind::kMark, false, 0, reinterpret_cast<uint64_t>(event)});
  ++kept_;
}

// REQUIRES: mutex_. Null: there are enough under way, or the driver makes none.
CUevent Recorder::TakeEvent() {
  CUevent event = nullptr;
  if (!unused_events_.empty()) {
    event = unused_events_.back();
    unused_events_.pop_back();
  } else if (events_ < kMostEvents && driver_.elapsed != nullptr &&
             driver_.event_create(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS) {
    ++events_;
  }
  return event;
}

std::string Recorder::Flush(Duration patience) {
  std::unique_lock lock(mutex_);
  const uint64_t wanted = ++flushes_wanted_;
  wake_.notify_one();
  flushed_.wait_for(lock, patience, [&] { return flushes_done_ >= wanted; });
  std::string text = std::to_string(figures_.calls) + " calls recorded in " + file_.path();
  if (figures_.unknown > 0)
    text += ", " + std::to_string(figures_.unknown) + " of which may touch anything";
  if (figures_.dropped > 0) text += "; " + std::to_string(figures_.dropped) + " are not in it";
  if (!figures_.trouble.empty()) text += ": " + figures_.trouble;
  return text;
}

// --- The thread

void Recorder::Run() {
  bool stops = false;
  while (!stops) {
    uint64_t flushes = 0;
    bool flush = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kPass, [&] {
        return stopping_ || flushes_wanted_ > flushes_done_ ||
               entries_.size() > options_.entries_most / 4;
      });
      stops = stopping_;
      flushes = flushes_wanted_;
      flush = flushes > flushes_done_;
    }
    Take();
    Encode(stops || flush);
    Write();
    const std::lock_guard lock(mutex_);
    flushes_done_ = flushes;
    flushed_.notify_all();
  }
}

void Recorder::Take() {
  std::vector<Entry> entries;
  std::vector<std::pair<uint32_t, std::string>> names;
  {
    const std::lock_guard lock(mutex_);
    entries.swap(entries_);
    names.swap(new_names_);
  }
  held_.insert(held_.end(), entries.begin(), entries.end());
  for (auto& [number, name] : names) names_due_.emplace(number, std::move(name));
}

void Recorder::Encode(bool all) {
  // A mark that does not come, or a driver without events, must not keep the rest.
  all = all || driver_.elapsed == nullptr || held_.size() > options_.entries_most / 2;
  while (!held_.empty()) {
    const auto mark = std::find_if(held_.begin(), held_.end(),
                                   [](const Entry& entry) { return entry.kind == Kind::kMark; });
    const auto end = static_cast<size_t>(mark - held_.begin());
    if (mark == held_.end()) {
      if (all) EncodeBlock(end, std::nullopt);
      return;
    }
    const CUevent event = EventOf(mark->value);
    if (driver_.event_query(event) == CUDA_ERROR_NOT_READY && !all) return;
    EncodeBlock(end, Measure(event));
    held_.pop_front();
    const std::lock_guard lock(mutex_);
    --kept_;
  }
}

std::optional<Duration> Recorder::Measure(CUevent mark) {
  float milliseconds = 0;
  const bool known = last_mark_ != nullptr && driver_.elapsed != nullptr &&
                     driver_.elapsed(&milliseconds, last_mark_, mark) == CUDA_SUCCESS;
  // Streams run concurrently: it may be before the last one. Then that stays the last.
  if (known && milliseconds < 0) {
    GiveEvent(mark);
    return Duration{0};
  }
  if (last_mark_ != nullptr) GiveEvent(last_mark_);
  last_mark_ = mark;
  if (!known) return std::nullopt;
  return core::FromSeconds(static_cast<double>(milliseconds) / 1e3);
}

void Recorder::GiveEvent(CUevent event) {
  const std::lock_guard lock(mutex_);
  unused_events_.push_back(event);
}

void Recorder::EncodeBlock(size_t end, std::optional<Duration> time) {
  const auto block_end = held_.begin() + static_cast<ptrdiff_t>(end);
  int64_t calls = std::count_if(held_.begin(), block_end,
                                [](const Entry& entry) { return entry.kind == Kind::kCall; });
  for (auto at = held_.begin(); at != block_end;) {
    if (at->kind == Kind::kFree) {
      file_.Free(at->number);
      ++at;
      continue;
    }
    const Entry& call = *at;
    auto uses_end = at + 1;
    for (;
         uses_end != block_end && (uses_end->kind == Kind::kCreate || uses_end->kind == Kind::kUse);
         ++uses_end) {
      if (uses_end->kind == Kind::kCreate) {
        file_.Create(uses_end->number, Bytes(uses_end->value));
      } else {
        file_.Get(uses_end->number);
      }
    }
    Duration took{};
    if (time) {
      took = *time / calls--;
      *time -= took;
    } else if (last_cpu_ != 0 && call.value > last_cpu_) {
      took = Duration(static_cast<int64_t>(call.value - last_cpu_));
    }
    last_cpu_ = call.value;
    total_ += took;
    const auto name = names_due_.find(call.number);
    file_.Compute(took, call.number, name == names_due_.end() ? "" : name->second, call.flag);
    if (name != names_due_.end()) names_due_.erase(name);
    for (auto use = at + 1; use != uses_end; ++use) file_.Put(use->number);
    at = uses_end;
  }
  held_.erase(held_.begin(), block_end);
  const std::lock_guard lock(mutex_);
  kept_ -= end;
}

void Recorder::Write() {
  if (const auto written = file_.Write(); !written.ok()) return End(written.error().message);
  if (file_.written() > options_.file_most)
    return End("it ended at " + std::to_string(file_.written()) + " bytes");
  if (total_ > kLongestTrace / 2) End("it ended after three days");
}

void Recorder::End(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ended_, true)) return;
  figures_.trouble = why;
  for (const Entry& entry : entries_) {
    if (entry.kind == Kind::kMark) unused_events_.push_back(EventOf(entry.value));
  }
  for (const Entry& entry : held_) {
    if (entry.kind == Kind::kMark) unused_events_.push_back(EventOf(entry.value));
  }
  entries_.clear();
  held_.clear();
  kept_ = 0;
}

}  // namespace ravenstore::elastic
