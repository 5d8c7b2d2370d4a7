#include "client/exporter/token.h"

#include <strings.h>

#include <algorithm>
#include <cstddef>

#include "transport/secret_file.h"

namespace ravenstore::client::exporter {
namespace {

constexpr size_t kBytesMin = 16;
constexpr size_t kBytesMax = 512;
constexpr std::string_view kScheme = "bearer ";

bool IsVisible(char letter) {
  return letter > ' ' && letter <= '~';
}

// As long for equal bytes as for others.
bool SameBytes(std::string_view given, std::string_view secret) {
  volatile unsigned char differs = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char of_secret = secret[i % secret.size()];
    differs = static_cast<unsigned char>(differs | (given[i] ^ of_secret));
  }
  return differs == 0;
}

}  // namespace

core::Result<Token> Token::Read(const std::string& path) {
  RAVEN_ASSIGN_OR_RETURN(std::string secret,
                         transport::ReadSecretFile("the token file", path, kBytesMax + 2));
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  if (secret.size() < kBytesMin || secret.size() > kBytesMax ||
      !std::all_of(secret.begin(), secret.end(), IsVisible)) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "the token file " + path + " must have one line of 16 to 512 printable " +
                           "characters without spaces, such as of \"openssl rand -hex 32\""};
  }
  return Token(std::move(secret));
}

bool Token::Matches(std::string_view authorization) const {
  if (authorization.size() < kScheme.size() ||
      ::strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0) {
    return false;
  }
  return SameBytes(authorization.substr(kScheme.size()), secret_);
}

}  // namespace ravenstore::client::exporter
