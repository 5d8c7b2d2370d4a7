#include "transport/node_key.h"

#include <cstring>
#include <optional>

#include "transport/secret_file.h"

namespace ravenstore::transport {
namespace {

using core::Error;
using core::ErrorCode;

constexpr const char* kHowToMake = "openssl rand -hex 32";

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
  constexpr size_t kDigits = 2 * kNodeKeyBytes;
  constexpr const char* kWhat = "the key file";
  auto read = ReadSecretFile(kWhat, path, 4096);
  if (!read.ok() && read.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kNotFound,
                 read.error().message +
                     ": bring the cluster's here, or make one for all nodes by " + kHowToMake};
  }
  RAVEN_ASSIGN_OR_RETURN(std::string text, std::move(read));
  bool right = text.size() == kDigits || (text.size() == kDigits + 1 && text[kDigits] == '\n');
  std::array<unsigned char, kNodeKeyBytes> bytes{};
  for (size_t i = 0; i < kNodeKeyBytes && right; ++i) {
    const auto high = Digit(text[2 * i]);
    const auto low = Digit(text[2 * i + 1]);
    right = high && low;
    bytes[i] = static_cast<unsigned char>(high.value_or(0) << 4 | low.value_or(0));
  }
  ::explicit_bzero(text.data(), text.size());
  const NodeKey key(bytes);
  ::explicit_bzero(bytes.data(), bytes.size());
  if (!right) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string(kWhat) + " " + path +
                     " holds no key: 64 hexadecimal digits in one line, as of " + kHowToMake};
  }
  return key;
}

}  // namespace ravenstore::transport
