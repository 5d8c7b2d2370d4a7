// The secret that a scrape sends to see figures of single users.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "core/result.h"

namespace ravenstore::client::exporter {

// Threads: any, once it is read.
class Token {
 public:
  // The file has the token alone, with or without an end of line. Only its owner may be able to
  // read it.
  // Errors: those of transport::ReadSecretFile; kInvalidArgument for a file that does not have 16
  // to 512 printable characters. No message has a part of the file.
  static core::Result<Token> Read(const std::string& path);

  // Whether `authorization`, the value of the header, is "Bearer" and this token. How long it
  // takes depends on the length of `authorization` alone.
  bool Matches(std::string_view authorization) const;

 private:
  explicit Token(std::string secret) : secret_(std::move(secret)) {}

  std::string secret_;
};

}  // namespace ravenstore::client::exporter
