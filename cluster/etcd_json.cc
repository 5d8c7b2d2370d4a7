#include "cluster/etcd_json.h"

#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/printable.h"

namespace ravenstore::cluster::etcd_json {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using nlohmann::json;

constexpr size_t kQuotedMax = 120;
constexpr auto kReplaced = json::error_handler_t::replace;  // what is no UTF-8

std::string Base64(std::string_view bytes) {
  // The length, and the zero that OpenSSL appends.
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

std::optional<std::string> FromBase64(std::string_view text) {
  if (text.empty()) return std::string();
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  if (text.size() % 4 != 0 || length != static_cast<int>(bytes.size())) return std::nullopt;
  // OpenSSL counts the padding as bytes.
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  bytes.resize(bytes.size() - padding);
  return bytes;
}

// The first key that is behind all that begin with the prefix; "\0" as etcd's for "no end".
std::string EndOf(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) return std::string(1, '\0');
  ++end.back();
  return end;
}

std::string Quoted(std::string_view text) {
  return core::Printable(text.substr(0, kQuotedMax));
}

Error NoSense(std::string_view text) {
  return {ErrorCode::kCorrupt, "etcd's answer makes no sense: \"" + Quoted(text) + "\""};
}

// An object's member, or null where there is none.
const json& At(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

// A field that is left out is zero.
template <typename Number>
bool ReadNumber(const json& object, const char* key, Number* number) {
  const json& field = At(object, key);
  *number = 0;
  if (field.is_null()) return true;
  if (field.is_number_unsigned()) {
    *number = static_cast<Number>(field.get<uint64_t>());
    return true;
  }
  if (!field.is_string()) return false;
  const auto& text = field.get_ref<const std::string&>();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool ReadBytes(const json& object, const char* key, std::string* bytes) {
  const json& field = At(object, key);
  if (field.is_null()) return true;
  if (!field.is_string()) return false;
  auto read = FromBase64(field.get_ref<const std::string&>());
  if (read) *bytes = std::move(*read);
  return read.has_value();
}

// Revisions count changes from 1 on. Those that a store can reach leave room for sums.
bool ReadRevision(const json& object, const char* key, int64_t* revision) {
  constexpr int64_t kRevisionMax = int64_t{1} << 62;
  return ReadNumber(object, key, revision) && *revision >= 0 && *revision <= kRevisionMax;
}

bool ReadStamp(const json& answer, Stamp* stamp) {
  const json& header = At(answer, "header");
  return ReadNumber(header, "cluster_id", &stamp->store) && stamp->store != 0 &&
         ReadRevision(header, "revision", &stamp->revision);
}

bool ReadKeyValue(const json& object, KeyValue* value) {
  int64_t lease = 0;
  const bool right = object.is_object() && ReadBytes(object, "key", &value->key) &&
                     ReadBytes(object, "value", &value->value) &&
                     ReadRevision(object, "mod_revision", &value->modified) &&
                     ReadNumber(object, "lease", &lease);
  value->lease = StoreLease{lease};
  return right;
}

bool ReadRangeInto(const json& answer, RangeRead* read) {
  const json& values = At(answer, "kvs");
  if (!values.is_null() && !values.is_array()) return false;
  for (const json& object : values) {
    if (!ReadKeyValue(object, &read->values.emplace_back())) return false;
  }
  const json& more = At(answer, "more");
  read->more = more.is_boolean() && more.get<bool>();
  return true;
}

// Ends the reading of a text that nests deeper, or has more values, than any answer of etcd's. As
// JSON values in memory such a text takes many times its length.
class Bounds final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t&) override { return Count(); }
  bool start_object(std::size_t) override { return Begin(); }
  bool start_array(std::size_t) override { return Begin(); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  static constexpr int kDepthMax = 16;
  static constexpr int kValuesMax = 1 << 18;  // of some 20,000 nodes, keys included

  bool Count() { return ++values_ <= kValuesMax; }
  bool Begin() { return ++depth_ <= kDepthMax && Count(); }
  bool End() { return --depth_, true; }

  int depth_ = 0;
  int values_ = 0;
};

// Whether a number in the text is longer than any of etcd's. The parser keeps several copies of it
// before Bounds sees it.
bool HasLongNumber(std::string_view text) {
  constexpr size_t kLengthMax = 64;
  bool in_string = false;
  size_t length = 0;
  for (size_t i = 0; i < text.size() && length <= kLengthMax; ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') ++i;
    const bool of_number = (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e';
    length = !in_string && (of_number || c == 'E') ? length + 1 : 0;
  }
  return length > kLengthMax;
}

// A discarded value where the text is no JSON, or beyond the bounds.
json Parse(std::string_view text) {
  Bounds bounds;
  if (HasLongNumber(text) || !json::sax_parse(text, &bounds)) return json(json::value_t::discarded);
  return json::parse(text, nullptr, false);
}

// gRPC's codes. Those that are not here are the server's trouble.
ErrorCode CodeOf(int64_t grpc, std::string_view message) {
  constexpr int64_t kNotFound = 5;
  constexpr int64_t kPermissionDenied = 7;
  constexpr int64_t kResourceExhausted = 8;
  constexpr int64_t kUnauthenticated = 16;
  if (message.find("user name is empty") != message.npos) return ErrorCode::kPermission;
  switch (grpc) {
    case kNotFound: return ErrorCode::kNotFound;
    case kPermissionDenied:
    case kUnauthenticated: return ErrorCode::kPermission;
    case kResourceExhausted: return ErrorCode::kLimit;
    default: return ErrorCode::kUnavailable;
  }
}

// {"error": "...", "code": 5}, or {"error": {"message": "...", "grpc_code": 5}}.
std::optional<Error> ErrorIn(const json& answer) {
  const json& error = At(answer, "error");
  if (error.is_null()) return std::nullopt;
  const json& text = error.is_string() ? error : At(error, "message");
  const std::string message =
      text.is_string() ? text.get<std::string>() : error.dump(-1, ' ', false, kReplaced);
  int64_t code = 0;
  if (!(error.is_string() ? ReadNumber(answer, "code", &code)
                          : ReadNumber(error, "grpc_code", &code))) {
    code = 0;
  }
  const ErrorCode ours = CodeOf(code, message);
  std::string words = "etcd refuses: " + Quoted(message);
  if (ours == ErrorCode::kPermission) {
    words += "; Ravenstore names no etcd user: guard etcd by client certificates instead";
  }
  return Error{ours, std::move(words)};
}

// A whole answer that is neither an error nor nonsense.
Result<json> ParseAnswer(std::string_view text, Stamp* stamp) {
  json answer = Parse(text);
  if (auto error = ErrorIn(answer)) return std::move(*error);
  // Streams of one or more answers wrap each.
  if (At(answer, "result").is_object()) {
    json result = std::move(answer["result"]);
    answer = std::move(result);
  }
  if (!ReadStamp(answer, stamp)) return NoSense(text);
  return answer;
}

}  // namespace

// ---- What is asked

std::string RangeBody(std::string_view prefix, size_t most) {
  return json{{"key", Base64(prefix)}, {"range_end", Base64(EndOf(prefix))}, {"limit", most}}
      .dump();
}

std::string WriteBody(const Write& write) {
  const std::string key = Base64(write.key);
  json compare = {{"key", key}, {"result", "EQUAL"}};
  if (write.expected) {
    compare["target"] = "VALUE";
    compare["value"] = Base64(*write.expected);
  } else {
    compare["target"] = "VERSION";
    compare["version"] = "0";
  }
  const json put = {{"key", key},
                    {"value", Base64(write.value)},
                    {"lease", std::to_string(static_cast<int64_t>(write.lease))}};
  return json{{"compare", json::array({compare})},
              {"success", json::array({json{{"request_put", put}}})},
              {"failure", json::array({json{{"request_range", {{"key", key}}}}})}}
      .dump();
}

std::string GrantBody(core::Duration duration) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(duration).count();
  return json{{"TTL", std::max<int64_t>(seconds, 1)}}.dump();
}

std::string LeaseBody(StoreLease lease) {
  return json{{"ID", std::to_string(static_cast<int64_t>(lease))}}.dump();
}

std::string WatchBody(std::string_view prefix, int64_t from) {
  const json create = {{"key", Base64(prefix)},
                       {"range_end", Base64(EndOf(prefix))},
                       {"start_revision", std::to_string(from)},
                       {"progress_notify", true}};
  return json{{"create_request", create}}.dump();
}

// ---- What is answered

Result<RangeRead> ReadRange(std::string_view text) {
  RangeRead read;
  RAVEN_ASSIGN_OR_RETURN(const json answer, ParseAnswer(text, &read.at));
  if (!ReadRangeInto(answer, &read)) return NoSense(text);
  return read;
}

Result<WriteAnswer> ReadWrite(std::string_view text) {
  WriteAnswer read;
  RAVEN_ASSIGN_OR_RETURN(const json answer, ParseAnswer(text, &read.at));
  const json& succeeded = At(answer, "succeeded");
  read.written = succeeded.is_boolean() && succeeded.get<bool>();
  if (read.written) return read;
  const json& responses = At(answer, "responses");
  if (!responses.is_array() || responses.size() != 1) return NoSense(text);
  RangeRead found;
  if (!ReadRangeInto(At(responses.front(), "response_range"), &found)) return NoSense(text);
  if (!found.values.empty()) read.found = std::move(found.values.front());
  return read;
}

Result<LeaseAnswer> ReadGrant(std::string_view text) {
  LeaseAnswer read;
  RAVEN_ASSIGN_OR_RETURN(const json answer, ParseAnswer(text, &read.at));
  int64_t lease = 0;
  int64_t seconds = 0;
  constexpr int64_t kSecondsMax = 9'000'000'000;  // etcd's
  if (!ReadNumber(answer, "ID", &lease) || !ReadNumber(answer, "TTL", &seconds) || lease == 0 ||
      seconds < 0 || seconds > kSecondsMax) {
    return NoSense(text);
  }
  read.lease = StoreLease{lease};
  read.duration = std::chrono::seconds(seconds);
  return read;
}

Result<LeaseAnswer> ReadKeepAlive(std::string_view text) {
  RAVEN_ASSIGN_OR_RETURN(const LeaseAnswer read, ReadGrant(text));
  // That is how etcd says so.
  if (read.duration.count() <= 0) return Error{ErrorCode::kNotFound, "there is no such lease"};
  return read;
}

Result<core::Done> ReadRevoke(std::string_view text) {
  Stamp stamp;
  RAVEN_RETURN_IF_ERROR(ParseAnswer(text, &stamp));
  return core::Done{};
}

Result<Changes> ReadWatch(std::string_view line) {
  Changes read;
  RAVEN_ASSIGN_OR_RETURN(const json answer, ParseAnswer(line, &read.at));
  const json& ended = At(answer, "canceled");
  if (ended.is_boolean() && ended.get<bool>()) {
    const json& why = At(answer, "cancel_reason");
    return Error{ErrorCode::kUnavailable,
                 "etcd ended the watch: " + (why.is_string() ? Quoted(why.get<std::string>())
                                                             : "it has forgotten what was then")};
  }
  const json& events = At(answer, "events");
  if (!events.is_null() && !events.is_array()) return NoSense(line);
  for (const json& event : events) {
    Change& change = read.changes.emplace_back();
    change.deleted = At(event, "type") == "DELETE";
    if (!ReadKeyValue(At(event, "kv"), &change.now)) return NoSense(line);
  }
  return read;
}

Result<std::string> ReadVersion(std::string_view text) {
  const json version = At(Parse(text), "etcdserver");
  if (!version.is_string()) {
    return Error{ErrorCode::kVersionMismatch,
                 "is no etcd: asked for its version it says \"" + Quoted(text) + "\""};
  }
  const auto& words = version.get_ref<const std::string&>();
  int major = 0;
  int minor = 0;
  const char* const end = words.data() + words.size();
  const auto [dot, bad] = std::from_chars(words.data(), end, major);
  const bool read =
      bad == std::errc() && dot != end && std::from_chars(dot + 1, end, minor).ec == std::errc();
  if (!read || major < 3 || (major == 3 && minor < 4)) {
    return Error{ErrorCode::kVersionMismatch,
                 "is etcd " + Quoted(words) + ", and 3.4 or newer is needed"};
  }
  return Quoted(words);
}

std::string_view Warning(std::string_view version) {
  for (const std::string_view bad : {"3.5.0", "3.5.1", "3.5.2"}) {
    if (version == bad) return "this version can lose what it has accepted: use 3.4, or 3.5.5 on";
  }
  return "";
}

Error Refusal(long http_status, std::string_view text) {
  if (auto error = ErrorIn(Parse(text))) return std::move(*error);
  if (text.find("HTTP request to an HTTPS server") != text.npos) {
    return {ErrorCode::kVersionMismatch, "speaks TLS: its endpoint begins with https://"};
  }
  return {
      ErrorCode::kVersionMismatch,
      "is no etcd: it answers HTTP " + std::to_string(http_status) + " \"" + Quoted(text) + "\""};
}

}  // namespace ravenstore::cluster::etcd_json
