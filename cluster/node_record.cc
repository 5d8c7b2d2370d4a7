#include "cluster/node_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cluster/hex.h"

namespace ravenstore::cluster {
namespace {

using nlohmann::json;

const std::string* TextAt(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return nullptr;
  return &found->get_ref<const std::string&>();
}

template <typename T>
bool ReadHex(const json& object, const char* key, T* what) {
  const std::string* text = TextAt(object, key);
  const auto read = text == nullptr ? std::nullopt : FromHex<T>(*text);
  if (read) *what = *read;
  return read.has_value();
}

// Visible characters of ASCII: an address goes into logs and to who connects.
bool ReadAddress(const json& object, std::string* address) {
  const std::string* text = TextAt(object, "address");
  const auto visible = [](char c) { return c > ' ' && c < '\x7f'; };
  if (text == nullptr || text->empty() || text->size() > kAddressMax ||
      !std::ranges::all_of(*text, visible)) {
    return false;
  }
  *address = *text;
  return true;
}

}  // namespace

std::string ToText(const NodeRecord& record) {
  return json{{"address", record.address},
              {"incarnation", ToHex(record.incarnation)},
              {"machine", ToHex(record.machine)},
              {"public_key", ToHex(record.public_key)}}
      .dump();
}

core::Result<NodeRecord> ReadNodeRecord(std::string_view name, std::string_view text) {
  const core::Error no_record{core::ErrorCode::kCorrupt, "what is registered is no node's record"};
  if (text.size() > kRecordTextMax) return no_record;
  const json object = json::parse(text, nullptr, false);
  NodeRecord record{.name = std::string(name), .address = {}};
  if (!object.is_object() || !ReadAddress(object, &record.address) ||
      !ReadHex(object, "incarnation", &record.incarnation) ||
      !ReadHex(object, "machine", &record.machine) ||
      !ReadHex(object, "public_key", &record.public_key)) {
    return no_record;
  }
  return record;
}

}  // namespace ravenstore::cluster
