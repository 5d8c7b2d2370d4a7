#include "device/file_medium.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/size_text.h"
#include "device/host_stream.h"
#include "device/reservation.h"

namespace ravenstore::device {
namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

constexpr Bytes kBufferBytes = core::MiB(1);

Error Failed(const std::string& name, const char* call) {
  return SystemError((name + ": " + call).c_str());
}

Status CheckRoom(const std::string& folder, Bytes size) {
  struct statvfs there {};
  if (::statvfs(folder.c_str(), &there) != 0) return Failed(folder, "statvfs");
  const uint64_t blocks = there.f_bavail;
  if (size.count() / there.f_frsize < blocks) return core::Ok();
  return Error{ErrorCode::kOutOfMemory,
               folder + ": a file of " + core::SizeText(size) + " was asked for, but " +
                   core::SizeText(Bytes(blocks * there.f_frsize)) + " are free"};
}

// A file that nothing else can open.
Result<ipc::UniqueFd> OpenNameless(const std::string& folder) {
  std::string path = folder + "/ravenstore-XXXXXX";
  ipc::UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) return Failed(folder, "create a file (mkostemp)");
  if (::unlink(path.c_str()) != 0) return Failed(path, "unlink");
  return file;
}

bool MakeDirect(int file) {
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, flags | O_DIRECT) == 0;
}

}  // namespace

// A thread and the aligned buffer that its transfers share.
class FileMedium::Worker {
 public:
  Worker(int file, const std::string& name, Bytes size, bool direct)
      : file_(file), name_(name), size_(size), direct_(direct) {}

  // `memory` is only read if `write`.
  void Run(bool write, Bytes offset, std::byte* memory, Bytes bytes, Completion completion) {
    queue_.Run([this, write, offset, memory, bytes, completion = std::move(completion)] {
      completion(Transfer(write, offset, memory, bytes));
    });
  }

 private:
  struct Free {
    void operator()(std::byte* buffer) const { ::free(buffer); }
  };

  Result<Bytes> Transfer(bool write, Bytes offset, std::byte* memory, Bytes bytes) {
    const bool aligned = reinterpret_cast<uintptr_t>(memory) % kUnit.count() == 0;
    const Bytes whole = !direct_ ? bytes : aligned ? bytes.RoundDown(kUnit) : Bytes{};
    RAVEN_ASSIGN_OR_RETURN(Bytes done, Move(write, offset, memory, whole));
    while (done >= whole && done < bytes) {
      const Bytes part = std::min(kBufferBytes, bytes - done);
      RAVEN_ASSIGN_OR_RETURN(const Bytes moved,
                             MoveBuffered(write, offset + done, memory + done.count(), part));
      done += moved;
      if (moved < part) break;
    }
    RAVEN_RETURN_IF_ERROR(CheckLength());
    return done;
  }

  Result<Bytes> MoveBuffered(bool write, Bytes offset, std::byte* memory, Bytes bytes) {
    if (buffer_ == nullptr) {
      buffer_.reset(static_cast<std::byte*>(::aligned_alloc(kUnit.count(), kBufferBytes.count())));
      RAVEN_CHECK(buffer_ != nullptr);
    }
    const Bytes units = bytes.RoundUp(kUnit);
    if (write) {
      memcpy(buffer_.get(), memory, bytes.count());
      memset(buffer_.get() + bytes.count(), 0, (units - bytes).count());
    }
    RAVEN_ASSIGN_OR_RETURN(const Bytes moved, Move(write, offset, buffer_.get(), units));
    const Bytes good = std::min(moved, bytes);
    if (!write) memcpy(memory, buffer_.get(), good.count());
    return good;
  }

  // Fewer bytes than asked for where the file ends.
  Result<Bytes> Move(bool write, Bytes offset, std::byte* memory, Bytes bytes) {
    Bytes done;
    while (done < bytes) {
      std::byte* at = memory + done.count();
      const size_t left = (bytes - done).count();
      const auto place = static_cast<off_t>((offset + done).count());
      const ssize_t moved =
          write ? ::pwrite(file_, at, left, place) : ::pread(file_, at, left, place);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0) return Failed(name_, write ? "write (pwrite)" : "read (pread)");
      done += Bytes(static_cast<uint64_t>(moved));
      // What ends within a unit ends the file.
      if (moved == 0 || (direct_ && done.count() % kUnit.count() != 0)) break;
    }
    return done;
  }

  // The last unit of the file is never written: a file that was made shorter stays so.
  Status CheckLength() const {
    struct stat now {};
    if (::fstat(file_, &now) != 0) return Failed(name_, "fstat");
    const Bytes length(static_cast<uint64_t>(now.st_size));
    if (length >= size_ + kUnit) return core::Ok();
    return Error{ErrorCode::kSystem, name_ + ": the file was made shorter: it ends at " +
                                         std::to_string(length.count()) + " instead of " +
                                         std::to_string((size_ + kUnit).count())};
  }

  const int file_;
  const std::string& name_;
  const Bytes size_;
  const bool direct_;
  std::unique_ptr<std::byte, Free> buffer_;
  HostStream queue_;  // last: its thread uses the others until it ends
};

Result<std::unique_ptr<FileMedium>> FileMedium::Create(const std::string& folder, Bytes size,
                                                       const Options& options) {
  const Bytes rounded = size.RoundUp(kUnit);
  const Bytes length = rounded + kUnit;
  if (size == Bytes{} || rounded < size || length < rounded) {
    return Error{ErrorCode::kInvalidArgument,
                 folder + ": a file of " + std::to_string(size.count()) + " bytes"};
  }
  RAVEN_RETURN_IF_ERROR(CheckRoom(folder, length));
  RAVEN_ASSIGN_OR_RETURN(ipc::UniqueFd file, OpenNameless(folder));
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(length.count())) != 0) {
    return Failed(folder, ("reserve " + core::SizeText(length) + " (fallocate)").c_str());
  }
  return Adopt(std::move(file), "a file in " + folder, options);
}

Result<std::unique_ptr<FileMedium>> FileMedium::Adopt(ipc::UniqueFd file, std::string name,
                                                      const Options& options) {
  RAVEN_ASSIGN_OR_RETURN(const Bytes length, SizeOf(file.get()));
  if (length < kUnit * 2) {
    return Error{ErrorCode::kInvalidArgument,
                 name + ": " + std::to_string(length.count()) + " bytes are too few for a medium"};
  }
  return std::unique_ptr<FileMedium>(
      new FileMedium(std::move(file), std::move(name), length.RoundDown(kUnit) - kUnit, options));
}

FileMedium::FileMedium(ipc::UniqueFd file, std::string name, Bytes size, const Options& options)
    : file_(std::move(file)),
      name_(std::move(name)),
      size_(size),
      direct_(MakeDirect(file_.get())) {
  RAVEN_CHECK(options.threads > 0);
  for (uint32_t i = 0; i < options.threads; ++i) {
    workers_.push_back(std::make_unique<Worker>(file_.get(), name_, size_, direct_));
  }
}

FileMedium::~FileMedium() = default;

Result<ipc::UniqueFd> FileMedium::Duplicate() const {
  return device::Duplicate(file_.get());
}

FileMedium::Worker& FileMedium::Next() {
  return *workers_[transfers_.fetch_add(1, std::memory_order_relaxed) % workers_.size()];
}

void FileMedium::Read(Bytes offset, std::byte* to, Bytes bytes, Completion completion) {
  Next().Run(false, offset, to, bytes, std::move(completion));
}

void FileMedium::Write(Bytes offset, const std::byte* from, Bytes bytes, Completion completion) {
  Next().Run(true, offset, const_cast<std::byte*>(from), bytes, std::move(completion));
}

}  // namespace ravenstore::device
