#include "elastic/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

namespace {

// Files of one process that are tried: engines come and go with their contexts.
constexpr int kMostOfOneProcess = 1000;

// Field and kind numbers of proto/trace.proto.
enum HeaderField : uint32_t { kVersion = 1, kTraceName = 2, kClients = 3, kMayBeCut = 4 };
enum OpField : uint32_t {
  kKind = 1,
  kTensor = 3,
  kBytes = 4,
  kNs = 5,
  kName = 6,
  kModified = 8,
  kCall = 14,
  kUnknown = 15
};
enum OpKind : uint32_t { kCreate = 0, kGet = 1, kPut = 2, kFree = 3, kCompute = 4 };
constexpr uint64_t kTraceVersion = 1;

void AddVarint(std::string* to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<char>(value | 0x80));
  to->push_back(static_cast<char>(value));
}

// What is zero is not written.
void AddNumber(std::string* to, uint32_t field, uint64_t value) {
  if (value == 0) return;
  AddVarint(to, field << 3);
  AddVarint(to, value);
}

void AddText(std::string* to, uint32_t field, std::string_view text) {
  if (text.empty()) return;
  AddVarint(to, field << 3 | 2);
  AddVarint(to, text.size());
  to->append(text);
}

void AddMessage(std::string* to, const std::string& message) {
  AddVarint(to, message.size());
  to->append(message);
}

std::string Expanded(const std::string& pattern, const std::string& pid) {
  std::string path = pattern;
  for (size_t at = path.find("%p"); at != std::string::npos; at = path.find("%p", at)) {
    path.replace(at, 2, pid);
    at += pid.size();
  }
  return path;
}

Error SystemError(const std::string& what, int error) {
  return {ErrorCode::kSystem, what + ": " + std::strerror(error)};
}

// The empty file at `path`, made if there is none; -1 if it holds something.
Result<int> TakeEmpty(const std::string& path) {
  // Without waiting for the other end of what is no file.
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_APPEND, 0666);
  if (file < 0) return SystemError("\"" + path + "\" cannot be opened", errno);
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    return Error{ErrorCode::kSystem, "\"" + path + "\" is no regular file"};
  }
  // Who holds the lock is about to write the header.
  const bool ours =
      ::flock(file, LOCK_EX | LOCK_NB) == 0 && ::fstat(file, &status) == 0 && status.st_size == 0;
  if (ours) return file;
  ::close(file);
  return -1;
}

}  // namespace

Result<TraceFile> TraceFile::Open(const std::string& pattern, std::string_view name) {
  const std::string pid = std::to_string(::getpid());
  const std::string first = Expanded(pattern, pid);
  for (int i = 0; i < kMostOfOneProcess; ++i) {
    std::string path = first;
    if (i > 0) path += "." + pid;
    if (i > 1) path += "." + std::to_string(i);
    RAVEN_ASSIGN_OR_RETURN(const int file, TakeEmpty(path));
    if (file < 0) continue;
    TraceFile opened(file, std::move(path));
    opened.Header(name);
    RAVEN_RETURN_IF_ERROR(opened.Write());
    ::flock(file, LOCK_UN);
    return opened;
  }
  return Error{ErrorCode::kSystem, "\"" + first + "\" and all of its kind hold something"};
}

TraceFile::TraceFile(TraceFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      bytes_(std::move(other.bytes_)),
      failed_(other.failed_) {}

TraceFile::~TraceFile() {
  if (file_ >= 0) ::close(file_);
}

void TraceFile::Header(std::string_view name) {
  std::string message;
  AddNumber(&message, kVersion, kTraceVersion);
  // A reader takes no text that is no UTF-8.
  std::string printable(name);
  for (char& c : printable) c = c < ' ' || c > '~' ? '?' : c;
  AddText(&message, kTraceName, printable);
  AddNumber(&message, kClients, 1);
  AddNumber(&message, kMayBeCut, 1);
  AddMessage(&bytes_, message);
}

void TraceFile::Tensor(uint32_t kind, uint64_t tensor, Bytes bytes, bool modified) {
  std::string message;
  AddNumber(&message, kKind, kind);
  AddNumber(&message, kTensor, tensor);
  AddNumber(&message, kBytes, bytes.count());
  AddNumber(&message, kModified, modified ? 1 : 0);
  AddMessage(&bytes_, message);
}

void TraceFile::Create(uint64_t tensor, Bytes bytes) {
  Tensor(kCreate, tensor, bytes, false);
}
void TraceFile::Get(uint64_t tensor) {
  Tensor(kGet, tensor, {}, false);
}
void TraceFile::Put(uint64_t tensor) {
  Tensor(kPut, tensor, {}, true);
}
void TraceFile::Free(uint64_t tensor) {
  Tensor(kFree, tensor, {}, false);
}

void TraceFile::Compute(core::Duration time, uint32_t call, std::string_view name, bool unknown) {
  std::string message;
  AddNumber(&message, kKind, kCompute);
  AddNumber(&message, kNs, static_cast<uint64_t>(std::max<int64_t>(time.count(), 0)));
  AddText(&message, kName, name);
  AddNumber(&message, kCall, call);
  AddNumber(&message, kUnknown, unknown ? 1 : 0);
  AddMessage(&bytes_, message);
}

Status TraceFile::Write() {
  const std::string bytes = std::exchange(bytes_, {});
  if (failed_) return core::Ok();
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = ::write(file_, bytes.data() + at, bytes.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      failed_ = true;
      return SystemError("\"" + path_ + "\" cannot be written", errno);
    }
    at += static_cast<size_t>(written);
  }
  return core::Ok();
}

}  // namespace ravenstore::elastic
