// The seam to a store of keys and values like etcd, by which nodes find each other.
//
// Nothing here blocks. Each operation calls its callback once with the outcome, at its deadline at
// the latest. A failed operation may have been executed, or may still be executed later. A caller
// that has to know reads again.
//
// Each answer says of which store it is and how far that has come (Stamp). A store that was
// restored from a copy may be another one, or the same with a lower revision.
//
// Threads: all of a KeyValues is used by one thread, on which Poll runs every callback. Callbacks
// may call everything but Poll and the destructor. After the destructor no callback runs.
//
// Errors: of operations and watches
//   kUnavailable      the store cannot be reached, or the answer was lost
//   kTimedOut         the deadline passed
//   kNotFound         no such lease
//   kVersionMismatch  what answers is no store of this kind, or a version that cannot be used
//   kPermission       it refused this client
//   kLimit            it refused more of something
//   kCorrupt          an answer that makes no sense
//
// Units: deadlines are instants of Now's clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::cluster {

// Of one store the revision grows with each change. It orders nothing between two stores.
struct Stamp {
  uint64_t store = 0;
  int64_t revision = 0;
};

enum class StoreLease : int64_t {};  // 0: none
inline constexpr StoreLease kNoLease{0};

struct KeyValue {
  std::string key = {};
  std::string value = {};
  int64_t modified = 0;  // the revision of its last change
  StoreLease lease{};    // the key goes with it
};

struct RangeRead {
  Stamp at;                      // everything up to this revision, and nothing later
  std::vector<KeyValue> values;  // by key
  bool more = false;             // there are more than `most`
};

// Writes `key` if it is as expected.
struct Write {
  std::string key;
  std::optional<std::string> expected;  // nothing: there is no such key
  std::string value;
  StoreLease lease{};
};

struct WriteAnswer {
  Stamp at;
  bool written = false;
  std::optional<KeyValue> found = {};  // where it was not: what there is instead
};

struct LeaseAnswer {
  Stamp at;
  StoreLease lease{};
  core::Duration duration{};  // what it lives from now on
};

struct Change {
  KeyValue now;  // of a deleted key: key and modified
  bool deleted = false;
};

// Of one watch, in the order of their revisions; perhaps none.
struct Changes {
  Stamp at;
  std::vector<Change> changes;
};

enum class WatchId : uint64_t {};

template <typename T>
using Callback = std::function<void(core::Result<T>)>;

class KeyValues {
 public:
  virtual ~KeyValues() = default;

  // The keys that begin with `prefix`, `most` of them. What was written before is in it.
  virtual void Range(std::string prefix, size_t most, core::Tick deadline,
                     Callback<RangeRead> callback) = 0;
  virtual void CompareAndSet(Write write, core::Tick deadline, Callback<WriteAnswer> callback) = 0;

  // A lease that lives for `duration`, or longer where the store thinks so.
  virtual void Grant(core::Duration duration, core::Tick deadline,
                     Callback<LeaseAnswer> callback) = 0;
  virtual void KeepAlive(StoreLease lease, core::Tick deadline, Callback<LeaseAnswer> callback) = 0;
  // With its keys. One that is gone: kNotFound.
  virtual void Revoke(StoreLease lease, core::Tick deadline, Callback<core::Done> callback) = 0;

  // Reports each change of the keys that begin with `prefix`, from revision `from` on. The first
  // call comes when the watch begins, by `deadline`, and has no change. An error ends the watch.
  // The watch may also fall silent, for instance if `from` is older than what the store still
  // knows. The stamps of other answers then show that the watch misses something.
  virtual WatchId Watch(std::string prefix, int64_t from, core::Tick deadline,
                        Callback<Changes> callback) = 0;
  // Ends a watch, which then reports nothing more. A watch that ended already: ok.
  virtual void Unwatch(WatchId watch) = 0;

  // Moves bytes and runs callbacks until `until`, or until some were run. A past `until` never
  // waits.
  virtual void Poll(core::Tick until) = 0;
  virtual core::Tick Now() const = 0;
  // What it is and where, in words.
  virtual std::string Describe() const = 0;
};

}  // namespace ravenstore::cluster
