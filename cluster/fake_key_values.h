// A store like etcd in one process, with virtual time and faults: for tests and simulations.
//
// A run depends on the seed and on what is called, on nothing else.
//
// Threads: one, for a store and all of its clients. Poll of one client runs all of them, and moves
// the virtual time on to `until`.
//
// Owns: the store outlives its clients.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/key_values.h"
#include "core/types.h"
#include "transport/event_queue.h"

namespace ravenstore::cluster {

// One change, as the store made it.
struct FakeChange {
  core::Tick when;
  std::string client;  // empty: the end of a lease
  std::optional<std::string> before;
  Change change;
};

class FakeKeyValues;

class FakeStore {
 public:
  explicit FakeStore(uint64_t seed);
  ~FakeStore();

  // `wake` is called after each callback of the client. REQUIRES: no living client has that name.
  std::unique_ptr<KeyValues> Connect(const std::string& client, std::function<void()> wake = {});

  core::Tick Now() const { return now_; }
  // When the next thing happens, or kNever.
  core::Tick Next() const { return events_.Next(); }
  // Runs the next thing that happens, if that is not after `until`. Whether there was one.
  bool RunNext(core::Tick until);
  // Runs all that happens until `until`, and then it is `until`.
  void RunUntil(core::Tick until);

  // Each direction takes `delay`, plus up to `jitter`.
  void SetDelay(core::Duration delay, core::Duration jitter);
  // Of requests that are done, and of answers to them: the share whose client never hears of it.
  void SetLosses(double share) { losses_ = share; }
  // All messages to and from this client are lost, and neither side is notified.
  void Cut(const std::string& client) { cut_.insert(client); }
  void Heal(const std::string& client) { cut_.erase(client); }
  // The client's process is paused: its callbacks wait until it runs again.
  void Pause(const std::string& client) { paused_.try_emplace(client); }
  void Resume(const std::string& client);
  // Refuses everything, as when no process listens there. Watches end.
  void Stop();
  // The store keeps its data. Leases start again, as etcd's do.
  void Start();
  // Forgets changes before now. Watches that ask for them end in an error or fall silent.
  void Compact();
  // Existing watches report nothing more, not even their end.
  void Silence();
  // Takes and restores a copy of the store. A restore sets the revision back and starts leases
  // again. The store gets another identity, unless `same_store`.
  struct Copy;
  std::shared_ptr<const Copy> Backup() const;
  void Restore(const Copy& copy, bool same_store);

  // Of all stores that this was, in the order in which they happened.
  const std::vector<FakeChange>& history() const { return history_; }
  // What the key holds now.
  const KeyValue* Find(const std::string& key) const;
  uint64_t requests() const { return requests_; }
  Stamp stamp() const { return {store_, revision_}; }

 private:
  friend class FakeKeyValues;
  struct Lease {
    core::Duration duration{};
    core::Tick end{};
  };
  struct Watcher {
    std::string prefix;
    int64_t next = 0;
    bool begun = false;          // the store knows it
    bool has_delivered = false;  // and its client that it does
    bool silent = false;
    core::Tick last_sent{};
    Callback<Changes> callback;
  };
  using WatchKey = std::pair<std::string, WatchId>;  // by client

  core::Duration Delay();
  bool Lost(const std::string& client);
  // Runs `what`, which notifies that client, now or once the client runs again.
  void RunForClient(const std::string& client, std::function<void()> what);

  void BeginWatch(const WatchKey& key);
  Changes ChangesFor(const Watcher& watcher) const;
  void Apply(const std::string& client, KeyValue now, bool deleted);
  void Deliver(const WatchKey& key, core::Result<Changes> what);
  void EndWatches(const core::Error& why);
  void ArmLease(StoreLease id);
  void EndLease(const std::string& client, StoreLease id);
  void RenewLeases();

  // What the store does when a request has come.
  RangeRead DoRange(const std::string& prefix, size_t most) const;
  core::Result<WriteAnswer> DoWrite(const std::string& client, const Write& write);
  core::Result<LeaseAnswer> DoKeepAlive(StoreLease lease);

  core::Tick now_{};
  uint64_t requests_ = 0;
  std::mt19937_64 random_;
  transport::EventQueue events_;
  std::map<std::string, std::function<void()>> clients_;  // what wakes them
  std::set<std::string> cut_;
  std::map<std::string, std::vector<std::function<void()>>> paused_;  // and what waits for them
  core::Duration delay_ = std::chrono::milliseconds(1);
  core::Duration jitter_{};
  double losses_ = 0;
  bool stopped_ = false;

  uint64_t store_;
  int64_t revision_ = 1;
  int64_t compacted_ = 0;
  int64_t last_lease_ = 0;  // as those of etcd, never used again by a store that was restored
  uint64_t last_watch_ = 0;
  std::map<std::string, KeyValue> values_;
  std::map<StoreLease, Lease> leases_;
  std::vector<Change> log_;  // of this store's life
  std::map<WatchKey, Watcher> watchers_;
  std::vector<FakeChange> history_;
};

}  // namespace ravenstore::cluster
