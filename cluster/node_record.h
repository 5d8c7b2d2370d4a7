// What a node publishes about itself, and the text by which it does.
//
// The text is one JSON object, so that an operator can read it with etcdctl. It comes from a store
// that others can write to: what it says is a hint where to ask, and never a proof.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cluster/ids.h"
#include "core/result.h"

namespace ravenstore::cluster {

inline constexpr size_t kAddressMax = 255;
inline constexpr size_t kRecordTextMax = 1024;

struct NodeRecord {
  std::string name;
  std::string address;  // as its transport writes it
  Incarnation incarnation = {};
  MachineId machine = {};
  PublicKey public_key{};

  bool operator==(const NodeRecord&) const = default;
};

std::string ToText(const NodeRecord& record);
// Of the node `name`. Errors: kCorrupt.
core::Result<NodeRecord> ReadNodeRecord(std::string_view name, std::string_view text);

}  // namespace ravenstore::cluster
