#include "proto/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ravenstore::proto {

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
  kReadOnly = 7,
  kModified = 8,
  kNeededIn = 9,
  kOrder = 10,
  kNotNeeded = 11,
  kRecompute = 12,
  kPriority = 13,
  kCall = 14,
  kUnknown = 15,
  kWaited = 16,
  kProgram = 17,
  kBlocked = 18
};
enum OpKind : uint32_t { kCreate = 0, kGet = 1, kPut = 2, kFree = 3, kCompute = 4, kStep = 5 };
constexpr uint64_t kTraceVersion = 1;

void AddVarint(std::string* to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<char>(value | 0x80));
  to->push_back(static_cast<char>(value));
}

void AddPresent(std::string* to, uint32_t field, uint64_t value) {
  AddVarint(to, field << 3);
  AddVarint(to, value);
}

// What is zero is not written.
void AddNumber(std::string* to, uint32_t field, uint64_t value) {
  if (value != 0) AddPresent(to, field, value);
}

uint64_t Nanoseconds(core::Duration time) {
  return static_cast<uint64_t>(std::max<int64_t>(time.count(), 0));
}

// What all calls have; fields may come in any order.
std::string Call(OpKind kind, uint64_t tensor, const TraceTimes& times) {
  std::string message;
  AddNumber(&message, kKind, kind);
  AddNumber(&message, kTensor, tensor);
  AddNumber(&message, kWaited, Nanoseconds(times.waited));
  AddNumber(&message, kProgram, Nanoseconds(times.program));
  AddNumber(&message, kBlocked, Nanoseconds(times.blocked));
  return message;
}

// A reader takes no text that is no UTF-8.
std::string Printable(std::string_view text) {
  std::string printable(text);
  for (char& c : printable) c = c < ' ' || c > '~' ? '?' : c;
  return printable;
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
      failed_(other.failed_),
      written_(other.written_) {}

TraceFile::~TraceFile() {
  if (file_ >= 0) ::close(file_);
}

void TraceFile::Header(std::string_view name) {
  std::string message;
  AddNumber(&message, kVersion, kTraceVersion);
  AddText(&message, kTraceName, Printable(name));
  AddNumber(&message, kClients, 1);
  AddNumber(&message, kMayBeCut, 1);
  AddMessage(&bytes_, message);
}

void TraceFile::Create(uint64_t tensor, Bytes bytes, std::string_view name,
                       const TraceTimes& times) {
  std::string message = Call(kCreate, tensor, times);
  AddNumber(&message, kBytes, bytes.count());
  AddText(&message, kName, Printable(name));
  AddMessage(&bytes_, message);
}

void TraceFile::Get(uint64_t tensor, bool read_only, const TraceTimes& times) {
  std::string message = Call(kGet, tensor, times);
  AddNumber(&message, kReadOnly, read_only ? 1 : 0);
  AddMessage(&bytes_, message);
}

void TraceFile::Put(uint64_t tensor, const TracePut& put, const TraceTimes& times) {
  std::string message = Call(kPut, tensor, times);
  AddNumber(&message, kModified, put.modified ? 1 : 0);
  if (put.needed_in) AddPresent(&message, kNeededIn, Nanoseconds(*put.needed_in));
  if (put.order) {
    const auto bits = static_cast<uint64_t>(*put.order);
    AddPresent(&message, kOrder, (bits << 1) ^ (*put.order < 0 ? ~uint64_t{0} : 0));  // zigzag
  }
  AddNumber(&message, kNotNeeded, put.not_needed ? 1 : 0);
  AddNumber(&message, kRecompute, Nanoseconds(put.recompute));
  AddNumber(&message, kPriority, put.priority);
  AddMessage(&bytes_, message);
}

void TraceFile::Free(uint64_t tensor, const TraceTimes& times) {
  AddMessage(&bytes_, Call(kFree, tensor, times));
}

void TraceFile::Step(const TraceTimes& times) {
  AddMessage(&bytes_, Call(kStep, 0, times));
}

void TraceFile::Compute(core::Duration time, uint32_t call, std::string_view name, bool unknown) {
  std::string message;
  AddNumber(&message, kKind, kCompute);
  AddNumber(&message, kNs, Nanoseconds(time));
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
    written_ += static_cast<size_t>(written);
  }
  return core::Ok();
}

}  // namespace ravenstore::proto
