#include "daemon/history_file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

using core::Error;
using core::ErrorCode;

namespace {

// A record takes some hundred bytes.
constexpr size_t kFileMax = size_t{16} << 20;

Error Failed(const std::string& path, const char* what) {
  return {ErrorCode::kSystem, path + ": " + what + ": " + std::strerror(errno)};
}

core::Result<std::string> Read(const std::string& path) {
  const ipc::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!file && errno == ENOENT) return Error{ErrorCode::kNotFound, path};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return Failed(path, "cannot be read");
  const auto size = static_cast<size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size > kFileMax)
    return Error{ErrorCode::kCorrupt, path + ": no file of a history"};
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t more = ::read(file.get(), text.data() + done, size - done);
    if (more < 0) return Failed(path, "cannot be read");
    if (more == 0) break;
    done += static_cast<size_t>(more);
  }
  text.resize(done);
  return text;
}

}  // namespace

JobHistory HistoryFile::Load() {
  if (!keeps()) return {};
  if (::access(folder_.c_str(), W_OK | X_OK) != 0) {
    spdlog::info("the history of jobs is kept until the daemon ends: {}: {} (history.path)",
                 folder_, std::strerror(errno));
    folder_.clear();
    return {};
  }
  const auto text = Read(Path());
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) return {};
  auto history = text.ok() ? JobHistory::Parse(*text) : core::Result<JobHistory>(text.error());
  if (history.ok()) return std::move(*history);
  const std::string aside = Path() + ".damaged";
  const bool moved = std::rename(Path().c_str(), aside.c_str()) == 0;
  spdlog::warn("the history of jobs at {} cannot be used and begins anew: {}; {} {}", Path(),
               history.error().message, moved ? "it now is" : "it could not be set aside at",
               aside);
  return {};
}

void HistoryFile::Save(const std::string& text, uint64_t version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!keeps() || version <= saved_) return;
  const core::Status written = Write(text);
  if (!written.ok() && !std::exchange(failed_, true))
    spdlog::warn("the history of jobs is not kept: {}", written.error().message);
  if (!written.ok()) return;
  failed_ = false;
  saved_ = version;
}

core::Status HistoryFile::Write(const std::string& text) const {
  const std::string fresh = Path() + ".new";
  {
    const ipc::UniqueFd file(::open(
        fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!file) return Failed(fresh, "cannot be made");
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t more = ::write(file.get(), text.data() + done, text.size() - done);
      if (more < 0) return Failed(fresh, "cannot be written");
      done += static_cast<size_t>(more);
    }
    if (::fsync(file.get()) != 0) return Failed(fresh, "cannot be written");
  }
  if (std::rename(fresh.c_str(), Path().c_str()) != 0) return Failed(Path(), "cannot be replaced");
  return core::Ok();
}

}  // namespace ravenstore::daemon
