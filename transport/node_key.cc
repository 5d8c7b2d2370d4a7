#include "transport/node_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "ipc/unique_fd.h"

namespace ravenstore::transport {
namespace {

using core::Error;
using core::ErrorCode;

Error Refused(ErrorCode code, const std::string& path, const std::string& why) {
  return {code, "the key file " + path + " " + why};
}

Error SystemError(const std::string& path) {
  const ErrorCode code = errno == ENOENT   ? ErrorCode::kNotFound
                         : errno == EACCES ? ErrorCode::kPermission
                                           : ErrorCode::kSystem;
  return Refused(code, path, std::string("cannot be read: ") + std::strerror(errno));
}

core::Status CheckFile(int file, const std::string& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return SystemError(path);
  if (!S_ISREG(status.st_mode)) {
    return Refused(ErrorCode::kInvalidArgument, path, "is no regular file");
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return Refused(ErrorCode::kPermission, path, "belongs to another user");
  }
  if ((status.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", status.st_mode & 07777u);
    return Refused(ErrorCode::kPermission, path,
                   "is open to other users than its owner (mode " + std::string(mode) +
                       "): set its mode to 0600, and make a new key if they may have read it");
  }
  return core::Ok();
}

std::optional<unsigned> Digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

}  // namespace

NodeKey::~NodeKey() {
  ::explicit_bzero(bytes_.data(), bytes_.size());
}

core::Result<NodeKey> ReadNodeKey(const std::string& path) {
  const ipc::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return SystemError(path);
  RAVEN_RETURN_IF_ERROR(CheckFile(file.get(), path));
  std::array<char, 2 * kNodeKeyBytes + 2> text{};  // a newline, and what is too much
  const ssize_t read = ::read(file.get(), text.data(), text.size());
  if (read < 0) return SystemError(path);
  std::array<unsigned char, kNodeKeyBytes> bytes{};
  bool right =
      read == 2 * kNodeKeyBytes || (read == 2 * kNodeKeyBytes + 1 && text[read - 1] == '\n');
  for (size_t i = 0; i < kNodeKeyBytes; ++i) {
    const auto high = Digit(text[2 * i]);
    const auto low = Digit(text[2 * i + 1]);
    right = right && high && low;
    bytes[i] = static_cast<unsigned char>(high.value_or(0) << 4 | low.value_or(0));
  }
  ::explicit_bzero(text.data(), text.size());
  const NodeKey key(bytes);
  ::explicit_bzero(bytes.data(), bytes.size());
  if (!right) {
    return Refused(
        ErrorCode::kInvalidArgument, path,
        "holds no key: 64 hexadecimal digits in one line, as openssl rand -hex 32 makes");
  }
  return key;
}

}  // namespace ravenstore::transport
