#include "client/ctl/json.h"

#include <cstdio>

#include <utility>

#include "core/printable.h"

namespace ravenstore::client::ctl {
void JsonWriter::BeginField(std::string_view name) {
  if (!first_) text_ += ',';
  first_ = false;
  if (!name.empty()) (text_ += core::JsonQuoted(name)) += ':';
}

JsonWriter& JsonWriter::Begin(std::string_view name, char bracket) {
  BeginField(name);
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
  return Raw(name, core::JsonQuoted(value));
}

JsonWriter& JsonWriter::Number(std::string_view name, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return Raw(name, text);
}

JsonWriter& JsonWriter::Raw(std::string_view name, std::string_view value) {
  BeginField(name);
  text_ += value;
  return *this;
}

std::string JsonWriter::Take() {
  first_ = true;
  return std::exchange(text_, {}) + '\n';
}

}  // namespace ravenstore::client::ctl
