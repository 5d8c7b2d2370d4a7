#include "transport/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "ipc/unique_fd.h"

namespace ravenstore::transport {
namespace {

using core::Error;
using core::ErrorCode;

Error SystemError(const std::string& file) {
  const ErrorCode code = errno == ENOENT   ? ErrorCode::kNotFound
                         : errno == EACCES ? ErrorCode::kPermission
                                           : ErrorCode::kSystem;
  return {code, file + " cannot be read: " + std::strerror(errno)};
}

core::Status Check(int descriptor, const std::string& file) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return SystemError(file);
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::kInvalidArgument, file + " is no regular file"};
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return Error{ErrorCode::kPermission, file + " belongs to another user"};
  }
  if ((status.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", status.st_mode & 07777u);
    return Error{ErrorCode::kPermission,
                 file + " is open to other users than its owner (mode " + mode +
                     "): set its mode to 0600, and make a new key if they may have read it"};
  }
  return core::Ok();
}

}  // namespace

core::Result<std::string> ReadSecretFile(std::string_view what, const std::string& path,
                                         size_t bytes_max) {
  const std::string file = std::string(what) + " " + path;
  const ipc::UniqueFd descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor) return SystemError(file);
  RAVEN_RETURN_IF_ERROR(Check(descriptor.get(), file));
  std::string text(bytes_max + 1, '\0');  // and what is too much
  size_t done = 0;
  ssize_t read = 1;
  while (read > 0 && done < text.size()) {
    read = ::read(descriptor.get(), text.data() + done, text.size() - done);
    if (read > 0) done += static_cast<size_t>(read);
  }
  if (read < 0 || done > bytes_max) {
    const Error error =
        read < 0 ? SystemError(file) : Error{ErrorCode::kInvalidArgument, file + " is too long"};
    ::explicit_bzero(text.data(), text.size());
    return error;
  }
  text.resize(done);
  return text;
}

}  // namespace ravenstore::transport
