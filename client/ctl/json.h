// Writes JSON, for `--json`.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ravenstore::client::ctl {

// Builds one JSON value on a line. Members come in the order of the calls; the caller balances
// Begin and End.
// Threads: one.
class JsonWriter {
 public:
  // Within an array leave `name` out.
  JsonWriter& BeginObject(std::string_view name = {}) { return Begin(name, '{'); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray(std::string_view name = {}) { return Begin(name, '['); }
  JsonWriter& EndArray() { return End(']'); }

  JsonWriter& Field(std::string_view name, std::string_view value);
  JsonWriter& Field(std::string_view name, const char* value) {
    return Field(name, std::string_view(value));
  }
  JsonWriter& Field(std::string_view name, std::same_as<bool> auto value) {
    return Raw(name, value ? "true" : "false");
  }
  JsonWriter& Field(std::string_view name, std::unsigned_integral auto value) requires(
      !std::same_as<decltype(value), bool>) {
    return Raw(name, std::to_string(value));
  }

  // Finite.
  JsonWriter& Field(std::string_view name, std::floating_point auto value) {
    return Number(name, static_cast<double>(value));
  }

  // What was written, with a line feed. REQUIRES: balanced.
  std::string Take();

 private:
  JsonWriter& Begin(std::string_view name, char bracket);
  JsonWriter& End(char bracket);
  JsonWriter& Number(std::string_view name, double value);
  JsonWriter& Raw(std::string_view name, std::string_view value);
  void BeginField(std::string_view name);

  std::string text_;
  bool first_ = true;
};

}  // namespace ravenstore::client::ctl
