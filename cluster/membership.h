// Finds the other nodes of the cluster, and lets them find this one.
//
// This node registers itself in a store (key_values.h) under its name, with a lease that it keeps
// alive, and watches who else does. Nothing that has to be right depends on it: two nodes that know
// each other need no store, and while the store is away what is known stays known.
//
// A name has one holder. A node takes a free name; it replaces a record that an earlier start of
// its own state folder wrote; of any other holder it waits until that is gone. All of it by
// compare-and-set, so that of two that try one succeeds.
//
// What the watch may have missed shows in the stamps of other answers. After any doubt (the watch
// ended, another store, a revision that went back, no proof for a while that nothing was missed) it
// reads all again and watches on from there. It also does so now and then without any doubt.
// Nothing else shows a store that was restored behind a silent watch and grew again to exactly the
// revision that the watch had reported.
//
// Threads: one, that of the store, on which Tick and the store's Poll run.
// Owns: nothing. Store and listener outlive it.
// Cost: idle, one small request every third of the lease, and while other things are written to the
// store a read every `recheck`; a read every `reread` at the latest. One operation of each kind is
// under way at most; failures are tried again after 0.2 to 5 s, at times that differ between nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/key_values.h"
#include "cluster/node_record.h"
#include "cluster/node_table.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::cluster {

struct MembershipOptions {
  NodeRecord self;
  std::vector<Incarnation> predecessors = {};  // of this state folder
  std::string prefix = "/ravenstore/nodes/";   // and then the node's name
  NodeTableOptions table = {};
  core::Duration lease = std::chrono::seconds(10);
  core::Duration recheck = std::chrono::seconds(30);
  core::Duration reread = std::chrono::minutes(5);
  core::Duration patience = std::chrono::seconds(5);  // with one operation
  uint64_t seed = 0;                                  // differs between nodes
};

struct MembershipStatus {
  // The store holds this node's record, by all that is known.
  bool registered = false;
  // It answers. A failure or two within some seconds is nothing.
  bool reachable = false;
  // Since when both are so.
  core::Tick since{};
  // One sentence each.
  std::string registration;
  std::string store;
};

class MembershipListener : public NodeListener {
 public:
  // `registered` or `reachable` changed, the store that was never heard does not answer, or another
  // node has taken this one's name, or no longer has it.
  virtual void OnStatus(const MembershipStatus& status) = 0;
};

class Membership {
 public:
  // REQUIRES: self's name is a node's (transport.h).
  Membership(MembershipOptions options, KeyValues* store, MembershipListener* listener);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Does what is due. Calls the listener.
  void Tick(core::Tick now);
  // When something will be due, at the latest.
  core::Tick NextTick() const;

  // Releases the name; the other nodes are still watched. A node that ends calls it. The node exits
  // when HasLeft, or when it has waited long enough: the lease ends all the same.
  void Leave();
  bool HasLeft() const;

  const NodeTable& nodes() const { return table_; }
  MembershipStatus status() const;

 private:
  enum class View : uint8_t {
    kNone,       // to be read
    kReading,    // a read is under way
    kBeginning,  // it is as the store was; a watch is to begin there
    kWatching,
  };
  // Whose the record under this node's name is.
  enum class Holder : uint8_t {
    kNone,
    kSelf,
    kSelfByOtherLease,
    kPredecessor,
    kOther,
  };
  // When to try again.
  struct Retry {
    core::Tick at{};
    core::Duration pause{};
  };

  // A callback that finds this gone does nothing.
  template <typename T>
  Callback<T> CallbackTo(void (Membership::*method)(const core::Result<T>&));
  core::Tick Deadline() const { return now_ + options_.patience; }
  core::Duration Random(core::Duration most);

  // The view.
  void Read();
  void OnRead(const core::Result<RangeRead>& read);
  void OnWatch(const core::Result<Changes>& changes);
  // Reads all again. `lost`: something may have been missed.
  void ReadAgain(bool lost);
  // What the stamp of another answer says of the view. That had at least `known` as it was asked.
  void Compare(const Stamp& stamp, int64_t known);
  // When it is to be read again to be sure of it.
  core::Tick NextCheck() const;
  bool HasView() const { return view_ == View::kBeginning || view_ == View::kWatching; }

  // The registration.
  Holder FindHolder() const;
  int64_t Known() const;
  void Register();
  void OnGranted(const core::Result<LeaseAnswer>& answer);
  void OnWritten(const core::Result<WriteAnswer>& answer);
  void KeepAlive();
  void OnKept(const core::Result<LeaseAnswer>& answer);
  void SetOwn(std::optional<KeyValue> own, int64_t revision);

  // An answer came, or why none did.
  void RecordContact(const core::Error* failure);
  // For longer than a failure or two take.
  bool IsFailing() const;
  bool IsRegistered() const;
  void Again(Retry* retry);
  void ReportStatus();
  std::string RegistrationWords() const;
  std::string StoreWords() const;
  // The name of the node whose record is at `key`. Empty: the key is outside the prefix, or has no
  // node name.
  std::optional<std::string> NameIn(const std::string& key);

  const MembershipOptions options_;
  const std::string key_;
  const std::string text_;  // this node's record
  KeyValues& store_;
  MembershipListener& listener_;
  NodeTable table_;
  std::mt19937_64 random_;
  core::Tick now_{};
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // callbacks may come later

  View view_ = View::kNone;
  WatchId watch_{};
  Stamp seen_;              // of the view
  core::Tick confirmed_{};  // when the view was last known to be whole
  core::Tick reread_at_{};
  bool lost_ = false;  // since the last read
  Retry read_;

  std::optional<KeyValue> own_;  // what the store holds under this node's name
  std::optional<NodeRecord> own_record_;
  int64_t own_revision_ = 0;  // as of then
  StoreLease lease_{};
  core::Tick lease_end_{};  // at the earliest
  // A grant or a write is under way, or a keep-alive. When it was sent, and what was known then.
  struct Asked {
    bool open = false;
    core::Tick at{};
    int64_t known = 0;
    StoreLease lease{};
  };
  Asked registering_;
  Asked keeping_;
  Retry register_;
  Retry keep_;
  bool leaving_ = false;
  bool left_ = false;

  bool ever_answered_ = false;  // ever
  std::optional<core::Tick> failing_since_;
  std::string failure_;
  struct Shown {
    bool registered = false;
    bool reachable = false;
    bool failing = false;
    bool taken = false;  // by another node
    bool strange = false;
    bool operator==(const Shown&) const = default;
  };
  Shown shown_;
  bool strange_ = false;  // keys came that do not begin with the prefix
  core::Tick shown_since_{};
};

}  // namespace ravenstore::cluster
