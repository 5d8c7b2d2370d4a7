// ravenctl record: what clients do, as a trace for the simulator (docs/TRACES.md).
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <ostream>
#include <utility>

#include "client/ctl/commands.h"
#include "client/ctl/session.h"
#include "core/printable.h"
#include "ipc/clock.h"
#include "proto/trace.pb.h"

namespace ravenstore::client::ctl {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

// The daemon's buffer holds megabytes: it is asked again without a pause only while it has more.
constexpr long kPauseNanoseconds = 5'000'000;
constexpr size_t kMuch = 16 << 10;
// At the end what is in the buffer is still taken, but not what a busy store goes on to record.
constexpr int kTakesAtTheEnd = 256;
constexpr uint32_t kTraceVersion = 1;

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

Status Write(FILE* file, const std::string& bytes, const std::string& name) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size()) return core::Ok();
  return Error{ErrorCode::kSystem, name + ": cannot be written"};
}

// The header counts the clients, which are known at the end: until then the ops are kept apart.
// Once the daemon records, `begun` says so.
Result<proto::Recorded> Collect(Session& session, const RecordOptions& options,
                                const std::atomic<bool>& stop, FILE* ops, std::ostream& begun) {
  bool said = false;
  const core::Tick until = ipc::Now() + options.time;
  for (int left = kTakesAtTheEnd;;) {
    const bool ends = stop.load() || ipc::Now() >= until;
    RAVEN_ASSIGN_OR_RETURN(proto::Recorded recorded, session.Record(options.client));
    if (!std::exchange(said, true)) begun << "recording; an interrupt ends it" << std::endl;
    RAVEN_RETURN_IF_ERROR(Write(ops, recorded.ops(), "the temporary file"));
    if (ends && (recorded.ops().empty() || --left == 0)) return recorded;
    const timespec pause{.tv_sec = 0, .tv_nsec = kPauseNanoseconds};
    if (!ends && recorded.ops().size() < kMuch) nanosleep(&pause, nullptr);
  }
}

std::string HeaderOf(const proto::Recorded& recorded, const std::string& name) {
  proto::TraceHeader header;
  header.set_version(kTraceVersion);
  header.set_name(name);
  header.set_clients(std::max(recorded.clients(), 1u));
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteVarint32(static_cast<uint32_t>(header.ByteSizeLong()));
    header.SerializeToCodedStream(&coded);
  }
  return bytes;
}

// The trace: open from the beginning, under another name until it is whole. What was there before
// stays until then.
class Output {
 public:
  static Result<Output> Open(const std::string& name) {
    // A pipe, a device or a link is no name for a file to take.
    struct stat status {};
    const bool is_file = lstat(name.c_str(), &status) != 0 || S_ISREG(status.st_mode);
    // Of its own: two may be asked for one file, and the user may have one of a name like that.
    Output output(name, is_file ? name + "." + std::to_string(getpid()) + ".tmp" : name);
    output.file_.reset(std::fopen(output.path_.c_str(), is_file ? "wxe" : "we"));
    if (output.file_ != nullptr) return output;
    return Error{ErrorCode::kSystem, name + ": cannot be opened for writing"};
  }
  Output(Output&&) = default;
  ~Output() {
    if (file_ != nullptr && path_ != name_) unlink(path_.c_str());
  }

  Status Finish(FILE* ops, const proto::Recorded& recorded) {
    RAVEN_RETURN_IF_ERROR(Write(file_.get(), HeaderOf(recorded, name_), path_));
    if (std::fseek(ops, 0, SEEK_SET) != 0)  // it writes what is buffered
      return Error{ErrorCode::kSystem, "the temporary file: cannot be written"};
    std::array<char, 1 << 16> part;
    while (const size_t got = std::fread(part.data(), 1, part.size(), ops)) {
      RAVEN_RETURN_IF_ERROR(Write(file_.get(), std::string(part.data(), got), path_));
    }
    if (std::ferror(ops) != 0)
      return Error{ErrorCode::kSystem, "the temporary file: cannot be read"};
    if (std::fflush(file_.get()) != 0)
      return Error{ErrorCode::kSystem, path_ + ": cannot be written"};
    if (path_ != name_ && std::rename(path_.c_str(), name_.c_str()) != 0) {
      return Error{ErrorCode::kSystem, path_ + ": cannot be renamed to " + name_};
    }
    file_.reset();
    return core::Ok();
  }

 private:
  Output(std::string name, std::string path)
      : name_(std::move(name)), path_(std::move(path)), file_(nullptr, std::fclose) {}

  std::string name_;
  std::string path_;
  File file_;  // none: it has its name
};

}  // namespace

int RunRecord(const Common& common, const RecordOptions& options, const std::atomic<bool>& stop,
              Streams streams) {
  const auto run = [&]() -> Result<proto::Recorded> {
    RAVEN_ASSIGN_OR_RETURN(Output output, Output::Open(options.file));
    auto session = Session::Open(common.socket, common.timeout);
    if (!session.ok()) {
      Error error = session.error();
      const std::string_view advice = AdviceAbout(error.code);
      if (!advice.empty()) (error.message += "; ") += advice;
      return error;
    }
    const File ops(std::tmpfile(), std::fclose);
    if (!ops) return Error{ErrorCode::kSystem, "no temporary file can be made"};
    RAVEN_ASSIGN_OR_RETURN(proto::Recorded recorded,
                           Collect(*session, options, stop, ops.get(), streams.err));
    RAVEN_RETURN_IF_ERROR(output.Finish(ops.get(), recorded));
    return recorded;
  };
  const auto recorded = run();
  if (!recorded.ok()) {
    if (common.json) streams.out << ErrorJson(recorded.error());
    streams.err << "ravenctl: " << core::Printable(core::Describe(recorded.error())) << '\n';
    return kExitFailed;
  }
  streams.out << (common.json ? RecordedJson(options.file, *recorded)
                              : RecordedText(options.file, *recorded));
  return kExitOk;
}

}  // namespace ravenstore::client::ctl
