// A trace (docs/TRACES.md) that grows while a job runs: the messages, and the file that they go to.
//
// Written by hand: the library is loaded into any process, and shall bring no protobuf there.
//
// Threads: one at a time. Errors: kSystem, in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::proto {

// What a put says. At most one of the three hints.
struct TracePut {
  bool modified = true;
  std::optional<core::Duration> needed_in = {};
  std::optional<int64_t> order = {};
  bool not_needed = false;
  core::Duration recompute{0};  // zero: the bytes cannot be recomputed
  uint32_t priority = 0;        // TraceOp.Priority
};

// What a call took where it was recorded. Zero: not measured.
struct TraceTimes {
  core::Duration waited{0};   // the stream was idle for it
  core::Duration program{0};  // of the CPU, from the return of the call before
  core::Duration blocked{0};  // of the CPU, in the call
};

class TraceFile {
 public:
  // The file that `pattern` names, each %p in it being the process's number. If that holds
  // something already, what another process or engine recorded: the same with the process's number
  // behind it, and then with a number behind that. It begins with the header. Errors: kSystem: none
  // of them can be written, or is no regular file.
  static core::Result<TraceFile> Open(const std::string& pattern, std::string_view name);
  TraceFile(TraceFile&& other) noexcept;
  TraceFile& operator=(TraceFile&&) = delete;
  ~TraceFile();

  // ---- Messages, kept until Write.
  void Create(uint64_t tensor, core::Bytes bytes, std::string_view name = {},
              const TraceTimes& times = {});
  void Get(uint64_t tensor, bool read_only = false, const TraceTimes& times = {});
  void Put(uint64_t tensor, const TracePut& put = {}, const TraceTimes& times = {});
  void Free(uint64_t tensor, const TraceTimes& times = {});
  void Step(const TraceTimes& times = {});
  // `call`: a number for what is called, 0: none; `name` with its first one.
  void Compute(core::Duration time, uint32_t call, std::string_view name, bool unknown);

  size_t unwritten() const { return bytes_.size(); }
  // Bytes in the file.
  uint64_t written() const { return written_; }
  // Errors: kSystem, after which nothing is kept or written any more.
  core::Status Write();
  const std::string& path() const { return path_; }

 private:
  TraceFile(int file, std::string path) : file_(file), path_(std::move(path)) {}
  void Header(std::string_view name);

  int file_;
  std::string path_;
  std::string bytes_;
  bool failed_ = false;
  uint64_t written_ = 0;
};

}  // namespace ravenstore::proto
