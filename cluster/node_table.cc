#include "cluster/node_table.h"

#include <algorithm>
#include <utility>

namespace ravenstore::cluster {

using core::Error;
using core::ErrorCode;
using core::Tick;

NodeTable::Said NodeTable::Read(const std::string& name, const std::string& text) const {
  const auto record = ReadNodeRecord(name, text);
  Said said{.record = record.ok() ? *record : NodeRecord{.name = name, .address = {}}};
  if (!record.ok()) said.refusal = record.error();
  if (!options_.allowed.empty() && !options_.allowed.contains(name)) {
    said.refusal = Error{ErrorCode::kPermission, "the name is not among those that are allowed"};
  }
  return said;
}

void NodeTable::Replace(const std::vector<Entry>& entries, Tick now) {
  overflowed_ = false;
  std::set<std::string> gone;
  for (const auto& [name, node] : nodes_) gone.insert(name);
  for (const Entry& entry : entries) gone.erase(entry.name);
  // Those that go first leave room.
  for (const std::string& name : gone) Update(name, std::nullopt, now);
  for (const Entry& entry : entries) Update(entry.name, entry.text, now);
}

bool NodeTable::Holds(const std::string& name, const std::string& text) const {
  const auto found = nodes_.find(name);
  return found != nodes_.end() && found->second.said == Read(name, text);
}

void NodeTable::Update(const std::string& name, const std::optional<std::string>& text, Tick now) {
  if (!nodes_.contains(name)) {
    if (!text) return;
    if (nodes_.size() >= options_.nodes_max) {
      overflowed_ = true;
      return;
    }
  }
  Node& node = nodes_[name];
  std::optional<Said> said;
  if (text) said = Read(name, *text);
  if (said == node.said && node.reported == node.said) return;
  if (said != node.said) node.since = now;
  node.said = std::move(said);
  if (node.said != node.reported) {
    pending_.insert(name);
    return;
  }
  pending_.erase(name);
  if (!node.reported) nodes_.erase(name);  // came and went, and was never reported
}

void NodeTable::RestartGrace(Tick now) {
  for (const std::string& name : pending_) nodes_.at(name).since = now;
}

void NodeTable::SuspectOldRecords(Tick now) {
  RestartGrace(now);
  calm_at_ = now + options_.grace;
}

Tick NodeTable::Due(const Node& node) const {
  const Tick due = node.said ? std::max(node.since, calm_at_) : node.since + options_.grace;
  return node.reported_at == Tick::min() ? due : std::max(due, node.reported_at + options_.spacing);
}

void NodeTable::ReportDue(Tick now, Tick confirmed) {
  std::vector<std::string> due;
  for (const std::string& name : pending_) {
    const Node& node = nodes_.at(name);
    if (Due(node) <= (node.said ? now : std::min(now, confirmed))) due.push_back(name);
  }
  for (const std::string& name : due) {
    pending_.erase(name);
    Node& node = nodes_.at(name);
    const Node before = node;
    node.reported = node.said;
    node.reported_at = now;
    if (!node.reported) nodes_.erase(name);
    Report(name, before);
  }
}

void NodeTable::Report(const std::string& name, const Node& node) {
  const bool was = node.reported && !node.reported->refusal;
  const bool is = node.said && !node.said->refusal;
  if (was && is) {
    listener_.OnChanged(node.reported->record, node.said->record);
  } else if (is) {
    listener_.OnJoined(node.said->record);
  } else if (was) {
    listener_.OnLeft(node.reported->record);
  }
  if (node.said && !is && (was || !node.reported)) listener_.OnRefused(name, *node.said->refusal);
}

Tick NodeTable::Next() const {
  Tick next = core::kNever;
  for (const std::string& name : pending_) next = std::min(next, Due(nodes_.at(name)));
  return next;
}

std::vector<const NodeRecord*> NodeTable::Nodes() const {
  std::vector<const NodeRecord*> all;
  for (const auto& [name, node] : nodes_) {
    if (node.reported && !node.reported->refusal) all.push_back(&node.reported->record);
  }
  return all;
}

const NodeRecord* NodeTable::Find(const std::string& name) const {
  const auto found = nodes_.find(name);
  if (found == nodes_.end() || !found->second.reported || found->second.reported->refusal)
    return nullptr;
  return &found->second.reported->record;
}

size_t NodeTable::refused() const {
  return static_cast<size_t>(std::ranges::count_if(nodes_, [](const auto& node) {
    return node.second.reported && node.second.reported->refusal;
  }));
}

}  // namespace ravenstore::cluster
