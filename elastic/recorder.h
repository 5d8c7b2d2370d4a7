// What a job does, call by call, as a trace in a file (docs/TRACES.md) that ravensim replays.
//
// The engine reports allocations, frees and calls to it in their order. They are kept until a
// thread of its own has written them: 16 bytes each, at most `entries_most`. Those that find no
// room are left out and counted, in such a way that the rest is a valid trace.
//
// How long calls take is measured without waiting for the GPU: an event is recorded behind every
// 16th call, or behind a call a millisecond after the last one, and the time between two events is
// shared out evenly among the calls between them. So a time is the stream's, waits and idleness
// included. Where the driver cannot tell (a capture, an error, the end of the process) it is the
// time between the calls on the CPU.
//
// Threads: any, but Allocated, Freed, Used and Enqueued one at a time and in order.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "elastic/call_names.h"
#include "elastic/driver.h"
#include "elastic/range_id.h"
#include "proto/trace_file.h"

namespace ravenstore::elastic {

struct RecorderOptions {
  std::string pattern = {};  // of the file: proto::TraceFile::Open
  std::string name = {};     // of the trace
  size_t entries_most = size_t{1} << 20;
  uint64_t file_most = uint64_t{512} << 20;  // bytes
};

class Recorder {
 public:
  // REQUIRES: a current context, which outlives the recorder.
  // Errors: of proto::TraceFile::Open.
  static core::Result<std::unique_ptr<Recorder>> Create(RecorderOptions options,
                                                        const Driver& driver, CallNames names);
  // Writes what there is.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void Allocated(RangeId range, core::Bytes size);
  void Freed(RangeId range);
  // The caller's function is valid during the call.
  void Used(uint64_t identity, const Caller& caller, std::span<const RangeId> ranges, bool unknown,
            core::Tick now);
  // The call used last is on the stream, by this thread.
  void Enqueued(CUstream stream, core::Tick now);

  // Has what there is written, and waits for that so long at most. A sentence about the recording.
  std::string Flush(core::Duration patience);

 private:
  enum class Kind : uint8_t {
    kCall,    // number: of its name; flag: unknown; value: the CPU's time
    kCreate,  // number: the tensor; value: bytes; of the call before
    kUse,     // number: the tensor; of the call before
    kFree,    // number: the tensor
    kMark,    // value: the event
  };
  struct Entry {
    Kind kind;
    bool flag;
    uint32_t number;
    uint64_t value;
  };
  struct Range {
    core::Bytes size;
    uint32_t tensor = 0;  // 0: no call has named it yet
  };
  struct Figures {
    uint64_t calls = 0;
    uint64_t unknown = 0;
    uint64_t dropped = 0;
    std::string trouble;
  };

  Recorder(RecorderOptions options, const Driver& driver, CallNames names, proto::TraceFile file);
  uint32_t NumberOf(uint64_t identity, const Caller& caller);
  CUevent TakeEvent();

  // The thread's.
  void Run();
  void Take();
  // Writes what is measured; with `all` what else there is.
  void Encode(bool all);
  // How long the calls before the mark took together; nullopt: the CPU's time has to do.
  std::optional<core::Duration> Measure(CUevent mark);
  // The first `end` entries leave.
  void EncodeBlock(size_t end, std::optional<core::Duration> time);
  void Write();
  void End(const std::string& why);
  void GiveEvent(CUevent event);

  const RecorderOptions options_;
  const Driver driver_;
  const CallNames names_;
  CUcontext context_ = nullptr;

  // Of those who tell.
  std::vector<Range> ranges_;  // by number
  std::unordered_map<uint64_t, uint32_t> numbers_;
  uint32_t last_tensor_ = 0;
  uint32_t calls_since_mark_ = 0;
  core::Tick marked_{};
  bool last_was_taken_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // for the thread
  std::condition_variable flushed_;
  // All below: guarded by mutex_.
  std::vector<Entry> entries_;
  std::vector<std::pair<uint32_t, std::string>> new_names_;
  std::vector<CUevent> unused_events_;
  size_t events_ = 0;  // that there are
  size_t kept_ = 0;    // entries, those that the thread has included
  size_t frees_due_ = 0;
  uint64_t flushes_wanted_ = 0;
  uint64_t flushes_done_ = 0;
  bool ended_ = false;
  bool stopping_ = false;
  Figures figures_;

  // The thread's.
  proto::TraceFile file_;
  std::deque<Entry> held_;
  std::unordered_map<uint32_t, std::string> names_due_;
  CUevent last_mark_ = nullptr;
  uint64_t last_cpu_ = 0;  // of the last call that was encoded
  core::Duration total_{};
  std::thread thread_;
};

}  // namespace ravenstore::elastic
