// The other nodes: their records in the store, and what was reported to the listener.
//
// The one decision here is when to report a difference between the two. A node that joins or
// changes is reported immediately, but at most once per `spacing`. A node that leaves is reported
// after `grace`, once it is confirmed that nothing was missed meanwhile. A node that registers
// again within `grace` is not reported as gone. While the store may hold old records
// (SuspectOldRecords), nodes that join or change wait as long.
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

// Called from within ReportDue. Each call is one event.
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
  bool Holds(const std::string& name, const std::string& text) const;
  // One change. `text` without a value: it is gone.
  void Update(const std::string& name, const std::optional<std::string>& text, core::Tick now);

  // Call it after a time in which the store was not heard. Nodes could not register again
  // meanwhile, so nodes that are gone get their whole grace from now on.
  void RestartGrace(core::Tick now);
  // The store may hold old records, as after a restore. Nothing is reported until the grace is
  // over.
  void SuspectOldRecords(core::Tick now);

  // Reports what is due. `confirmed`: all that the store said until then is known to have come
  // here. Call it only while the store is heard: what the store does not say is not reported.
  void ReportDue(core::Tick now, core::Tick confirmed);
  // When something will be due, or kNever; of what is due, and waits to be confirmed: since when.
  core::Tick Next() const;

  // The nodes that were reported as joined and not as left, by name.
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
    std::optional<Said> said = {};      // by the store
    std::optional<Said> reported = {};  // to the listener
    core::Tick since{};                 // of what is said
    core::Tick reported_at = core::Tick::min();
  };

  Said Read(const std::string& name, const std::string& text) const;
  core::Tick Due(const Node& node) const;
  void Report(const std::string& name, const Node& node);

  const NodeTableOptions options_;
  NodeListener& listener_;
  std::map<std::string, Node> nodes_;
  std::set<std::string> pending_;  // nodes whose `said` is not reported yet
  core::Tick calm_at_{};
  bool overflowed_ = false;
};

}  // namespace ravenstore::cluster
