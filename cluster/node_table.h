// Which other nodes there are: what the store says of them, and what the listener was told.
//
// The one decision here is when a difference between the two is told. A node that comes or changes
// is told at once, but for one node not more often than every `spacing`. A node that goes is told
// after `grace`, so that one that registers anew in time has never been away, and once it is
// confirmed that nothing was missed meanwhile. While the store may say what is old (Doubt), nodes
// that come or change wait as long.
//
// Threads: one. Owns: nothing of the listener's.
// Memory: at most `nodes_max` nodes. Those beyond are ignored and counted.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/node_record.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::cluster {

// Told from within Settle. Each call is one event.
class NodeListener {
 public:
  virtual ~NodeListener() = default;
  virtual void OnJoined(const NodeRecord& node) = 0;
  // Its incarnation, or another part of its record.
  virtual void OnChanged(const NodeRecord& before, const NodeRecord& now) = 0;
  virtual void OnLeft(const NodeRecord& node) = 0;
  // Registered, and not let in: a name that is not allowed, or no record.
  virtual void OnRefused(std::string_view name, const core::Error& why) = 0;
};

struct NodeTableOptions {
  std::set<std::string> allowed = {};  // names; empty: all
  core::Duration grace = std::chrono::seconds(15);
  core::Duration spacing = std::chrono::seconds(1);
  size_t nodes_max = 4096;
};

class NodeTable {
 public:
  NodeTable(NodeTableOptions options, NodeListener* listener)
      : options_(std::move(options)), listener_(*listener) {}

  // What the store holds under a name that may be a node's.
  struct Entry {
    std::string name;
    std::string text;
  };
  // All that the store holds.
  void Replace(const std::vector<Entry>& entries, core::Tick now);
  // Whether this is what the store was last known to hold under that name.
  bool Says(const std::string& name, const std::string& text) const;
  // One change. `text` without a value: it is gone.
  void Update(const std::string& name, const std::optional<std::string>& text, core::Tick now);

  // After a time in which the store was not heard: nodes could not register anew meanwhile, so that
  // those that are gone have their whole grace from now on.
  void BeginGraceAnew(core::Tick now);
  // What the store says may be old, as after it was restored: until the grace is over nothing is
  // told.
  void Doubt(core::Tick now);

  // Tells what is due. `confirmed`: until when all that the store said is known to have come here.
  // Call it while the store is heard only: what it does not say is not told.
  void Settle(core::Tick now, core::Tick confirmed);
  // When something will be due, or kNever; of what is due, and waits to be confirmed: since when.
  core::Tick Next() const;

  // Those that were told to have joined and not to have left, by name.
  std::vector<const NodeRecord*> Nodes() const;
  const NodeRecord* Find(const std::string& name) const;
  size_t refused() const;
  bool overflowed() const { return overflowed_; }

 private:
  struct Said {
    NodeRecord record;
    std::optional<core::Error> refusal = {};
    bool operator==(const Said& other) const {
      return record == other.record && refusal.has_value() == other.refusal.has_value();
    }
  };
  struct Node {
    std::optional<Said> said = {};  // by the store
    std::optional<Said> told = {};  // to the listener
    core::Tick since{};             // of what is said
    core::Tick told_at = core::Tick::min();
  };

  Said Read(const std::string& name, const std::string& text) const;
  core::Tick Due(const Node& node) const;
  void Tell(const std::string& name, const Node& node);

  const NodeTableOptions options_;
  NodeListener& listener_;
  std::map<std::string, Node> nodes_;
  std::set<std::string> pending_;  // those that are told something else than is said
  core::Tick calm_at_{};
  bool overflowed_ = false;
};

}  // namespace ravenstore::cluster
