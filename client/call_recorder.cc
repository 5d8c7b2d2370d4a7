#include "client/call_recorder.h"

#include <thread>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::client {
namespace {

using core::Bytes;
using core::Duration;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

// What is encoded goes to the file by pieces of this size, and with each step.
constexpr size_t kWriteAt = size_t{64} << 10;  // bytes
// Shorter times between two calls are no compute: events resolve half a microsecond.
constexpr Duration kComputeLeast = std::chrono::microseconds(1);
constexpr Duration kPoll = std::chrono::microseconds(200);

proto::TracePut SaidBy(const PutOptions& options, bool modified) {
  proto::TracePut put;
  put.modified = modified;
  if (options.not_needed) {
    put.not_needed = true;
  } else if (options.needed_in) {
    put.needed_in = options.needed_in;
  } else {
    put.order = options.order;
  }
  put.recompute = options.recompute;
  put.priority = static_cast<uint32_t>(options.priority);
  return put;
}

}  // namespace

Result<std::unique_ptr<CallRecorder>> CallRecorder::Open(const std::string& pattern,
                                                         std::string_view name,
                                                         uint64_t file_most) {
  RAVEN_ASSIGN_OR_RETURN(proto::TraceFile file, proto::TraceFile::Open(pattern, name));
  return std::unique_ptr<CallRecorder>(new CallRecorder(std::move(file), file_most));
}

CallRecorder::~CallRecorder() {
  Finish(Duration{0});
}

CallRecorder::Mark CallRecorder::MarkOn(ClientStream* stream) {
  std::lock_guard lock(mutex_);
  Mark mark{.stream = nullptr, .cpu = ipc::Now()};
  if (stream != nullptr) stream_ = stream;
  if (ended_ || stream_ == nullptr) return mark;
  auto taken = stream_->Mark();
  if (taken.ok()) {
    mark.stream = std::move(*taken);
  } else if (taken.error().code == ErrorCode::kInvalidArgument) {
    stream_ = nullptr;  // a call on all streams together has no place in one of them
  } else {
    End(taken.error());
  }
  return mark;
}

void CallRecorder::Created(uint64_t id, Bytes bytes, std::string_view name, Mark begin, Mark end) {
  std::lock_guard lock(mutex_);
  uses_[id] = {.holders = 1, .writable = true};
  Append({.kind = Kind::kCreate,
          .id = id,
          .bytes = bytes,
          .name = std::string(name),
          .begin = std::move(begin),
          .end = std::move(end)});
}

void CallRecorder::Got(uint64_t id, bool read_only, Mark begin, Mark end) {
  std::lock_guard lock(mutex_);
  const auto use = uses_.find(id);
  if (use == uses_.end()) return;
  use->second.writable = use->second.writable || !read_only;
  if (++use->second.holders > 1) return;
  Append({.kind = Kind::kGet,
          .id = id,
          .read_only = read_only,
          .begin = std::move(begin),
          .end = std::move(end)});
}

void CallRecorder::Put(uint64_t id, const PutOptions& options, Mark begin) {
  std::lock_guard lock(mutex_);
  const auto use = uses_.find(id);
  if (use == uses_.end() || use->second.holders == 0) return;
  if (--use->second.holders > 0) return;
  const bool writable = std::exchange(use->second.writable, false);
  const bool modified = writable && !options.not_modified;
  Append(
      {.kind = Kind::kPut, .id = id, .put = SaidBy(options, modified), .begin = std::move(begin)});
}

void CallRecorder::Freed(uint64_t id, Mark begin) {
  std::lock_guard lock(mutex_);
  if (uses_.erase(id) == 0) return;
  Append({.kind = Kind::kFree, .id = id, .begin = std::move(begin)});
}

void CallRecorder::Stepped(Mark begin) {
  std::lock_guard lock(mutex_);
  Append({.kind = Kind::kStep, .begin = std::move(begin)});
}

void CallRecorder::Append(Call call) {
  if (ended_) return;
  const bool step = call.kind == Kind::kStep;
  if (call.begin.cpu && returned_) call.program = *call.begin.cpu - *returned_;
  pending_.push_back(std::move(call));
  Encode();
  if (pending_.size() > kPendingMost) {
    End({ErrorCode::kLimit, std::to_string(kPendingMost) + " calls wait for the device"});
  }
  if (!ended_ && (step || file_.unwritten() >= kWriteAt)) Write();
  returned_ = ipc::Now();
}

void CallRecorder::Encode() {
  while (!pending_.empty() && !ended_) {
    const Result<bool> reached = Reached(pending_.front());
    if (!reached.ok()) return End(reached.error());
    if (!*reached) return;
    if (const Status encoded = EncodeOne(pending_.front()); !encoded.ok()) {
      return End(encoded.error());
    }
    Call& call = pending_.front();
    if (call.end.stream != nullptr) {
      last_ = std::move(call.end.stream);
    } else if (call.begin.stream != nullptr) {
      last_ = std::move(call.begin.stream);
    }
    pending_.pop_front();
  }
}

Result<bool> CallRecorder::Reached(const Call& call) const {
  for (const Mark* mark : {&call.begin, &call.end}) {
    if (mark->stream == nullptr) continue;
    RAVEN_ASSIGN_OR_RETURN(const bool reached, mark->stream->Reached());
    if (!reached) return false;
  }
  return true;
}

Result<proto::TraceTimes> CallRecorder::TimesOf(const Call& call) const {
  proto::TraceTimes times{.program = call.program};
  if (call.begin.stream != nullptr && call.end.stream != nullptr) {
    RAVEN_ASSIGN_OR_RETURN(times.waited, call.end.stream->Since(*call.begin.stream));
  }
  if (call.begin.cpu && call.end.cpu) times.blocked = *call.end.cpu - *call.begin.cpu;
  return times;
}

Status CallRecorder::EncodeOne(const Call& call) {
  if (call.begin.stream != nullptr && last_ != nullptr) {
    RAVEN_ASSIGN_OR_RETURN(const Duration computed, call.begin.stream->Since(*last_));
    if (computed >= kComputeLeast) file_.Compute(computed, 0, {}, false);
  }
  RAVEN_ASSIGN_OR_RETURN(const proto::TraceTimes times, TimesOf(call));
  switch (call.kind) {
    case Kind::kCreate: file_.Create(call.id, call.bytes, call.name, times); break;
    case Kind::kGet: file_.Get(call.id, call.read_only, times); break;
    case Kind::kPut: file_.Put(call.id, call.put, times); break;
    case Kind::kFree: file_.Free(call.id, times); break;
    case Kind::kStep: file_.Step(times); break;
  }
  return core::Ok();
}

void CallRecorder::Write() {
  if (const Status written = file_.Write(); !written.ok()) return End(written.error());
  if (file_.written() > file_most_)
    End({ErrorCode::kLimit, "the file has " + std::to_string(file_.written()) + " bytes"});
}

void CallRecorder::End(const Error& why) {
  if (ended_) return;
  ended_ = true;
  file_.Compute(Duration{0}, 1, "the recording ended early: " + why.message, true);
  pending_.clear();
  uses_.clear();
  last_.reset();
  static_cast<void>(file_.Write());
}

void CallRecorder::Finish(Duration patience) {
  const Tick deadline = ipc::Now() + patience;
  std::unique_lock lock(mutex_);
  Encode();
  while (!pending_.empty() && ipc::Now() < deadline) {
    lock.unlock();
    std::this_thread::sleep_for(kPoll);
    lock.lock();
    Encode();
  }
  if (!ended_) static_cast<void>(file_.Write());
  ended_ = true;
}

}  // namespace ravenstore::client
