// Writes what a session does as a trace (docs/TRACES.md): $RAVENSTORE_RECORD.
//
// Each call of the API leaves a mark on its stream before and, if it may wait, one after it. The
// time between one call's last mark and the next call's first is what the stream computed; the time
// between a call's two marks is what the stream waited for it. Both are the GPU's, measured by
// events: a call that the CPU makes while the GPU is a step behind costs nothing. A stream that has
// nothing to do because the CPU is late counts as computing. The CPU's own times are kept next to
// them: in the program between two calls, and in each call.
//
// A create names no stream: its marks are on the stream that a call named last. Calls of all
// threads are in the order in which they returned. Of overlapping gets of a tensor the trace has
// the first, and the put that ends the last of them.
//
// A call is kept until its marks are reached. A recording ends early with the call beyond
// kPendingMost that waits, with the write beyond kFileMost, or with the first error of the device
// or the file. What was written by then is a whole trace.
//
// Threads: any. Errors: none reach the caller. The last call of a recording that ended early is
// named for the reason.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "client/access.h"
#include "client/streams.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "proto/trace_file.h"

namespace ravenstore::client {

class CallRecorder {
 public:
  static constexpr size_t kPendingMost = size_t{1} << 18;
  static constexpr uint64_t kFileMost = uint64_t{512} << 20;  // bytes
  // Where a call begins or ends, on its stream and on the CPU.
  struct Mark {
    std::unique_ptr<device::StreamMark> stream = nullptr;  // null: none was taken
    std::optional<core::Tick> cpu = {};
  };

  // A recording ends once the file has more than `file_most` bytes.
  // Errors: of proto::TraceFile::Open.
  static core::Result<std::unique_ptr<CallRecorder>> Open(const std::string& pattern,
                                                          std::string_view name,
                                                          uint64_t file_most = kFileMost);
  // Writes what is measured.
  ~CallRecorder();

  // A mark on `stream`; null: on the stream of the last call that had one.
  Mark MarkOn(ClientStream* stream);

  // What a call did, with its marks: with the first of its tensors, empty with the others.
  void Created(uint64_t id, core::Bytes bytes, std::string_view name, Mark begin, Mark end);
  void Got(uint64_t id, bool read_only, Mark begin, Mark end);
  void Put(uint64_t id, const PutOptions& options, Mark begin);
  void Freed(uint64_t id, Mark begin);
  void Stepped(Mark begin);

  // Waits at most `patience` until all marks are reached, and writes.
  void Finish(core::Duration patience);

 private:
  enum class Kind : uint8_t { kCreate, kGet, kPut, kFree, kStep };
  struct Call {
    Kind kind = Kind::kStep;
    uint64_t id = 0;
    core::Bytes bytes = {};
    std::string name = {};
    bool read_only = false;
    proto::TracePut put = {};
    Mark begin = {};
    Mark end = {};
    core::Duration program{0};
  };
  struct Use {
    uint32_t holders = 0;
    bool writable = false;
  };

  CallRecorder(proto::TraceFile file, uint64_t file_most)
      : file_most_(file_most), file_(std::move(file)) {}

  // REQUIRES for all: mutex_.
  void Append(Call call);
  // Encodes the calls whose marks are reached.
  void Encode();
  core::Result<bool> Reached(const Call& call) const;
  core::Result<proto::TraceTimes> TimesOf(const Call& call) const;
  core::Status EncodeOne(const Call& call);
  void Write();
  void End(const core::Error& why);

  const uint64_t file_most_;
  std::mutex mutex_;
  proto::TraceFile file_;                     // guarded by mutex_, as all below
  std::deque<Call> pending_;                  // oldest first
  std::unordered_map<uint64_t, Use> uses_;    // by tensor
  std::unique_ptr<device::StreamMark> last_;  // of the call encoded last
  std::optional<core::Tick> returned_;        // the last call that was appended
  ClientStream* stream_ = nullptr;            // of the last call that had one
  bool ended_ = false;
};

}  // namespace ravenstore::client
