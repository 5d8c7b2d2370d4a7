#include "client/ctl/json.h"

#include <cstdio>
#include <utility>

namespace ravenstore::client::ctl {
namespace {

// RFC 8259: quotes, backslashes and control characters are escaped. Control bytes above 0x7f are
// parts of UTF-8 sequences here.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", byte);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace

void JsonWriter::Introduce(std::string_view name) {
  if (!first_) text_ += ',';
  first_ = false;
  if (!name.empty()) (text_ += Quoted(name)) += ':';
}

JsonWriter& JsonWriter::Begin(std::string_view name, char bracket) {
  Introduce(name);
  text_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  text_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::Field(std::string_view name, std::string_view value) {
  return Raw(name, Quoted(value));
}

JsonWriter& JsonWriter::Raw(std::string_view name, std::string_view value) {
  Introduce(name);
  text_ += value;
  return *this;
}

std::string JsonWriter::Take() {
  first_ = true;
  return std::exchange(text_, {}) + '\n';
}

}  // namespace ravenstore::client::ctl
